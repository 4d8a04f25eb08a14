"""Vectors from JSON lines: one object per line, with a vector, an optional id and a payload."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.retrieve.sources.rows import ID, VECTORS, Row, RowReader, open_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from matryo.retrieve.sources.source import Columns, Source

__all__ = ["first_lines", "open_lines"]

_PAYLOAD = "payload"
_EXAMPLE = '{"id": "a", "vector": [0.1, 0.2], "payload": {"year": 2021}}'


def first_lines(lines: Iterable[bytes]) -> list[bytes]:
    """The first of ``lines`` that is not blank, and the blank lines before it."""
    first = []
    for line in lines:
        first.append(line)
        if line.strip():
            break
    return first


def open_lines(name: str, first: list[bytes], read_lines: Callable[[], Iterable[bytes]], columns: Columns) -> Source:
    """The rows of a file; ``first`` are its :func:`first_lines`, which ``read_lines`` gives again."""
    if not any(line.strip() for line in first):
        raise InputError(f"{name} must hold a vector", got="no line", cure=f"write one object per line: {_EXAMPLE}")
    return open_rows(_JsonLines(name, columns), _numbered(first), lambda: _numbered(read_lines()))


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


class _JsonLines(RowReader):
    def parse(self, record: bytes, line: int) -> Row:
        try:
            fields = json.loads(record.strip())
        except (ValueError, RecursionError) as error:
            # The decoder's own line number is always 1.
            why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise self.refused(line, "a line must be JSON", why, "fix or drop that line") from error
        if not isinstance(fields, dict):
            raise self.refused(line, "a line must be a JSON object", f"{fields!r:.40}", f"for example {_EXAMPLE}")
        key = self.columns.vector or next((name for name in VECTORS if name in fields), None)
        if key not in fields:
            wanted = f'"{key}"' if key else '"vector" or "embedding"'
            got = ", ".join(fields) or "no keys"
            cure = "specify the key: --vector-column NAME"
            raise self.refused(line, f"a line must have the key {wanted}", f"{got:.80}", cure)
        vector = self.as_vector(fields.pop(key), line)
        id = self._as_id(fields, line)
        inner = fields.pop(_PAYLOAD, None)
        if inner is not None and not isinstance(inner, dict):
            raise self.refused(line, "a payload must be an object", f"{inner!r:.40}", 'wrap it: {"text": …}')
        return Row(vector, id, self.columns.payload_of({**(inner or {}), **fields}))

    def _as_id(self, fields: dict[str, Any], line: int) -> int | str | None:
        key = self.columns.id or ID
        id = fields.pop(key, None)
        if id is None and self.columns.id is not None:
            cure = "give each line an id"
            raise self.refused(line, f'a line must have the key "{key}"', ", ".join(fields)[:80], cure)
        if id is None or (isinstance(id, int | str) and not isinstance(id, bool)):
            return id
        raise self.refused(line, "an id must be an integer or a string", f"{id!r:.40}", "convert it")
