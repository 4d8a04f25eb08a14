"""Guides of segments: folders beside the vectors that lead a search. All of them can be made again from these.

A guide counts once its record is committed, as a segment does, and goes when its segment goes.
"""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

from matryo.errors import EmbeddingsError, IndexFolderError
from matryo.files import sha256, storage
from matryo.retrieve.store.damage import damaged
from matryo.retrieve.store.sql.records import GuideRecord
from matryo.retrieve.vectors.array_folder import verify_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

__all__ = ["place_of", "sweep_guides", "verify_guide", "write_guide"]

_GUIDES = "guides"


def place_of(root: Path, name: str) -> Path:
    """The folder of a guide."""
    return root / _GUIDES / name


def write_guide(
    root: Path, segment: str, kind: str, fields: Mapping[str, Any], write: Callable[[Path], None]
) -> GuideRecord:
    """Have a guide written to a new folder; it counts when the record is committed."""
    name = f"{kind}-{secrets.token_hex(8)}"   # never used again, so no reader can take one for another
    place = place_of(root, name)
    with storage(place):
        place.parent.mkdir(exist_ok=True)
        write(place)
    return GuideRecord(name, segment, kind, dict(fields), sha256(place / f"{kind}.json"))


def verify_guide(root: Path, record: GuideRecord) -> None:
    """Read every byte of a guide and raise, naming the file, where a checksum differs."""
    place, header = place_of(root, record.name), f"{record.kind}.json"
    if not (place / header).is_file() or sha256(place / header) != record.header:
        raise damaged(place / header, "other bytes than were written")
    try:
        verify_arrays(place, header)
    except EmbeddingsError as error:
        raise IndexFolderError(str(error)) from error


def sweep_guides(root: Path, records: Sequence[GuideRecord]) -> None:
    """Remove the folders that no record names: left by a kill, or replaced."""
    known = {record.name for record in records}
    for entry in (root / _GUIDES).glob("*"):
        if entry.is_dir() and entry.name not in known:
            shutil.rmtree(entry, ignore_errors=True)
