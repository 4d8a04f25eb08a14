"""Vectors of JSON lines: an object a line, with the vector, perhaps an id, and a payload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from matryo.errors import InputError, MatryoError
from matryo.retrieve.sources.source import Columns, Source, first_bad
from matryo.retrieve.store import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["first_line", "open_lines"]

_ID, _VECTORS, _PAYLOAD = "id", ("vector", "embedding"), "payload"
_EXAMPLE = '{"id": "a", "vector": [0.1, 0.2], "payload": {"year": 2021}}'


class _Row(NamedTuple):
    vector: Floats
    id: int | str | None
    payload: dict[str, Any]


def first_line(stream: BinaryIO) -> bytes:
    """The beginning of ``stream`` up to the end of its first line that is not blank."""
    found = b""
    while not found.strip():
        line = stream.readline()
        if not line:
            break
        found += line
    return found


def open_lines(name: str, begin: bytes, open_stream: Callable[[], BinaryIO], columns: Columns) -> Source:
    """The lines of a stream that begins with ``begin``, its first line; the stream has it still."""
    if not begin.strip():
        raise InputError(f"{name} must hold a vector", got="no line", cure=f"give one a line: {_EXAMPLE}")
    lines = _Lines(name, columns)
    first = next(lines.rows(iter(begin.splitlines(keepends=True)), 0))

    def read(rows: int, skip: int) -> Iterator[Batch]:
        with open_stream() as stream:
            yield from _batches(lines.rows(iter(stream), skip, like=first), rows)

    return Source(name, len(first.vector), None, first.id is not None, read)


def _batches(rows: Iterator[_Row], size: int) -> Iterator[Batch]:
    # A line that cannot be read is told after the lines before it were given.
    held: list[_Row] = []
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


def _batch(held: list[_Row]) -> Batch:
    ids = None if held[0].id is None else [row.id for row in held]
    return Batch(np.stack([row.vector for row in held]), ids, [row.payload for row in held])


@dataclass(frozen=True)
class _Lines:
    name: str
    columns: Columns

    def rows(self, lines: Iterator[bytes], skip: int, like: _Row | None = None) -> Iterator[_Row]:
        """The rows after the first ``skip``, all ``like`` the first one."""
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if skip:
                skip -= 1
                continue
            row = self._parsed(line, number)
            self._check_like(row, like or row, number)
            yield row

    def _parsed(self, line: bytes, number: int) -> _Row:
        try:
            fields = json.loads(line.strip())
        except (ValueError, RecursionError) as error:
            # Its own line number is always 1.
            why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise self._refused(number, "a line must be JSON", why, "mend or drop that line") from error
        if not isinstance(fields, dict):
            raise self._refused(number, "a line must be a JSON object", f"{fields!r:.40}", f"for example {_EXAMPLE}")
        key = self.columns.vector or next((name for name in _VECTORS if name in fields), None)
        if key not in fields:
            wanted = f'"{key}"' if key else '"vector" or "embedding"'
            found = ", ".join(fields) or "no keys"
            cure = "say which it is: --vector-column NAME"
            raise self._refused(number, f"a line must have the key {wanted}", f"{found:.80}", cure)
        vector = self._as_vector(fields.pop(key), number)
        id = self._as_id(fields, number)
        inner = fields.pop(_PAYLOAD, None)
        if inner is not None and not isinstance(inner, dict):
            raise self._refused(number, "a payload must be an object", f"{inner!r:.40}", 'wrap it: {"text": …}')
        return _Row(vector, id, self.columns.payload_of({**(inner or {}), **fields}))

    def _as_vector(self, values: Any, number: int) -> Floats:
        rule, cure = "a vector must be a list of numbers", "drop that line, or encode it again"
        try:
            array = np.asarray(values)
        except (ValueError, OverflowError):
            array = np.empty(0)
        if not isinstance(values, list) or array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array):
            raise self._refused(number, rule, f"{values!r:.40}", cure)
        with np.errstate(over="ignore"):   # told below
            vector = array.astype(np.float32)
        if not np.isfinite(vector).all():
            rule = "a vector must be of numbers that are finite in float32"
            raise self._refused(number, rule, first_bad(vector), cure)
        return vector

    def _as_id(self, fields: dict[str, Any], number: int) -> int | str | None:
        key = self.columns.id or _ID
        id = fields.pop(key, None)
        if id is None and self.columns.id is not None:
            raise self._refused(number, f'a line must have the key "{key}"', ", ".join(fields)[:80], "give each an id")
        if id is None or (isinstance(id, int | str) and not isinstance(id, bool)):
            return id
        raise self._refused(number, "an id must be an integer or a string", f"{id!r:.40}", "convert it")

    def _check_like(self, row: _Row, first: _Row, number: int) -> None:
        if len(row.vector) != len(first.vector):
            rule = f"a vector must have {len(first.vector)} numbers, as the first one has"
            raise self._refused(number, rule, len(row.vector), "encode every row with one model")
        if type(row.id) is not type(first.id):
            kind = {int: "an integer, as the first one is", str: "a string, as the first one is"}.get(
                type(first.id), "left out, as the first one is"
            )
            got = "none" if row.id is None else f"{row.id!r:.40}"
            raise self._refused(number, f"an id must be {kind}", got, "give all of one kind, or none")

    def _refused(self, number: int, rule: str, got: object, cure: str) -> InputError:
        return InputError(f"{self.name}, line {number}: {rule}", got=got, cure=cure)
