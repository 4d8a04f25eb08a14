"""The header of SQLite's index of the write-ahead log: 48 bytes in shared memory that change with each commit.

SQLite compares these bytes to learn whether a connection must read anew (https://sqlite.org/walformat.html, section
2.1). They hold a counter of transactions and the checksum of the last frame of the log, and a commit writes them before
it returns. Reading them here takes 0.1 µs; ``PRAGMA data_version`` makes the same comparison, but takes a lock of the
file and gives it back, 4 µs in all.

The bytes are mapped through the descriptor that SQLite has opened. Opening the file once more, and closing it, would
release the locks that SQLite holds in this process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from matryo.mapped import map_shared

_BYTES = 48   # the second copy of the header follows
_VERSION = 3_007_000   # of the format, in the first four bytes
_DESCRIPTORS = Path("/dev/fd")


def map_log_header(path: Path) -> memoryview | None:
    """The header in the file ``path``, which SQLite has opened in this process; None where the system has no way."""
    try:
        for entry in _DESCRIPTORS.iterdir():
            header = _mapped(int(entry.name), path)
            if header is not None:
                known = int.from_bytes(header[:4], sys.byteorder) == _VERSION
                return header if known else None
    except (OSError, ValueError):   # no such folder, or no such file: the log's index is in no file
        pass
    return None


def _mapped(descriptor: int, path: Path) -> memoryview | None:
    if not _is_of(descriptor, path):
        return None
    header = map_shared(descriptor, _BYTES)
    return header if _is_of(descriptor, path) else None   # a thread may have opened another file in its place


def _is_of(descriptor: int, path: Path) -> bool:
    try:
        found = os.fstat(descriptor)
    except OSError:   # closed since it was listed
        return False
    return os.path.samestat(found, path.stat()) and found.st_size >= _BYTES
