"""Read columns from the payloads in SQLite, which are JSON. Python decodes them: SQLite would round large integers."""

from __future__ import annotations

import json
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import IndexFolderError
from matryo.progress import tqdm
from matryo.retrieve.store.filters.column import Column
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matryo.retrieve.store.filters.masks import Part
    from matryo.retrieve.store.sql.database import Database
    from matryo.retrieve.vectors.types import Indices

_TOGETHER = 512   # payloads decoded at a time
_MISSING = object()


def read_columns(database: Database, parts: Iterable[Part], rows: Indices, fields: Sequence[str]) -> None:
    """Read those columns of ``fields`` that ``parts`` lack; ``rows`` are the numbers of all rows of the segment.

    Rows that were deleted before have no values: they are never alive again.
    """
    for part in parts:
        lacking = [field for field in fields if field not in part.columns]
        if lacking:
            own = rows[part.first : part.first + part.count]
            part.columns.update(_columns(database, own, lacking))


def names_at(database: Database, path: Sequence[str]) -> list[str]:
    """The names of all fields of the objects at ``path``, in order of appearance."""
    names: dict[str, None] = {}
    for _, payloads in _payloads(database, 0, 2**63 - 1):
        found = payloads
        for name in path:
            found = [each[name] for each in found if name in each and type(each[name]) is dict]
        for each in found:
            names.update(dict.fromkeys(each))
    return list(names)


def _columns(database: Database, rows: Indices, fields: Sequence[str]) -> dict[str, Column]:
    paths = {field: field.split(".") for field in fields}
    values: dict[str, list[Any]] = {field: [] for field in fields}
    present: dict[str, list[Indices]] = {field: [] for field in fields}
    with tqdm(desc=f"columns of {', '.join(fields)}", total=len(rows), unit="row", unit_scale=True, delay=2,
              disable=None) as bar:   # fmt: skip
        for numbers, payloads in _payloads(database, int(rows[0]), int(rows[-1])):
            at = np.minimum(np.searchsorted(rows, numbers), len(rows) - 1)
            known = rows[at] == numbers
            if not known.all():   # a file is damaged
                at, payloads = at[known], list(compress(payloads, known.tolist()))
            for field, path in paths.items():
                found = payloads
                for name in path:
                    found = [each.get(name, _MISSING) if type(each) is dict else _MISSING for each in found]
                there = [each is not _MISSING for each in found]
                present[field].append(at[there])
                values[field] += compress(found, there)
            bar.update(len(numbers))
    small = np.int32 if len(rows) < 2**31 else np.int64
    nowhere = np.empty(0, np.int64)
    return {
        field: Column.of(np.concatenate([nowhere, *present[field]]).astype(small), values[field]) for field in fields
    }


def _payloads(database: Database, first: int, last: int) -> Iterator[tuple[Indices, list[Any]]]:
    """Row numbers and payloads of the live rows that have a payload, some rows at a time."""
    cursor = records.row_payloads(database, first, last)
    while some := cursor.fetchmany(_TOGETHER):
        rows, texts = zip(*some, strict=True)
        where = f"rows {rows[0]} to {rows[-1]}"
        try:   # one call takes half the time of many
            payloads = json.loads(f"[{','.join(texts)}]", parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise IndexFolderError.damaged(database.path, f"{where}: {error}") from error
        if len(payloads) != len(rows) or set(map(type, payloads)) != {dict}:
            raise IndexFolderError.damaged(database.path, f"{where}: a payload is no object")
        yield np.array(rows, np.int64), payloads


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
