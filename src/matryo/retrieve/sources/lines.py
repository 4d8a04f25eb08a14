"""Vectors from JSON lines: one object per line, with a vector, an optional id and a payload."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.files import parse_json
from matryo.retrieve.sources.rows import ID, VECTORS, Row, as_vector, open_rows, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from matryo.retrieve.sources.source import Columns, Source

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


def open_lines(
    name: str, first: list[bytes], read_lines: Callable[[], Iterable[bytes]], columns: Columns, file: Path | None = None
) -> Source:
    """The rows of a file; ``first`` are its :func:`first_lines`, which ``read_lines`` gives again."""
    if not any(line.strip() for line in first):
        raise InputError(f"{name} must hold a vector", got="no line", cure=f"write one object per line: {_EXAMPLE}")
    records = (len(first), first[-1]), lambda: _numbered(read_lines())
    return open_rows(name, *records, partial(_parse, columns), file)


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _parse(columns: Columns, record: bytes, place: str) -> Row:
    try:
        fields = parse_json(record.strip())
    except (ValueError, RecursionError) as error:
        # The decoder's own line number is always 1.
        why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise refused(place, "a line must be JSON", why, "fix or drop that line") from error
    if not isinstance(fields, dict):
        raise refused(place, "a line must be a JSON object", f"{fields!r:.40}", f"for example {_EXAMPLE}")
    key = columns.vector or next((name for name in VECTORS if name in fields), None)
    if key not in fields:
        wanted = f'"{key}"' if key else '"vector" or "embedding"'
        got = ", ".join(fields) or "no keys"
        cure = "specify the key: --vector-column NAME"
        raise refused(place, f"a line must have the key {wanted}", f"{got:.80}", cure)
    vector = as_vector(fields.pop(key), place)
    id = _as_id(columns, fields, place)
    inner = fields.pop(_PAYLOAD, None)
    if inner is not None and not isinstance(inner, dict):
        raise refused(place, "a payload must be an object", f"{inner!r:.40}", 'wrap it: {"text": …}')
    return Row(vector, id, columns.payload_of({**(inner or {}), **fields}))


def _as_id(columns: Columns, fields: dict[str, Any], place: str) -> int | str | None:
    key = columns.id or ID
    id = fields.pop(key, None)
    if id is None and columns.id is not None:
        raise refused(place, f'a line must have the key "{key}"', ", ".join(fields)[:80], "give each line an id")
    if id is None or (isinstance(id, int | str) and not isinstance(id, bool)):
        return id
    raise refused(place, "an id must be an integer or a string", f"{id!r:.40}", "convert it")
