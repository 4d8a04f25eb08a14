"""Files with one row per line, read row by row: the checks and the batching that JSON lines and CSV share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.errors import InputError, MatryoError
from matryo.retrieve.sources.source import Source, first_bad
from matryo.retrieve.store import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from matryo.retrieve.vectors.types import Floats

    Records = Iterable[tuple[int, Any]]
    """Line numbers, and the raw content of each line."""

ID, VECTORS = "id", ("vector", "embedding")
"""The default names of the id and of the vector."""


class Row(NamedTuple):
    """One row of a file."""

    vector: Floats
    id: int | str | None
    payload: dict[str, Any]


def open_rows(
    name: str, first: tuple[int, Any], records: Callable[[], Records], parse: Callable[..., Row],
    file: Path | None = None,
) -> Source:  # fmt: skip
    """The source of a file; ``first`` is its first record, which ``records`` gives again.

    ``parse(record, place)`` returns the row of a record; ``place`` names the file and the line, for errors. ``file`` is
    None for standard input.
    """
    like = parse(first[1], f"{name}, line {first[0]}")

    def rows(skip: int) -> Iterator[Row]:
        for number, (line, record) in enumerate(records()):
            if number >= skip:
                row = parse(record, f"{name}, line {line}")
                _check_like(row, like, f"{name}, line {line}")
                yield row

    file = file if like.id is None else None
    return Source(name, len(like.vector), None, lambda size, skip: _batches(rows(skip), size), without_ids=file)


def refused(place: str, rule: str, got: object, cure: str) -> InputError:
    """An error that names the file and the line."""
    return InputError(f"{place}: {rule}", got=got, cure=cure)


def as_vector(values: Any, place: str) -> Floats:
    """A list of numbers as a vector."""
    rule, cure = "a vector must be a list of numbers", "drop that line, or encode it again"
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        array = np.empty(0)
    if not isinstance(values, list) or array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array):
        raise refused(place, rule, f"{values!r:.40}", cure)
    with np.errstate(over="ignore"):   # reported below
        vector = array.astype(np.float32)
    if not np.isfinite(vector).all():
        raise refused(place, "a vector must have finite numbers in float32", first_bad(vector), cure)
    return vector


def _check_like(row: Row, first: Row, place: str) -> None:
    """Raise unless ``row`` has the dim and the id type of the ``first``."""
    if len(row.vector) != len(first.vector):
        rule = f"a vector must have {len(first.vector)} numbers, like the first one"
        raise refused(place, rule, len(row.vector), "encode every row with the same model")
    if type(row.id) is not type(first.id):
        kinds = {int: "an integer, like the first one", str: "a string, like the first one"}
        rule = f"an id must be {kinds.get(type(first.id), 'absent, as in the first row')}"
        got = "none" if row.id is None else f"{row.id!r:.40}"
        raise refused(place, rule, got, "use one type of id in all rows, or no ids")


def _batches(rows: Iterator[Row], size: int) -> Iterator[Batch]:
    """Batches of ``size`` rows; the rows before a bad line are yielded first, and then the error is raised."""
    held: list[Row] = []
    try:
        for row in rows:
            held.append(row)
            if len(held) == size:
                yield _batch(held)
                held = []
    except MatryoError:
        if held:
            yield _batch(held)
        raise
    if held:
        yield _batch(held)


def _batch(rows: list[Row]) -> Batch:
    ids = None if rows[0].id is None else [row.id for row in rows]
    return Batch(np.stack([row.vector for row in rows]), ids, [row.payload for row in rows])
