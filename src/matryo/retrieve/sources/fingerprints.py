"""The fingerprint of a file, by which a source is recognised that was added before.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "a"
>>> _ = path.write_bytes(b"one")
>>> before = fingerprint(path)
>>> _ = path.write_bytes(b"one, two")
>>> fingerprint(path) == before, fingerprint(path, 3) == before
(False, True)
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from matryo.files import storage

_PART = 1 << 20
_PARTS = 64   # of a larger file, as many parts at even distances are read: 64 MiB take about 0.1 s


def fingerprint(path: Path, size: int | None = None) -> str:
    """A SHA-256 of the size of a file and its content, or of its first ``size`` bytes; large files are sampled."""
    with storage(path, "read"), path.open("rb") as file:
        size = path.stat().st_size if size is None else size
        digest = hashlib.sha256(f"{size}\0".encode())
        if size <= _PARTS * _PART:
            starts = range(0, size, _PART)
        else:
            starts = [part * (size - _PART) // (_PARTS - 1) for part in range(_PARTS)]   # type: ignore[assignment]
        for start in starts:
            file.seek(start)
            digest.update(file.read(min(_PART, size - start)))
    return digest.hexdigest()
