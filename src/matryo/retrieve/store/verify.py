"""Verification: every checksum of a store, and the consistency of its parts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from matryo.errors import IndexFolderError
from matryo.retrieve.store.guides import verify_guide
from matryo.retrieve.store.segments.segment import verify_segment
from matryo.retrieve.store.snapshot import Loaded, load
from matryo.retrieve.store.sql import records, rotations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.segments.segment import Segment
    from matryo.retrieve.store.sql.database import Database

_STEP = 1 << 16   # rows compared at a time


def verify(root: Path, database: Database, about: About) -> None:
    """Read every byte of the current commit; raise an error that names the damaged file."""
    problems = [line for (line,) in database.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise IndexFolderError.damaged(database.path, problems[0])
    if records.read_about(database) != about:
        raise IndexFolderError.damaged(database.path, "the record 'about'")
    rotations.read(database)   # its checksum
    for record in records.read_segments(database):
        verify_segment(root, record)
    for guide in records.read_guides(database):
        verify_guide(root, guide)
    state, count, total = records.read_state(database), 0, 0
    for item in records.items(database):
        count += 1
        total += item.crc
    if (count, total) != (state.count, state.total):
        found = f"{count} items that differ from the {state.count} committed ones"
        raise IndexFolderError.damaged(database.path, found)
    segments = load(root, about, database, Loaded()).segments
    check_items(database, segments)
    if sum(len(segment) - segment.live for segment in segments) != len(records.read_dead(database)):
        raise IndexFolderError.damaged(database.path, "tombstones of rows that do not exist")


def verify_copied(
    root: Path, database: Database, listed: Sequence[records.Record], segments: Sequence[Segment]
) -> None:
    """Read every byte of consecutive segments whose rows are about to be copied: a copy has checksums of its own.

    ``listed`` are the records of the ``segments``, which may end with the recent rows.
    """
    for record in listed:
        verify_segment(root, record)
    if segments:
        check_items(database, segments, int(segments[0].rows[0]), int(segments[-1].rows[-1]))


def check_items(database: Database, segments: Sequence[Segment], *between: int) -> None:
    """Check that the live rows of ``segments`` are the items ``between`` two row numbers, with the same ids."""
    items = records.row_ids(database, *between)
    for segment in segments:
        positions = segment.positions
        for start in range(0, len(positions), _STEP):
            at = positions[start : start + _STEP]
            stored = list(zip(segment.rows[at].tolist(), segment.ids.take(at).tolist(), strict=True))
            if list(islice(items, len(at))) != stored:
                raise IndexFolderError.damaged(database.path, "live rows and rows with vectors differ")
    if next(items, None) is not None:
        raise IndexFolderError.damaged(database.path, "live rows without vectors")
