"""Verification: every checksum of a store, and the consistency of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.errors import IndexFolderError
from matryo.retrieve.store.guides import verify_guide
from matryo.retrieve.store.segments.segment import open_segment, verify_segment
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.sql.database import Database


def verify(root: Path, database: Database, about: About) -> None:
    """Read every byte of the current commit; raise an error that names the damaged file."""
    problems = [line for (line,) in database.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise IndexFolderError.damaged(database.path, problems[0])
    if records.read_about(database) != about:
        raise IndexFolderError.damaged(database.path, "the record 'about'")
    for record in records.read_segments(database):
        verify_segment(root, record)
    for guide in records.read_guides(database):
        verify_guide(root, guide)
    _check_items(root, database, about)


def _check_items(root: Path, database: Database, about: About) -> None:
    """Check that every live row has exactly one vector and one record."""
    state = records.read_state(database)
    alive, total = [], 0
    for item in records.items(database):
        alive.append(item.row)
        total += item.crc
    if (len(alive), total) != (state.count, state.total):
        found = f"{len(alive)} items that differ from the {state.count} committed ones"
        raise IndexFolderError.damaged(database.path, found)
    parts = [np.asarray(open_segment(root, record).rows) for record in records.read_segments(database)]
    stored = np.concatenate([*parts, records.read_pending(database, about).rows])
    dead = records.read_dead(database)
    if not np.array_equal(np.setdiff1d(stored, dead), alive) or len(np.unique(stored)) != len(stored):
        raise IndexFolderError.damaged(database.path, "live rows and rows with vectors differ")
    if not np.isin(dead, stored).all():
        raise IndexFolderError.damaged(database.path, "tombstones of rows that do not exist")
