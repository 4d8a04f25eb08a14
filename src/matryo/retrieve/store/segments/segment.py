"""A segment: an immutable folder of rows, which is part of the index once its record is committed.

``blocks/`` holds the vectors, ``rows.npy`` the row numbers in increasing order, and ``ids.npy`` the ids. String ids are
concatenated in ``ids.txt``, and ``ids.npy`` holds the end offset of each.
"""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings.manifest import FileRecord
from matryo.errors import EmbeddingsError, IndexFolderError
from matryo.files import new_file, sha256, storage, sync_folder
from matryo.mapped import map_bytes, map_npy
from matryo.retrieve.store.filters.masks import Part
from matryo.retrieve.store.filters.selection import Selection
from matryo.retrieve.store.sql.records import Record
from matryo.retrieve.vectors.array_folder import write_array
from matryo.retrieve.vectors.blocks import HEADER, Blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.segments.pieces import Piece
    from matryo.retrieve.vectors.types import Array, Indices


SEGMENTS = "segments"
_BLOCKS, _ROWS, _IDS, _TEXT = "blocks", "rows.npy", "ids.npy", "ids.txt"
_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Limits:
    """How many bytes of vectors stay in SQLite before they become a segment, and the maximum size of a segment."""

    pending_bytes: int = 4 << 20
    segment_bytes: int = 1 << 30


@dataclass(frozen=True, eq=False)
class Ids:
    """The id of each row, read on demand: string ids stay in their file."""

    numbers: Indices
    """The integer ids, or the end offset of each string id."""
    text: Array | None = None
    """The string ids as UTF-8, concatenated; None for integer ids."""
    path: Path | None = None
    """The folder of their files, for errors."""

    @classmethod
    def of(cls, ids: Sequence[int] | Sequence[str]) -> Ids:
        """``ids`` in this form, in memory."""
        words = [id.encode() for id in ids if isinstance(id, str)]
        if not words:
            return cls(np.array(ids, np.int64))
        return cls(np.cumsum([len(word) for word in words]), np.frombuffer(b"".join(words), np.uint8))

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, positions: Any) -> Any:
        """The ids at ``positions``, an integer or an array of any shape, as int64 or as str objects.

        Arrays of fixed-width text would give every id the width of the longest.
        """
        if self.text is None:
            return self.numbers[positions]
        where = np.asarray(positions, np.int64)
        starts, ends = np.where(where > 0, self.numbers[where - 1], 0).ravel(), self.numbers[where].ravel()
        out = np.empty(where.size, np.object_)
        try:
            if not ((starts >= 0) & (starts < ends) & (ends <= len(self.text))).all():
                raise ValueError("offsets outside the text")
            pairs = zip(starts.tolist(), ends.tolist(), strict=True)
            out[:] = [self.text[start:end].tobytes().decode() for start, end in pairs]
        except ValueError as error:   # also text that is not UTF-8
            raise IndexFolderError.damaged(self.path, f"{_IDS} and {_TEXT}: {error}") from error
        return out.reshape(where.shape) if where.ndim else out[0]


@dataclass(frozen=True, eq=False)
class Segment:
    """Immutable rows: their vectors in blocks, their row numbers and ids, and which of them are alive."""

    blocks: Blocks
    rows: Indices
    """Row numbers, in the order of insertion: unique and increasing."""
    ids: Ids
    alive: Selection | None = None
    """The rows that are alive; None if all are."""
    guides: Mapping[str, Path] = field(default_factory=dict)
    """The folder of each guide, by kind."""
    parts: tuple[Part, ...] = ()
    """The columns of payload fields, which snapshots share."""
    name: str = ""
    """The name of its folder; empty for recent rows, which are in no folder."""

    @cached_property
    def live(self) -> int:
        """The number of live rows."""
        return len(self) if self.alive is None else self.alive.size

    @property
    def positions(self) -> Indices:
        """The positions of the live rows."""
        return np.arange(len(self)) if self.alive is None else self.alive.positions

    def __len__(self) -> int:
        return len(self.rows)


def segment_folder(root: Path, name: str) -> Path:
    """Return the folder of a segment."""
    return root / SEGMENTS / name


