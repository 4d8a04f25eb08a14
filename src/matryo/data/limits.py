"""Limits on what a small file may expand to in memory: data from elsewhere could otherwise exhaust it.

They are checked from headers or while reading, before the memory is needed. The environment variable
``MATRYO_UNLIMITED=1`` switches them off, for files that are trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from matryo.errors import DataError, ImageError

PIXELS = 64_000_000   # per image: 192 MB when decoded
LINE = 256 << 20   # bytes per line of a file of texts
EXPANDED = 1 << 30   # bytes that a compressed file or array may expand to, or
RATIO = 100   # times its size, if that is more: texts reach 10, and images less

_CURE = "check where it comes from; if you trust it, set MATRYO_UNLIMITED=1"


def check_pixels(name: str, height: int, width: int) -> None:
    """Raise if an image is too large to be decoded."""
    if height * width > PIXELS and _limited():
        raise ImageError(f"image {name} must have at most {PIXELS:,} pixels", got=f"{width} × {height}", cure=_CURE)


def bounded_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Iterate over the lines of ``file``, which may be a gzip file; raise before too much of it is in memory."""
    longest, stored, read = (LINE + 1 if _limited() else -1), os.fstat(file.fileno()).st_size, 0
    most = max(EXPANDED, RATIO * stored)
    while line := file.readline(longest):
        read += len(line)
        if len(line) == longest:
            raise DataError(f"{name}: a line must have at most {LINE:,} bytes", got="a longer one", cure=_CURE)
        if read > most:
            check_expansion(name, read, stored)
        yield line


def check_expansion(name: str, expanded: int, stored: int) -> None:
    """Raise if ``stored`` bytes expand to too many."""
    if expanded > max(EXPANDED, RATIO * stored) and _limited():
        rule = f"{name} must expand to at most {EXPANDED >> 30} GiB, or {RATIO} times its size"
        raise DataError(rule, got=f"{stored:,} bytes that expand to {expanded:,} or more", cure=_CURE)


def _limited() -> bool:
    return os.environ.get("MATRYO_UNLIMITED", "") in ("", "0")
