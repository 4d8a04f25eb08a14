"""Vectors from CSV and TSV files: numeric columns, or one column of JSON lists; an id column; the rest is payload.

The delimiter (comma, semicolon or tab) is detected in the first line. A file whose first line has only numbers has no
header; its columns are named 0, 1, 2, …
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.files import next_record, parse_json
from matryo.retrieve.sources.rows import ID, VECTORS, Row, as_vector, open_rows, refused
from matryo.retrieve.sources.source import Columns, Source, is_integer, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


    Cells = list[str]


def open_csv(path: Path, columns: Columns) -> Source:
    """The rows of a CSV or TSV file."""
    start = list(islice(_records(path), 2))
    if not start:
        raise InputError(f"{path} must hold a vector", got="an empty file", cure="check the program that wrote it")
    bare = all(_number(cell) is not None for cell in start[0][1])
    names = [str(column) for column in range(len(start[0][1]))] if bare else [name.strip() for name in start[0][1]]
    data = start[not bare :]
    if not data:
        raise InputError(f"{path} must hold a vector", got="only a header", cure="check the program that wrote it")
    layout = _layout(path, names, data[0][1], columns)
    return open_rows(str(path), data[0], lambda: islice(_records(path), int(not bare), None), layout.parse, path)


def _records(path: Path) -> Iterator[tuple[int, Cells]]:
    """The line number and the cells of each record that is not blank."""
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            reader = csv.reader(chain([first], file), delimiter=max(",;\t", key=first.count))
            while (cells := next_record(reader)) is not None:
                if cells:
                    yield line, cells
                line = reader.line_num + 1   # a quoted cell may span lines
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(f"{path}, line {line}:", "csv", error) from error


def _layout(path: Path, names: Cells, first: Cells, columns: Columns) -> _Layout:
    """The vector, id and payload columns, which the header and the first row determine."""
    for name in (columns.id, columns.vector, *(columns.payload or ())):
        if name is not None and name not in names:
            raise InputError(f"{path} has no column {name}", got=", ".join(names)[:200], cure="use one of these names")
    id = columns.id or (ID if ID in names else None)
    lists = columns.vector or next((name for name in VECTORS if name in names), None)
    vector = [lists] if lists else [
        name for name, cell in zip(names, first, strict=False)
        if name != id and name not in (columns.payload or ()) and _number(cell) is not None
    ]  # fmt: skip
    if not vector:
        cure = "specify a column of JSON lists: --vector-column NAME"
        raise InputError(f"{path} must have columns of numbers", got=", ".join(names)[:200], cure=cure)
    payload = columns.payload if columns.payload is not None else [n for n in names if n != id and n not in vector]
    where = {name: column for column, name in enumerate(names)}
    id_at = None if id is None else where[id]
    integer_ids = id_at is not None and is_integer(first[id_at])
    return _Layout(len(names), [where[name] for name in vector], lists is not None, id_at,
                   {name: where[name] for name in payload}, integer_ids)  # fmt: skip


@dataclass(frozen=True)
class _Layout:
    """The columns of a file."""

    width: int
    vector: list[int]
    """The columns of the vector."""
    is_list: bool
    """Whether the vector is one column of JSON lists."""
    id: int | None
    payload: dict[str, int]
    """The column of each payload field."""
    integer_ids: bool

    def parse(self, record: Cells, place: str) -> Row:
        if len(record) != self.width:
            rule = f"a row must have {self.width} columns, like the first one"
            raise refused(place, rule, len(record), "fix or drop that line")
        vector = self._as_list(record[self.vector[0]], place) if self.is_list else self._as_numbers(record, place)
        payload = {name: _value(record[column]) for name, column in self.payload.items()}
        return Row(as_vector(vector, place), self._as_id(record, place), payload)

    def _as_list(self, cell: str, place: str) -> Any:
        try:
            return parse_json(cell)
        except (ValueError, RecursionError) as error:
            rule = "a vector must be a JSON list of numbers"
            raise refused(place, rule, f"{cell:.40}", "write it as [0.1, 0.2]") from error

    def _as_numbers(self, record: Cells, place: str) -> Any:
        try:
            return np.array([record[column] for column in self.vector], np.float64).tolist()
        except ValueError:
            column = next(column for column in self.vector if _number(record[column]) is None)
            rule = f"column {column + 1} must be a number, as in the first row"
            raise refused(place, rule, f"{record[column]!r:.40}", "fix or drop that line") from None

    def _as_id(self, record: Cells, place: str) -> int | str | None:
        if self.id is None:
            return None
        cell = record[self.id]
        if not cell:
            raise refused(place, "every row must have an id", "an empty cell", "fill it in")
        return int(cell) if self.integer_ids and is_integer(cell) else cell


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)   # Python reads 1_0 as 10
    except ValueError:
        return None


def _value(cell: str) -> int | float | str | None:
    """A payload cell: a number if it reads as one, None if it is empty, else text."""
    if not cell:
        return None
    number = _number(cell)
    if number is None or not math.isfinite(number):
        return cell
    if is_integer(cell):
        return int(cell)
    return cell if cell.lstrip("+-").isdigit() else number   # 007 is a name
