"""Vectors from files, with ids and payloads, for filling an index and as queries.

==========================  ====================================================================================
``.npy``                    memory-mapped; no ids, no payloads
``.parquet``, ``.arrow``    also ``.feather``: a column of lists of numbers, a column of ids; other columns are payload
``.csv``, ``.tsv``          numeric columns, or one column of JSON lists; a column of ids; other columns are payload
``.jsonl``                  ``{"id": …, "vector": […], "payload": {…}}``, or "embedding"; other keys are payload
an embeddings folder        ids; label, class and superclass as payload
an index                    ids and payloads; a copy can have other dims or another precision
``-``                       standard input: JSON lines, or the bytes of a ``.npy`` file
==========================  ====================================================================================

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "mine.jsonl"
>>> _ = path.write_text('{"id": "a", "vector": [3, 4], "year": 2021}')
>>> source = open_source(path)
>>> source.dim, [(batch.ids, batch.payload) for batch in source.batches()]
(2, [(['a'], [{'year': 2021}])])

Files are read in batches, never as a whole.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.sources.arrays import MAGIC, open_embeddings, open_index, open_npy, open_npy_stream
from matryo.retrieve.sources.csv_files import open_csv
from matryo.retrieve.sources.fingerprints import fingerprint
from matryo.retrieve.sources.lines import first_lines, open_lines
from matryo.retrieve.sources.source import Columns, Source, is_integer, unreadable
from matryo.retrieve.sources.tables import open_table
from matryo.retrieve.store.sql.database import DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matryo.retrieve.store import Batch

__all__ = ["SUFFIXES", "Columns", "Format", "Source", "fingerprint", "open_source", "read_ids"]

Format = Literal["npy", "jsonl", "csv", "parquet", "arrow", "embeddings", "index"]
SUFFIXES: dict[str, Format] = {
    ".npy": "npy", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
    ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip


def open_source(
    path: str | Path,
    *,
    format: Format | None = None,
    id_column: str | None = None,
    vector_column: str | None = None,
    payload_columns: Sequence[str] | None = None,
) -> Source:
    """Open a file, an embeddings folder, an index, or standard input (``-``).

    ``format`` is detected from the name by default. Columns are those of a table, or the keys of JSON lines. The
    defaults are "id" if it exists, "vector" or "embedding", and all other columns as payload.
    """
    columns = Columns(id_column, vector_column, None if payload_columns is None else tuple(payload_columns))
    if format is not None and format not in get_args(Format):
        raise InputError(f"format must be one of {', '.join(get_args(Format))}", got=repr(format), cure="pick one")
    if str(path) == "-":
        return _open_stdin(format, columns)
    place = Path(path)
    kind = format or _format(place)
    if kind in ("npy", "embeddings", "index") and (id_column or vector_column):
        raise InputError(f"{place} has no named columns", got=id_column or vector_column, cure="drop that option")
    if kind == "npy":
        return open_npy(place)
    if kind == "embeddings":
        return open_embeddings(place, columns)
    if kind == "index":
        return open_index(place, columns)
    if kind == "csv":
        return open_csv(place, columns)
    if kind == "jsonl":
        try:
            first = first_lines(_lines_of(place))
        except OSError as error:
            raise unreadable(place, "jsonl", error) from error
        return open_lines(str(place), first, lambda: _lines_of(place), columns, place)
    return open_table(place, kind, columns)


def _lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def read_ids(path: str | Path) -> list[int] | list[str]:
    """Read ids from a one-dimensional .npy file, or from text with one id per line (integers if the first one is)."""
    place = Path(path)
    try:
        if place.suffix == ".npy":
            array = np.load(place, allow_pickle=False)
            if array.ndim != 1 or array.dtype.kind not in "iuU":
                raise ValueError(f"shape {array.shape}, {array.dtype}")
            return list(array.tolist())
        lines = place.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{place} must be a file of ids",
            got=error,
            cure="write one id per line, or a one-dimensional .npy of integers or strings",
        ) from error
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines or not is_integer(lines[0]):
        return lines
    bad = next((number for number, line in enumerate(lines) if not is_integer(line)), None)
    if bad is not None:
        rule = f"{place}, line {bad + 1}: an id must be an integer, like the first one"
        raise InputError(rule, got=f"{lines[bad]!r:.40}", cure="fix it, or use strings only")
    return [int(line) for line in lines]


def _format(path: Path) -> Format:
    if path.is_dir():
        return "index" if (path / DATABASE).exists() else "embeddings"
    if path.suffix.lower() in SUFFIXES:
        return SUFFIXES[path.suffix.lower()]
    raise InputError(
        f"vectors must be in an embeddings folder, an index, or a file that ends in {', '.join(SUFFIXES)}",
        got=path if path.exists() else f"{path}, which does not exist",
        cure="specify --format, or pipe it in as JSON lines" if path.exists() else "check the path",
    )


# ── standard input ────────────────────────────────────────────────────────────────────────────────────────────


def _open_stdin(format: Format | None, columns: Columns) -> Source:
    name = "standard input"
    if format not in (None, "npy", "jsonl"):
        raise InputError(f"{name} must be JSON lines or npy", got=format, cure="pass the path of the file")
    if sys.stdin is None:   # the caller closed it
        raise InputError(f"{name} must be open", got="none", cure="pipe the vectors in, or pass the path of a file")
    stream = sys.stdin.buffer
    begin = stream.read(len(MAGIC))
    if format == "npy" or (format is None and begin == MAGIC):
        source = open_npy_stream(name, begin, stream)
    else:
        lines = chain((begin + stream.readline()).splitlines(keepends=True), stream)
        first = first_lines(lines)
        source = open_lines(name, first, lambda: chain(first, lines), columns)
    return replace(source, read=_once(name, source.read))


def _once(name: str, read: Callable[[int, int], Iterator[Batch]]) -> Callable[[int, int], Iterator[Batch]]:
    left = [read]

    def read_once(rows: int, skip: int) -> Iterator[Batch]:
        if not left:
            raise InputError(f"{name} can be read only once", got="a second read", cure="write it to a file first")
        return left.pop()(rows, skip)

    return read_once