def write_segment(root: Path, about: About, piece: Piece) -> Record:
    """Write rows durably to a new folder under ``root``, and return the record to commit."""
    vectors, rows, ids = piece
    name = secrets.token_hex(8)   # never reused: a reader cannot take a new segment for an old one
    folder = segment_folder(root, name)
    blocks = Blocks.of(vectors, about.stored, dtype=about.dtype, int8_up_to=about.int8_up_to)
    stored_ids = Ids.of(ids)
    try:
        with storage(folder):
            # Without parents: a root that was moved away meanwhile must not come back.
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir()
            blocks.write(folder / _BLOCKS)
            for file, array in ((_ROWS, rows), (_IDS, stored_ids.numbers)):
                write_array(folder / file, array)
            if stored_ids.text is not None:
                with new_file(folder / _TEXT) as out:
                    out.write(stored_ids.text.data)
            for changed in (folder, folder.parent, root):
                sync_folder(changed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # The header of the blocks contains the checksums of the block files.
    files = (f"{_BLOCKS}/{HEADER}", _ROWS, _IDS, *([_TEXT] if stored_ids.text is not None else []))
    records = {file: FileRecord((folder / file).stat().st_size, sha256(folder / file)) for file in files}
    return Record(name, int(rows[0]), len(rows), records)


def open_segment(root: Path, record: Record) -> Segment:
    """Memory-map a segment. Only file sizes are checked; :func:`verify_segment` reads every byte."""
    folder = segment_folder(root, record.name)
    for file, expected in record.files.items():
        size = (folder / file).stat().st_size if (folder / file).is_file() else None
        if size != expected.size:
            found = "no such file" if size is None else f"{size} bytes instead of {expected.size}"
            raise IndexFolderError.damaged(folder / file, found)
    text = map_bytes(folder / _TEXT) if _TEXT in record.files else None
    ids = Ids(_mapped(folder / _IDS, record.rows), text, folder)
    try:
        blocks = Blocks.open(folder / _BLOCKS)
    except EmbeddingsError as error:
        raise IndexFolderError(str(error)) from error
    parts = (Part(0, record.rows),)
    segment = Segment(blocks, _mapped(folder / _ROWS, record.rows), ids, parts=parts, name=record.name)
    if segment.blocks.count != record.rows:
        raise IndexFolderError.damaged(folder / _BLOCKS, f"{segment.blocks.count} rows instead of {record.rows}")
    if segment.rows[0] != record.first or segment.rows[-1] - segment.rows[0] < record.rows - 1:
        raise IndexFolderError.damaged(folder / _ROWS, f"rows {segment.rows[0]} to {segment.rows[-1]}")
    return segment


def verify_segment(root: Path, record: Record) -> None:
    """Read every byte of a segment; raise an error that names the file if a checksum differs."""
    folder = segment_folder(root, record.name)
    for file, expected in record.files.items():
        if not (folder / file).is_file() or sha256(folder / file) != expected.sha256:
            raise IndexFolderError.damaged(folder / file, "other bytes than were written")
    try:
        Blocks.verify(folder / _BLOCKS)
    except EmbeddingsError as error:
        raise IndexFolderError(str(error)) from error


def sweep(root: Path, records: Sequence[Record]) -> None:
    """Remove the folders without a record: segments that were replaced, or whose writer was killed."""
    for folder in _without_record(root, records):
        shutil.rmtree(folder, ignore_errors=True)


def remove_segments(root: Path, records: Sequence[Record]) -> None:
    """Remove segments that were written and not committed."""
    for record in records:
        shutil.rmtree(segment_folder(root, record.name), ignore_errors=True)


def set_aside(root: Path, records: Sequence[Record]) -> None:
    """Rename the folders without a record to ``lost-…``, which nothing removes."""
    for folder in _without_record(root, records):
        with storage(folder):
            folder.rename(folder.with_name(f"lost-{folder.name}"))


def _without_record(root: Path, records: Sequence[Record]) -> list[Path]:
    names, folder = {record.name for record in records}, root / SEGMENTS
    with storage(folder, "read"):
        entries = list(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in entries if _NAME.fullmatch(entry.name) and entry.name not in names]


def _mapped(path: Path, count: int) -> Indices:
    try:
        array = map_npy(path)
    except OSError:   # too many open files, for example: the file may be intact
        raise
    except Exception as error:   # numpy raises errors of many types for a damaged header
        raise IndexFolderError.damaged(path, error) from error
    if array.shape != (count,) or array.dtype != np.int64:
        raise IndexFolderError.damaged(path, f"{array.dtype} {array.shape} instead of int64 {(count,)}")
    return array
