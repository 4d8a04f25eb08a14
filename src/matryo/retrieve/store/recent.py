"""Recent rows, which are in no segment yet: a segment in memory that grows from commit to commit.

A program that adds and searches in turn reads each recent row once. Earlier snapshots stay unchanged: new rows are
written behind theirs, in the spare room of a buffer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from matryo.arrays import appended
from matryo.retrieve.store.filters.masks import extended
from matryo.retrieve.store.filters.selection import Selection
from matryo.retrieve.store.segments.segment import Ids, Segment
from matryo.retrieve.store.sql import records
from matryo.retrieve.vectors.blocks import Blocks

if TYPE_CHECKING:
    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.segments.pieces import Piece
    from matryo.retrieve.store.sql.database import Database


def read_recent(database: Database, about: About, before: Segment | None) -> Segment | None:
    """The recent rows; None if there are none. ``before`` is the result for an earlier commit, which is extended once.

    Without int8 copies: their scale would change with every row, and searches read full precision instead.
    """
    after = -1 if before is None else int(before.rows[-1])
    new = records.read_pending(database, about, after)
    if before is not None and before.live + len(new.rows) != records.count_pending(database):
        # Rows were deleted, or are in a segment now. New rows have new numbers, so the count tells.
        alive = np.isin(before.rows, records.pending_rows(database))
        if 2 * np.count_nonzero(alive) < len(alive):
            return read_recent(database, about, None)
        before = replace(before, alive=Selection.of_mask(alive))
    return with_rows(before, about, new)


def with_rows(before: Segment | None, about: About, new: Piece) -> Segment | None:
    """The recent rows ``before``, which can be extended once, and ``new`` ones."""
    if not len(new.rows):
        return before
    ids, count = Ids.of(new.ids), len(new.rows)
    if before is None:
        blocks = Blocks.of(new.vectors, about.stored, dtype=about.dtype)
        return Segment(blocks, new.rows, ids, parts=extended((), count))
    start = 0 if ids.text is None else before.ids.numbers[-1]
    text = None if before.ids.text is None or ids.text is None else appended(before.ids.text, ids.text)
    return Segment(
        before.blocks.extended(new.vectors),
        appended(before.rows, new.rows),
        Ids(appended(before.ids.numbers, ids.numbers + start), text),
        None if before.alive is None else Selection.of_mask(np.append(before.alive.mask, np.ones(count, np.bool_))),
        parts=extended(before.parts, count),
    )
