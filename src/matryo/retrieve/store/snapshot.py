"""A snapshot: the rows of one commit, in immutable segments. Later writes do not change it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from matryo.errors import IndexFolderError
from matryo.retrieve.store.filters.masks import Cache
from matryo.retrieve.store.guides import guide_folder
from matryo.retrieve.store.recent import read_recent
from matryo.retrieve.store.segments.pieces import Piece
from matryo.retrieve.store.segments.segment import Segment, open_segment
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.filters.language import Condition
    from matryo.retrieve.store.sql.database import Database
    from matryo.retrieve.vectors.types import Array, Bools, Floats, Indices


_STEP_BYTES = 64 << 20
_RECENT = ""   # no segment has this name


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The rows of one commit. Segments are in the order of insertion."""

    path: Path
    """The folder of the index, for errors."""
    about: About
    segments: tuple[Segment, ...]

    @property
    def count(self) -> int:
        """The number of live rows."""
        return sum(segment.live for segment in self.segments)

    @cached_property
    def text_ids(self) -> bool:
        """Whether ids are strings; False in an empty snapshot."""
        return any(segment.ids.text is not None for segment in self.segments)

    def ids(self) -> Array:
        """The ids of all live rows in the order of insertion, as int64 or as str objects."""
        parts = [segment.ids.take(segment.positions) for segment in self.segments]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def vectors(self, rows: Indices) -> Floats:
        """The vectors of existing row numbers, as float32 [rows, d]."""
        out = np.empty((len(rows), self.about.nesting.dim), np.float32)
        missing = np.ones(len(rows), np.bool_)
        for segment in self.segments:
            at = np.minimum(np.searchsorted(segment.rows, rows), len(segment) - 1)
            here = np.flatnonzero(segment.rows[at] == rows)
            out[here] = segment.blocks.rows(at[here], self.about.nesting.dim)
            missing[here] = False
        if missing.any():
            raise IndexFolderError.damaged(self.path, f"no vector of row {rows[missing][0]}")
        return out

    def sample(self, count: int, seed: int) -> tuple[Array, Floats]:
        """Ids and vectors of ``count`` random live rows, in the order of insertion."""
        chosen = np.sort(np.random.default_rng(seed).choice(self.count, count, replace=False))
        ids, vectors = [], []
        for segment in self.segments:
            positions = segment.positions
            end = int(np.searchsorted(chosen, len(positions)))
            at, chosen = positions[chosen[:end]], chosen[end:] - len(positions)
            ids.append(segment.ids.take(at))
            vectors.append(segment.blocks.rows(at, self.about.nesting.dim))
        return np.concatenate(ids), np.concatenate(vectors)

    def lacks(self, fields: Sequence[str]) -> bool:
        """Whether the column of one of ``fields`` has not been read yet."""
        parts = [part for segment in self.segments for part in segment.parts]
        return any(field not in part.columns for part in parts for field in fields)

    @cached_property
    def filtered(self) -> Cache[Snapshot]:
        """Restrictions of this snapshot by filters, so that later searches with the same filter use the same one."""
        return Cache(sum(map(len, self.segments)))

    def matching(self, condition: Condition) -> Snapshot:
        """This snapshot restricted to the rows that match; the columns must be there, see :meth:`lacks`."""
        return self.filtered.get(condition, lambda: self._restricted(condition))

    def _restricted(self, condition: Condition) -> Snapshot:
        kept = []
        for segment in self.segments:
            masks = [part.mask(condition) for part in segment.parts]
            mask = masks[0] if len(masks) == 1 else np.concatenate(masks)
            kept.append(replace(segment, alive=mask if segment.alive is None else mask & segment.alive))
        return replace(self, segments=tuple(kept))

    def pieces(self) -> Iterator[Piece]:
        """All live rows in order, 64 MB at a time."""
        dim = self.about.nesting.dim
        step = max(1, _STEP_BYTES // (4 * dim))
        for segment in self.segments:
            positions = segment.positions
            for start in range(0, len(positions), step):
                at = positions[start : start + step]
                yield Piece(segment.blocks.rows(at, dim), segment.rows[at], segment.ids.take(at).tolist())


def load(root: Path, about: About, database: Database, opened: dict[str, Segment]) -> Snapshot:
    """The snapshot of the current commit; call this inside a transaction.

    ``opened`` has the segments that are open, by name, and the recent rows by "". They are reused, and the dict is
    brought up to date.
    """
    listed = records.read_segments(database)
    current = {record.name: opened.get(record.name) or open_segment(root, record) for record in listed}
    recent = read_recent(database, about, opened.get(_RECENT))
    opened.clear()
    opened.update(current, **({} if recent is None else {_RECENT: recent}))
    dead = records.read_dead(database)
    guides: dict[str, dict[str, Path]] = {record.name: {} for record in listed}
    for guide in records.read_guides(database):
        guides.setdefault(guide.segment, {})[guide.kind] = guide_folder(root, guide.name)
    segments = [_without(replace(segment, guides=guides[name]), dead) for name, segment in current.items()]
    return Snapshot(root, about, (*segments, *([] if recent is None else [recent])))


def _without(segment: Segment, dead: Indices) -> Segment:
    if not len(dead) or dead[-1] < segment.rows[0] or dead[0] > segment.rows[-1]:
        return segment
    return replace(segment, alive=~lies_in(segment.rows, dead))


def lies_in(rows: Indices, chosen: Indices) -> Bools:
    """Return which of ``rows`` are in ``chosen``; both are sorted."""
    mask = np.zeros(len(rows), np.bool_)
    low, high = np.searchsorted(chosen, (rows[0], rows[-1] + 1))
    near = chosen[low:high]
    at = np.minimum(np.searchsorted(rows, near), len(rows) - 1)   # past the end only if a damaged file is not sorted
    mask[at[rows[at] == near]] = True
    return mask
