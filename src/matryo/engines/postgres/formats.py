"""Formats of PostgreSQL and pgvector: binary COPY, vectors, identifiers, literals, and the size of an HNSW index.

>>> rows = np.array([[1.5, -2]], "f4")
>>> buffer = copied([7], rows, ['{"a": 1}'])
>>> [(ids.tolist(), vectors.tolist()) for ids, vectors in parsed([HEADER + copied([7], rows, None) + END], 2, False)]
[([7], [[1.5, -2.0]])]
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
END = struct.pack(">h", -1)
_CHUNK = 8 << 20   # bytes that are parsed together
_PAGE = 8192 - 24 - 8   # bytes of a page less its header and its special space


def binary(vector: Any) -> bytes:
    """A vector in the binary form of pgvector."""
    data: bytes = vector.astype(">f4").tobytes()
    return struct.pack(">hh", len(vector), 0) + data


def copied(ids: Sequence[Any], vectors: Any, payload: Sequence[str | None] | None, key_format: str = ">q") -> bytes:
    """Rows (id, vector, payload) of a binary COPY, without header; without ``payload``, rows have two fields.

    ``key_format`` is the form of integer ids, for struct.
    """
    data = np.ascontiguousarray(vectors, ">f4")
    dim, parts = data.shape[1], []
    before = struct.pack(">ihh", 4 + 4 * dim, dim, 0)
    start = struct.pack(">h", 2 if payload is None else 3)
    for number, id in enumerate(ids):
        key = struct.pack(key_format, id) if isinstance(id, int) else id.encode()
        parts += [start, struct.pack(">i", len(key)), key, before, data[number].tobytes()]
        if payload is not None:
            text = payload[number]
            value = b"" if text is None else b"\x01" + text.encode()
            parts += [struct.pack(">i", -1 if text is None else len(value)), value]
    return b"".join(parts)


def parsed(blocks: Iterable[bytes], dim: int, text_ids: bool) -> Iterator[tuple[Any, Any]]:
    """Ids and vectors [n, dim] of a binary COPY of (bigint or text, vector)."""
    buffer, first = bytearray(), True
    for block in blocks:
        buffer += block
        if first and len(buffer) >= len(HEADER):
            del buffer[: len(HEADER)]
            first = False
        if len(buffer) > _CHUNK:
            yield _rows(buffer, dim, text_ids)
    found = _rows(buffer, dim, text_ids)
    if len(found[0]):
        yield found


def _rows(buffer: bytearray, dim: int, text_ids: bool) -> tuple[Any, Any]:
    """The whole rows of ``buffer``, which are removed from it."""
    vector = [("size", ">i4"), ("dim", ">i2"), ("zero", ">i2"), ("vector", ">f4", (dim,))]
    if not text_ids:
        dtype = np.dtype([("fields", ">i2"), ("length", ">i4"), ("id", ">i8"), *vector])
        count = len(buffer) // dtype.itemsize
        rows = np.frombuffer(bytes(buffer[: count * dtype.itemsize]), dtype)
        del buffer[: count * dtype.itemsize]
        return rows["id"].astype(np.int64), rows["vector"].astype(np.float32)
    tail, at, ids, vectors = 8 + 4 * dim, 0, [], []
    while at + 6 <= len(buffer):
        fields, length = struct.unpack_from(">hi", buffer, at)
        end = at + 6 + length + tail
        if fields < 0 or end > len(buffer):
            break
        ids.append(bytes(buffer[at + 6 : at + 6 + length]).decode())
        vectors.append(np.frombuffer(bytes(buffer[end - 4 * dim : end]), ">f4"))
        at = end
    del buffer[:at]
    array = np.empty(len(ids), object)
    array[:] = ids
    return array, np.array(vectors, np.float32).reshape(len(ids), dim)


def index_bytes(count: int, dim: int, *, half: bool, links: int = 16) -> int:
    """The size of an HNSW index: an element and its neighbours share a page, which holds whole pairs.

    >>> index_bytes(100_000, 64, half=True) / 2**20 < 60
    True
    """
    element = _aligned(72 + 8 + (2 if half else 4) * dim)
    neighbours = _aligned(4 + 6 * 2 * links)
    pair = element + neighbours + 8
    if pair > _PAGE:
        return count * 2 * 8192
    upper = count // links * _aligned(4 + 6 * 3 * links)
    return (-(-count // (_PAGE // pair))) * 8192 + upper - upper % 8192


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def quoted(name: str) -> str:
    """An identifier in quotes.

    >>> print(quoted('a"b'))
    "a""b"
    """
    if "\0" in name or not name:
        raise InputError("a name must have characters, and none of them NUL", got=repr(name), cure="correct it")
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string constant, whatever the setting of standard_conforming_strings.

    >>> print(literal("it's"), len(literal(chr(92))))
    'it''s' 5
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'" if "\\" not in text else "E'" + doubled.replace("\\", "\\\\") + "'"
