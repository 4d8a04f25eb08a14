"""Files with one row per line, read row by row: the checks and the batching that JSON lines and CSV share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.errors import InputError, MatryoError
from matryo.retrieve.sources.source import Columns, Source, first_bad
from matryo.retrieve.store import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Records = Iterator[tuple[int, Any]]

__all__ = ["ID", "VECTORS", "Row", "RowReader", "open_rows"]

ID, VECTORS = "id", ("vector", "embedding")
"""The default names of the id and of the vector."""


class Row(NamedTuple):
    """One row of a file."""

    vector: Floats
    id: int | str | None
    payload: dict[str, Any]


@dataclass(frozen=True)
class RowReader(ABC):
    """Reads the rows of one file; a record is a line number and the raw content of that line."""

    name: str
    columns: Columns

    @abstractmethod
    def parse(self, record: Any, line: int) -> Row:
        """The row of a record."""

    def rows(self, records: Records, skip: int, like: Row | None = None) -> Iterator[Row]:
        """The rows after the first ``skip``; all must have the dim and the id type of ``like``, or of the first."""
        for line, record in records:
            if skip:
                skip -= 1
                continue
            row = self.parse(record, line)
            self._check_like(row, like or row, line)
            yield row

    def as_vector(self, values: Any, line: int) -> Floats:
        """A list of numbers as a vector."""
        rule, cure = "a vector must be a list of numbers", "drop that line, or encode it again"
        try:
            array = np.asarray(values)
        except (ValueError, OverflowError):
            array = np.empty(0)
        if not isinstance(values, list) or array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array):
            raise self.refused(line, rule, f"{values!r:.40}", cure)
        with np.errstate(over="ignore"):   # reported below
            vector = array.astype(np.float32)
        if not np.isfinite(vector).all():
            raise self.refused(line, "a vector must have finite numbers in float32", first_bad(vector), cure)
        return vector

    def refused(self, line: int, rule: str, got: object, cure: str) -> InputError:
        """An error that names the file and the line."""
        return InputError(f"{self.name}, line {line}: {rule}", got=got, cure=cure)

    def _check_like(self, row: Row, first: Row, line: int) -> None:
        if len(row.vector) != len(first.vector):
            rule = f"a vector must have {len(first.vector)} numbers, like the first one"
            raise self.refused(line, rule, len(row.vector), "encode every row with the same model")
        if type(row.id) is not type(first.id):
            kinds = {int: "an integer, like the first one", str: "a string, like the first one"}
            rule = f"an id must be {kinds.get(type(first.id), 'absent, as in the first row')}"
            got = "none" if row.id is None else f"{row.id!r:.40}"
            raise self.refused(line, rule, got, "use one type of id in all rows, or no ids")


def open_rows(reader: RowReader, first: Records, open_records: Callable[[], Records]) -> Source:
    """The source of a reader; ``first`` are the first records, which ``open_records`` gives again."""
    row = next(reader.rows(first, 0), None)
    if row is None:
        raise InputError(f"{reader.name} must hold a vector", got="no row", cure="check the program that wrote it")

    def read(rows: int, skip: int) -> Iterator[Batch]:
        yield from _batches(reader.rows(open_records(), skip, like=row), rows)

    return Source(reader.name, len(row.vector), None, row.id is not None, read)


def _batches(rows: Iterator[Row], size: int) -> Iterator[Batch]:
    # The rows before a bad line are yielded first, and then the error is raised.
    held: list[Row] = []
    failed = None
    while failed is None:
        try:
            row = next(rows, None)
        except MatryoError as error:
            failed, row = error, None
        if row is None:
            break
        held.append(row)
        if len(held) == size:
            yield _batch(held)
            held = []
    if held:
        yield _batch(held)
    if failed is not None:
        raise failed


def _batch(rows: list[Row]) -> Batch:
    ids = None if rows[0].id is None else [row.id for row in rows]
    return Batch(np.stack([row.vector for row in rows]), ids, [row.payload for row in rows])
