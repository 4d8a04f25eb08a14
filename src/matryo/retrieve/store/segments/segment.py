"""A segment: rows that never change, in a folder of their own that counts once its record is committed.

``blocks/`` has the vectors, ``rows.npy`` the number of each row, rising, and ``ids.npy`` the ids; ids that are
strings lie end to end in ``ids.txt``, and ``ids.npy`` says where each ends.
"""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings.manifest import FileRecord
from matryo.errors import EmbeddingsError, IndexFolderError
from matryo.files import replacing, sha256, storage, sync_folder
from matryo.retrieve.store.damage import damaged
from matryo.retrieve.store.sql.records import Record
from matryo.retrieve.vectors.blocks import HEADER, Blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.segments.pieces import Piece

    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Rows = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Ids", "Limits", "Segment", "open_segment", "sweep", "verify_segment", "write_segment"]

_SEGMENTS = "segments"
_BLOCKS, _ROWS, _IDS, _TEXT = "blocks", "rows.npy", "ids.npy", "ids.txt"
_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Limits:
    """When vectors leave SQLite for a segment, and how large a segment may be."""

    pending_bytes: int = 4 << 20
    segment_bytes: int = 1 << 30


@dataclass(frozen=True, eq=False)
class Ids:
    """The id of each row, read when asked for: a million strings stay in their file."""

    numbers: Rows
    """The ids themselves, or where the text of each ends."""
    text: Array | None = None
    """UTF-8, end to end."""

    @classmethod
    def of(cls, ids: Sequence[int] | Sequence[str]) -> Ids:
        """The ids of rows in memory."""
        words = [one.encode() for one in ids if isinstance(one, str)]
        if not words:
            return cls(np.array(ids, np.int64))
        return cls(np.cumsum([len(word) for word in words]), np.frombuffer(b"".join(words), np.uint8))

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, positions: Any) -> Array:
        """The ids at some positions (an array of integers of any shape): int64, or text."""
        where = np.asarray(positions, np.int64)
        if self.text is None:
            return np.asarray(self.numbers[where])
        starts = np.where(where > 0, self.numbers[where - 1], 0).ravel().tolist()
        ends = self.numbers[where].ravel().tolist()
        words = [self.text[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True)]
        return np.array(words, np.str_).reshape(where.shape)


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows that never change: their vectors in blocks, their numbers and their ids; and which of them count."""

    blocks: Blocks
    rows: Rows
    """The number of each row: rising, given once, in the order of insertion."""
    ids: Ids
    alive: Bools | None = None
    """Which rows count; None where all do."""
    guides: Mapping[str, Path] = field(default_factory=dict)
    """The folders of its guides, by kind."""

    @property
    def positions(self) -> Rows:
        """Where the rows lie that count."""
        return np.arange(len(self)) if self.alive is None else np.flatnonzero(self.alive)

    def __len__(self) -> int:
        return len(self.rows)


def write_segment(root: Path, about: About, piece: Piece) -> Record:
    """Write rows to a new folder under ``root``, durably; they count when the record is committed."""
    vectors, rows, ids = piece
    name = secrets.token_hex(8)   # never used again, so no reader can take one segment for another
    place = root / _SEGMENTS / name
    blocks = Blocks.of(vectors, about.nesting, dtype=about.dtype, int8_up_to=about.int8_up_to)
    known = Ids.of(ids)
    try:
        with storage(place):
            place.mkdir(parents=True)
            blocks.write(place / _BLOCKS)
            for file, array in ((_ROWS, rows), (_IDS, known.numbers)):
                with replacing(place / file) as out:
                    np.lib.format.write_array(out, array, allow_pickle=False)
            if known.text is not None:
                with replacing(place / _TEXT) as out:
                    out.write(known.text.data)
            for folder in (place, place.parent, root):
                sync_folder(folder)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    # The header of the blocks has the checksums of theirs.
    files = (f"{_BLOCKS}/{HEADER}", _ROWS, _IDS, *([_TEXT] if known.text is not None else []))
    records = {file: FileRecord((place / file).stat().st_size, sha256(place / file)) for file in files}
    return Record(name, int(rows[0]), len(rows), records)


def open_segment(root: Path, record: Record) -> Segment:
    """Map a segment's files; only sizes are checked, :func:`verify_segment` reads every byte."""
    place = root / _SEGMENTS / record.name
    for file, known in record.files.items():
        size = (place / file).stat().st_size if (place / file).is_file() else None
        if size != known.size:
            raise damaged(place / file, "no such file" if size is None else f"{size} bytes instead of {known.size}")
    text = np.memmap(place / _TEXT, np.uint8, mode="r") if _TEXT in record.files else None
    ids = Ids(_mapped(place / _IDS, record.rows), text)
    try:
        blocks = Blocks.open(place / _BLOCKS)
    except EmbeddingsError as error:
        raise IndexFolderError(str(error)) from error
    segment = Segment(blocks, _mapped(place / _ROWS, record.rows), ids)
    if segment.blocks.count != record.rows:
        raise damaged(place / _BLOCKS, f"{segment.blocks.count} rows instead of {record.rows}")
    return segment


def verify_segment(root: Path, record: Record) -> None:
    """Read every byte of a segment and raise, naming the file, where a checksum differs."""
    place = root / _SEGMENTS / record.name
    for file, known in record.files.items():
        if not (place / file).is_file() or sha256(place / file) != known.sha256:
            raise damaged(place / file, "other bytes than were written")
    try:
        Blocks.verify(place / _BLOCKS)
    except EmbeddingsError as error:
        raise IndexFolderError(str(error)) from error


def sweep(root: Path, records: Sequence[Record]) -> None:
    """Remove the folders that no record names: left by a kill, or compacted away."""
    known = {record.name for record in records}
    for entry in (root / _SEGMENTS).glob("*"):
        if entry.is_dir() and _NAME.fullmatch(entry.name) and entry.name not in known:
            shutil.rmtree(entry, ignore_errors=True)


def _mapped(path: Path, count: int) -> Rows:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:   # a damaged header gets errors of every kind out of numpy's parser
        raise damaged(path, error) from error
    if array.shape != (count,) or array.dtype != np.int64:
        raise damaged(path, f"{array.dtype} {array.shape}, which its record contradicts")
    return array
