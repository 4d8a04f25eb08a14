"""Read rows of JSONL, TSV, CSV and parquet files one at a time; errors give the file and the line.

JSONL: one object per line. TSV: a header line, then fields separated by tabs; quotes have no special meaning. CSV: a
header line; quoted fields may contain commas and line breaks. All three are UTF-8, with or without a byte order mark,
with Unix or Windows line ends, optionally compressed (``.gz``). Blank lines are skipped. Parquet requires pyarrow.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from matryo.data.limits import bounded_lines
from matryo.errors import DataError, MissingExtra
from matryo.files import next_record, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

TABLES = ("jsonl", "tsv", "csv", "parquet")
# train-00000-of-00003 is a part of train; older Hugging Face exports append 16 digits of a hash.
_PART = re.compile(r"(?P<split>.+?)(-\d+(-of-(?P<all>\d+)(-[0-9a-f]{16})?)?)?")
_NO_DATA = re.compile(r"readme|licen[cs]e|notice|classes|vocab", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """The fields of one row by column, and its ``place`` (file and line) for errors."""

    place: str
    values: Mapping[str, Any]

    def has(self, *columns: str) -> bool:
        """Return whether one of ``columns`` exists and is not null."""
        return self._value(columns) is not None

    def text(self, *columns: str, blank: bool = False) -> str:
        """Return the text in the first of ``columns`` that is not null; it may be blank only with ``blank``."""
        value = self._value(columns)
        if not isinstance(value, str) or not (blank or value.strip()):
            self._refuse_text(columns, value)
        return self._whole(value)

    def texts(self, *columns: str) -> list[str]:
        """Return the text or list of texts in the first of ``columns`` that is not null; [] if all are null."""
        value = self._value(columns)
        texts = value if isinstance(value, list) else [value] if value is not None else []
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                self._refuse_text(columns, text)
        return [self._whole(text) for text in texts]

    def id(self, *columns: str) -> str:
        """Return the name or integer in the first of ``columns`` that is not null, as text."""
        value = self._value(columns)
        # pandas stores integers as floats in a column with gaps; from 2⁵³ on, floats may be rounded.
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
            rule = f"a row needs a name or an integer in the column {_either(columns)}"
            raise self.refused(rule, self._shown(value), "fill it in, or rename the column")
        return self._whole(str(value))

    def number(self, *columns: str) -> float:
        """Return the number in the first of ``columns`` that is not null."""
        value = self._value(columns)
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            return float(value)
        except ValueError:
            rule = f"a row needs a number in the column {_either(columns)}"
            raise self.refused(rule, self._shown(value), "write it in digits, for example 1 or 0.5") from None

    def refused(self, rule: str, got: object, cure: str) -> DataError:
        """Return an error about this row."""
        return DataError(f"{self.place}: {rule}", got=got, cure=cure)

    def _value(self, columns: Sequence[str]) -> Any:
        return next((value for name in columns if (value := self.values.get(name)) is not None), None)

    def _refuse_text(self, columns: Sequence[str], value: object) -> NoReturn:
        # A column that is not null comes first.
        candidates = sorted((c for c in columns if c in self.values), key=lambda column: self.values[column] is None)
        if not candidates:
            present = ", ".join(self.values) or "no columns"
            rule = f"a row needs a text in the column {_either(columns)}"
            raise self.refused(rule, f"{present:.80}", "rename the column")
        raise self.refused(f"{candidates[0]} must be a text", self._shown(value), "fill it in, or drop the row")

    def _shown(self, value: object) -> str:
        return "none" if value is None else f"{value!r:.60}"

    def _whole(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:   # JSON can contain half a surrogate pair, which cannot be encoded as UTF-8
            raise self.refused("a text must be valid Unicode", f"{text!r:.60}", "correct its \\u escapes") from None
        return text


def split_files(root: Path, endings: Sequence[str] = TABLES) -> dict[str, list[Path]]:
    """Return the files of each split by name: ``train.jsonl``, or parts such as ``train-00000-of-00002.parquet``.

    A single file instead of a folder is the split ``train``. Read-me files, licences and class lists are ignored.
    """
    if root.is_file():
        if ending_of(root) not in endings:
            raise DataError("the file format is not supported", got=root.name, cure=f"use one of {_endings(endings)}")
        return {"train": [root]}
    files: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        ignored = path.name.startswith(".") or _NO_DATA.match(path.name)
        if ignored or ending_of(path) not in endings or not path.is_file():
            continue
        split = _PART.fullmatch(_base(path))["split"]   # type: ignore[index]   # the pattern matches any name
        parts = files.setdefault(split, [])
        if parts and (ending_of(path) != ending_of(parts[0]) or split in (_base(path), _base(parts[0]))):
            raise DataError(
                f"split {split!r} must be one file, or numbered parts of one kind",
                got=f"{parts[0].name} and {path.name}",
                cure="keep one of them in this folder",
            )
        parts.append(path)
    if not files:
        raise DataError(
            "a dataset of tables must be a folder with one file per split",
            got=f"none in {root}" if root.is_dir() else f"{root}, which does not exist",
            cure=f"name them train.jsonl, test.jsonl; the supported endings are {_endings(endings)}",
        )
    for split, parts in files.items():
        _check_parts(split, parts)
    return files


def _check_parts(split: str, parts: Sequence[Path]) -> None:
    """Raise unless the number of ``parts`` is the number in their names, if these give one."""
    totals = {int(match["all"] or 0) for path in parts if (match := _PART.fullmatch(_base(path)))}
    if totals not in ({0}, {len(parts)}):
        names = ", ".join(path.name for path in parts)
        raise DataError(
            f"split {split!r} must have all its parts",
            got=f"{len(parts)}: {names:.100}",
            cure="copy the missing parts here, or rename the parts if these are all",
        )


def rows_of(paths: Sequence[Path]) -> Iterator[Row]:
    """Iterate over the rows of all files in ``paths``; there must be at least one row."""
    row = None
    for path in paths:
        for row in read_rows(path):
            yield row
    if row is None:
        raise DataError(f"{paths[0].name} must hold a row", got="none", cure="add rows, or remove the file")


def read_rows(path: Path, name: str | None = None) -> Iterator[Row]:
    """Iterate over the rows of the file at ``path``; errors use ``name``, by default the file name."""
    readers: dict[str, Callable[[Path, str], Iterator[Row]]] = {
        "jsonl": _json_rows, "tsv": _tsv_rows, "csv": _csv_rows, "parquet": _parquet_rows,
    }  # fmt: skip
    return readers[ending_of(path)](path, name or path.name)


def lines_of(path: Path, name: str | None = None) -> Iterator[tuple[int, str]]:
    """Iterate over (number from 1, text without line end) of the lines of a UTF-8 file that are not blank."""
    name = name or path.name
    for number, line in enumerate(_raw_lines(path, name), 1):
        text = _decoded(line, number, name).rstrip("\r\n")
        if text.strip():
            yield number, text


def check_new_id(row: Row, id: str, seen: dict[str, str]) -> None:
    """Add ``id`` to the ids ``seen``, with the place of its ``row``; raise if it occurred before."""
    if id in seen:
        raise row.refused("ids must be unique", f"{id!r:.60}, as in {seen[id]}", "give each row its own id")
    seen[id] = row.place


def _raw_lines(path: Path, name: str) -> Iterator[bytes]:
    try:
        with _opened(path) as file:
            yield from bounded_lines(file, name)
    except (OSError, EOFError, zlib.error) as error:
        packed = path.suffix == ".gz" and not isinstance(error, FileNotFoundError)
        raise DataError(
            f"{name} cannot be read" + (" as gzip" if packed else ""),
            got=f"{type(error).__name__}: {error}",
            cure="copy it again, or remove .gz from the name if it is not compressed" if packed else "check the path",
        ) from error


def _opened(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")   # type: ignore[return-value]


def _decoded(line: bytes, number: int, name: str) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: files must be UTF-8", got=f"{line[:40]!r}", cure="save it as UTF-8"
        ) from error


def _json_rows(path: Path, name: str) -> Iterator[Row]:
    for number, line in lines_of(path, name):
        place = f"{name}, line {number}"
        try:
            values = parse_json(line)
        except (ValueError, RecursionError) as error:
            why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DataError(f"{place}: a line must be JSON", got=why, cure="correct or remove that line") from error
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
            while (fields := next_record(reader)) is not None:
                if fields and (len(fields) > 1 or fields[0].strip()):
                    yield reader.line_num, fields
        except csv.Error as error:
            rule = f"{name}, line {reader.line_num}: a line must be CSV"
            raise DataError(rule, got=error, cure="correct its quotes, or use JSONL") from error

    yield from _under_header(records(), name)


def _under_header(records: Iterator[tuple[int, list[str]]], name: str) -> Iterator[Row]:
    """Iterate over rows whose columns are named by the first record; empty fields are null."""
    first = next(records, None)
    if first is None:
        return
    columns = [column.strip() for column in first[1]]
    if len(set(columns)) != len(columns):
        raise DataError(
            f"{name}: the first line must name the columns, each once",
            got=", ".join(columns)[:80],
            cure="add a header line",
        )
    for number, fields in records:
        if len(fields) != len(columns):
            raise DataError(
                f"{name}, line {number}: a line must have one field per column ({', '.join(columns):.80})",
                got=f"{len(fields)} fields",
                cure="replace tabs and line breaks in texts by spaces, or use JSONL",
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
            columns = file.schema_arrow.names
            if twice := {column for column in columns if columns.count(column) > 1}:
                rule = f"the columns of {name} must have different names"
                raise DataError(rule, got=f"{min(twice)} twice", cure="rename one")
            for batch in file.iter_batches(batch_size=4096):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{name}, row {number}", values)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{name} cannot be read as parquet",
            got=f"{type(error).__name__}: {error!s:.80}",
            cure="copy it or write it again",
        ) from error


def _base(path: Path) -> str:
    return path.name.split(".")[0]


def ending_of(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2].lower()


def _endings(endings: Sequence[str]) -> str:
    return ", ".join(f".{ending}" for ending in endings)


def _either(columns: Sequence[str]) -> str:
    return " or ".join(columns)
