"""The seal of a checkpoint: the SHA-256 of the whole safetensors file, stored in its own metadata.

The checksum lies inside the file that it protects, so that both are replaced at once. It is computed with zeros in its
place. Checkpoints are checked without torch.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from matryo.errors import RunError
from matryo.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FACTS = "facts"   # the metadata of a checkpoint: JSON
UNSEALED = {"sha256": "0" * 64}   # the further metadata of a file before it is sealed
_CHUNK = 1 << 20


def sealed(data: bytes) -> tuple[bytes, memoryview]:
    """Return the header and the tensors of a safetensors file with the metadata ``UNSEALED``, with its checksum."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = data[:end].replace(_entry(UNSEALED["sha256"]), _entry(hashlib.sha256(data).hexdigest()))
    assert header != data[:end], "the metadata lack UNSEALED"
    return header, memoryview(data)[end:]


def read_facts(path: Path) -> dict[str, Any]:
    """The ``facts`` of a checkpoint, from its header; the tensors are not read."""
    try:
        with path.open("rb") as file:
            facts: dict[str, Any] = parse_json(_read_header(file)[1][FACTS])
        return facts
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def check_seal(path: Path, progress: Callable[[int], object] = int) -> bool:
    """Read every byte of a checkpoint and raise if one is damaged; ``progress`` is called with numbers of bytes read.

    Returns False for a checkpoint that was written before there were checksums: only its structure is checked.
    """
    read_facts(path)
    with path.open("rb") as file:
        header, metadata = _read_header(file)
        if metadata.keys() == {FACTS}:   # if the name of the checksum is damaged, there is another key
            return False
        stored = str(metadata.get("sha256"))
        digest = hashlib.sha256(header.replace(_entry(stored), _entry(UNSEALED["sha256"])))
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(len(chunk))
    if digest.hexdigest() != stored:
        raise _damaged(path, "other bytes than were written")
    return True


def _read_header(file: BinaryIO) -> tuple[bytes, dict[str, str]]:
    """Read the header of a safetensors file, and its metadata; the tensors must end where the file ends."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size:
        raise ValueError(f"{size} bytes, less than the header")
    header = file.read(length)
    entries = parse_json(header)
    metadata: dict[str, str] = entries.pop("__metadata__", {})
    if FACTS not in metadata:
        raise ValueError("no facts in it")
    end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if size != end:
        raise ValueError(f"{size} bytes instead of {end}")
    return start + header, metadata


def _entry(digest: str) -> bytes:
    # Quotes inside other metadata are escaped, so this occurs once.
    return f'"sha256":"{digest}"'.encode(errors="surrogatepass")


def _damaged(path: Path, got: object) -> RunError:
    cure = "restore it from a backup, or delete it: an unfinished run starts over then, a complete one is not affected"
    return RunError(f"{path} is damaged", got=got, cure=cure)
