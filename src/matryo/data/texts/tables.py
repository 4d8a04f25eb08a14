"""Rows of JSONL, TSV, CSV and parquet files, read one at a time; what is wrong with one is told by file and line.

JSONL: an object a line. TSV: a header line, then fields between tabs, in which quotes are letters like any other.
CSV: a header line and quotes as usual, so that a field may hold commas and line ends. All three are UTF-8, perhaps with
a byte order mark, perhaps with Windows line ends, perhaps compressed (``.gz``). Blank lines are skipped. Parquet needs
pyarrow.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from matryo.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["TABLES", "Row", "lines_of", "read_rows", "rows_of", "split_files", "unique"]

TABLES = ("jsonl", "tsv", "csv", "parquet")
# train-00000-of-00003 is a part of train; Hugging Face once put 16 digits of a hash behind it.
_PART = re.compile(r"(?P<split>.+?)(-\d+(-of-(?P<all>\d+)(-[0-9a-f]{16})?)?)?")
_NO_DATA = re.compile(r"readme|licen[cs]e|notice|classes|vocab", re.IGNORECASE)
_LONGEST = 2**31 - 1   # letters of a CSV field, instead of the 131,072 that csv allows: a book is a text too


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its fields by column, and the ``place`` (file and line) that errors name."""

    place: str
    values: Mapping[str, Any]

    def has(self, *columns: str) -> bool:
        """Whether one of ``columns`` is there and holds something."""
        return self._first(columns) is not None

    def text(self, *columns: str, blank: bool = False) -> str:
        """The text under the first of ``columns`` that is there. Only with ``blank`` may it be without a letter."""
        column = self._first(columns)
        value = None if column is None else self.values[column]
        if not isinstance(value, str) or not (blank or value.strip()):
            self._refuse_text(columns, column, value)
        return self._whole(value)

    def texts(self, *columns: str) -> list[str]:
        """The text, or the list of texts, under the first of ``columns`` that is there; without any, none."""
        column = self._first(columns)
        if column is None:
            return []
        value = self.values[column]
        several = value if isinstance(value, list) else [value]
        for one in several:
            if not isinstance(one, str) or not one.strip():
                self._refuse_text(columns, column, one)
        return [self._whole(one) for one in several]

    def id(self, *columns: str) -> str:
        """The name or whole number under the first of ``columns`` that is there, as text."""
        column = self._first(columns)
        value = None if column is None else self.values[column]
        # pandas has no whole numbers in a column with gaps; from 2⁵³ on, its floats may be rounded.
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
            rule = f"a row needs a name or a whole number under {_either(columns)}"
            raise self.refused(rule, self._shown(value), "give it one, or name the column so")
        return self._whole(str(value))

    def number(self, *columns: str) -> float:
        """The number under the first of ``columns`` that is there."""
        column = self._first(columns)
        value = None if column is None else self.values[column]
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            return float(value)
        except ValueError:
            rule = f"a row needs a number under {_either(columns)}"
            raise self.refused(rule, self._shown(value), "write it with digits, like 1 or 0.5") from None

    def refused(self, rule: str, got: object, cure: str) -> DataError:
        """An error about this row."""
        return DataError(f"{self.place}: {rule}", got=got, cure=cure)

    def _first(self, columns: Sequence[str]) -> str | None:
        return next((name for name in columns if self.values.get(name) is not None), None)

    def _refuse_text(self, columns: Sequence[str], column: str | None, value: object) -> NoReturn:
        column = column or next((name for name in columns if name in self.values), None)   # there, but null
        if column is None:
            named = ", ".join(self.values) or "no columns"
            raise self.refused(f"a row needs a text under {_either(columns)}", f"{named:.80}", "name the column so")
        raise self.refused(f"{column} must be a text", self._shown(value), "write one, or drop the row")

    def _shown(self, value: object) -> str:
        return "none" if value is None else f"{value!r:.60}"

    def _whole(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:   # JSON can spell half a character, which no file and no tokenizer can hold
            raise self.refused("a text must be of whole characters", f"{text!r:.60}", "mend its \\u escapes") from None
        return text


def split_files(root: Path, endings: Sequence[str] = TABLES) -> dict[str, list[Path]]:
    """The files of each split, by their names: ``train.jsonl``, or ``train-00000-of-00002.parquet`` and on.

    A file in the place of a folder is the split ``train``. Read-me files, licences and lists of classes are no data.
    """
    if root.is_file():
        if _ending(root) not in endings:
            raise DataError("this ending is not read", got=root.name, cure=f"give one of {_endings(endings)}")
        return {"train": [root]}
    found: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        hidden = path.name.startswith(".") or _NO_DATA.match(path.name)
        if hidden or _ending(path) not in endings or not path.is_file():
            continue
        split = _PART.fullmatch(_base(path))["split"]   # type: ignore[index]   # it matches anything
        parts = found.setdefault(split, [])
        if parts and (_ending(path) != _ending(parts[0]) or split in (_base(path), _base(parts[0]))):
            raise DataError(
                f"split {split!r} must be one file, or numbered parts of one kind",
                got=f"{parts[0].name} and {path.name}",
                cure="keep one of them in this folder",
            )
        parts.append(path)
    if not found:
        raise DataError(
            "a dataset of tables is a folder with a file for each split",
            got=f"none in {root}" if root.is_dir() else f"{root}, which does not exist",
            cure=f"call them train.jsonl, test.jsonl; the endings read are {_endings(endings)}",
        )
    for split, parts in found.items():
        _check_parts(split, parts)
    return found


def _check_parts(split: str, parts: Sequence[Path]) -> None:
    """Raise unless there are as many as their names say, where these do."""
    told = {int(match["all"] or 0) for path in parts if (match := _PART.fullmatch(_base(path)))}
    if told not in ({0}, {len(parts)}):
        names = ", ".join(path.name for path in parts)
        raise DataError(
            f"split {split!r} must have all its parts",
            got=f"{len(parts)}: {names:.100}",
            cure="copy the missing ones here, or rename those that are all",
        )


def rows_of(paths: Sequence[Path]) -> Iterator[Row]:
    """The rows of ``paths``, one file after the other; there must be one."""
    row = None
    for path in paths:
        for row in read_rows(path):
            yield row
    if row is None:
        raise DataError(f"{paths[0].name} must hold a row", got="none", cure="write it again, or remove it")


def read_rows(path: Path, name: str | None = None) -> Iterator[Row]:
    """The rows of the file at ``path``, which errors call ``name`` (by default its file name)."""
    kinds: dict[str, Callable[[Path, str], Iterator[Row]]] = {
        "jsonl": _json_rows, "tsv": _tsv_rows, "csv": _csv_rows, "parquet": _parquet_rows,
    }  # fmt: skip
    return kinds[_ending(path)](path, name or path.name)


def lines_of(path: Path, name: str | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file and their numbers from 1, without their ends and without blank lines."""
    name = name or path.name
    for number, line in enumerate(_raw_lines(path, name), 1):
        text = _decoded(line, number, name).rstrip("\r\n")
        if text.strip():
            yield number, text


def unique(row: Row, id: str, seen: dict[str, str]) -> None:
    """Add ``id`` to those ``seen``, with the place of its ``row``; an id met before is an error."""
    if id in seen:
        raise row.refused("ids must differ", f"{id!r:.60}, as in {seen[id]}", "give each row its own id")
    seen[id] = row.place


def _raw_lines(path: Path, name: str) -> Iterator[bytes]:
    try:
        with _opened(path) as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        packed = path.suffix == ".gz" and not isinstance(error, FileNotFoundError)
        raise DataError(
            f"{name} is no readable " + ("gzip file" if packed else "file"),
            got=f"{type(error).__name__}: {error}",
            cure="it is cut short or something else: copy it again" if packed else "check the path",
        ) from error


def _opened(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")   # type: ignore[return-value]


def _decoded(line: bytes, number: int, name: str) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: files are UTF-8", got=f"{line[:40]!r}", cure="save it as UTF-8"
        ) from error


def _json_rows(path: Path, name: str) -> Iterator[Row]:
    for number, line in lines_of(path, name):
        place = f"{name}, line {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DataError(f"{place}: a line must be JSON", got=why, cure="mend or drop that line") from error
        if not isinstance(values, dict):
            cure = 'write {"text": "…"}'
            raise DataError(f"{place}: a line must be a JSON object", got=f"{values!r:.40}", cure=cure)
        yield Row(place, values)


def _tsv_rows(path: Path, name: str) -> Iterator[Row]:
    yield from _under_header(((number, line.split("\t")) for number, line in lines_of(path, name)), name)


def _csv_rows(path: Path, name: str) -> Iterator[Row]:
    lines = (_decoded(line, number, name) for number, line in enumerate(_raw_lines(path, name), 1))
    reader = csv.reader(lines, strict=True)

    def records() -> Iterator[tuple[int, list[str]]]:
        try:
            while (fields := _next_of(reader)) is not None:
                if fields and (len(fields) > 1 or fields[0].strip()):
                    yield reader.line_num, fields
        except csv.Error as error:
            rule = f"{name}, line {reader.line_num}: a line must be CSV"
            raise DataError(rule, got=error, cure="mend its quotes, or write JSONL") from error

    yield from _under_header(records(), name)


def _next_of(reader: Iterator[list[str]]) -> list[str] | None:
    """The next record of a CSV reader, None at the end; the limit is one for the whole process, so it is put back."""
    before = csv.field_size_limit(_LONGEST)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def _under_header(records: Iterator[tuple[int, list[str]]], name: str) -> Iterator[Row]:
    """Rows whose columns are named by the first record; an empty field is none."""
    first = next(records, None)
    if first is None:
        return
    columns = [column.strip() for column in first[1]]
    if len(set(columns)) != len(columns):
        raise DataError(
            f"{name}: the first line names the columns, each once",
            got=", ".join(columns)[:80],
            cure="add a header line",
        )
    for number, fields in records:
        if len(fields) != len(columns):
            raise DataError(
                f"{name}, line {number}: a line has a field for each of the columns {', '.join(columns):.80}",
                got=f"{len(fields)} fields",
                cure="write tabs and line ends in a text as spaces, or use JSONL",
            )
        values = {column: field or None for column, field in zip(columns, fields, strict=True)}
        yield Row(f"{name}, line {number}", values)


def _parquet_rows(path: Path, name: str) -> Iterator[Row]:
    with MissingExtra.unless_installed("pyarrow", "arrow"):
        import pyarrow
        from pyarrow import parquet
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{name}, row {number}", values)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{name} is no readable parquet file",
            got=f"{type(error).__name__}: {error!s:.80}",
            cure="copy or write it again",
        ) from error


def _base(path: Path) -> str:
    return path.name.split(".")[0]


def _ending(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2].lower()


def _endings(endings: Sequence[str]) -> str:
    return ", ".join(f".{ending}" for ending in endings)


def _either(columns: Sequence[str]) -> str:
    return " or ".join(columns)
