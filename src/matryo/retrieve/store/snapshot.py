"""A snapshot: the rows of one commit, in immutable segments. Later writes do not change it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.errors import IndexFolderError
from matryo.retrieve.store.filters.masks import Cache
from matryo.retrieve.store.filters.selection import Selection
from matryo.retrieve.store.guides import guide_folder
from matryo.retrieve.store.recent import read_recent, with_rows
from matryo.retrieve.store.segments.pieces import Piece, regroup
from matryo.retrieve.store.segments.segment import Segment, open_segment
from matryo.retrieve.store.sql import records, rotations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.filters.language import Condition
    from matryo.retrieve.store.rotating.coding import Coding
    from matryo.retrieve.store.rotating.rotation import Rotation
    from matryo.retrieve.store.sql.database import Database, Version
    from matryo.retrieve.vectors.types import Array, Bools, Floats, Indices


_STEP_BYTES = 64 << 20
_MOST_CHANGES = 256   # commits without a search between them; after more, the next search loads the state
_FEW = 64   # rows that are looked up one by one
_MOST_ROWS = 1 << 32   # of all pieces together


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The rows of one commit. Segments are in the order of insertion."""

    path: Path
    """The folder of the index, for errors."""
    about: About
    segments: tuple[Segment, ...]
    rotation: Rotation | Coding | None = None
    """The rotation or the codes in which the vectors are stored; None if they are stored as they were put in."""

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
        """The vectors of existing row numbers as they were put in, float32 [rows, d]."""
        dim = self.about.stored.dim
        out = np.empty((len(rows), dim), np.float32)
        missing = np.ones(len(rows), np.bool_)
        for segment in self.segments:
            at = np.minimum(np.searchsorted(segment.rows, rows), len(segment) - 1)
            here = np.flatnonzero(segment.rows[at] == rows)
            out[here] = segment.blocks.rows(at[here], dim)
            missing[here] = False
        if missing.any():
            raise IndexFolderError.damaged(self.path, f"no vector of row {rows[missing][0]}")
        return out if self.rotation is None else self.rotation.back(out)

    def sample(self, count: int, seed: int) -> tuple[Array, Floats]:
        """Ids and vectors of ``count`` random live rows, in the order of insertion."""
        chosen = np.sort(np.random.default_rng(seed).choice(self.count, count, replace=False))
        ids, vectors = [], []
        for segment in self.segments:
            positions = segment.positions
            end = int(np.searchsorted(chosen, len(positions)))
            at, chosen = positions[chosen[:end]], chosen[end:] - len(positions)
            ids.append(segment.ids.take(at))
            vectors.append(segment.blocks.rows(at, self.about.stored.dim))
        whole = np.concatenate(vectors)
        return np.concatenate(ids), whole if self.rotation is None else self.rotation.back(whole)

    def lacks(self, fields: Sequence[str]) -> bool:
        """Whether the column of one of ``fields`` has not been read yet."""
        parts = [part for segment in self.segments for part in segment.parts]
        return any(field not in part.columns for part in parts for field in fields)

    @cached_property
    def routes(self) -> dict[Any, Any]:
        """Prepared searches; see :mod:`matryo.retrieve.routes`."""
        return {}

    @cached_property
    def filtered(self) -> Cache[Snapshot]:
        """Restrictions of this snapshot by filters, so that later searches with the same filter use the same one."""
        return Cache()

    @property
    def nbytes(self) -> int:
        """The memory that its selections of rows take."""
        return sum(segment.alive.nbytes for segment in self.segments if segment.alive is not None)

    def matching(self, condition: Condition) -> Snapshot:
        """This snapshot restricted to the rows that match; the columns must be there, see :meth:`lacks`."""
        return self.filtered.get(condition, lambda: self._restricted(condition))

    def _restricted(self, condition: Condition) -> Snapshot:
        kept = []
        for segment in self.segments:
            chosen = Selection.joined([part.matching(condition) for part in segment.parts])
            kept.append(replace(segment, alive=chosen if segment.alive is None else chosen & segment.alive))
        return replace(self, segments=tuple(kept))

    def pieces(self) -> Iterator[Piece]:
        """All live rows in order, 64 MB at a time, with their vectors as they are stored."""
        dim = self.about.stored.dim
        step = max(1, _STEP_BYTES // (4 * dim))
        for segment in self.segments:
            positions = segment.positions
            for start in range(0, len(positions), step):
                at = positions[start : start + step]
                yield Piece(segment.blocks.rows(at, dim), segment.rows[at], segment.ids.take(at).tolist())


class Change(NamedTuple):
    """A commit of this process that only added recent rows and deleted rows."""

    version: Version
    """The version after the commit."""
    new: Piece | None
    gone: list[int]


@dataclass
class Loaded:
    """The state of the last commit that was loaded. Of the next one, only what differs is read."""

    segments: dict[str, Segment] = field(default_factory=dict)
    """The segments by name, with their guides and masks."""
    recent: Segment | None = None
    dead: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    """The tombstones."""
    deleted: list[int] = field(default_factory=list)
    """Rows that this process has deleted since."""
    rotation: Rotation | Coding | None = None
    most_pending: int | None = None
    """At least the number of vectors that SQLite holds; None if that is not known."""
    changes: list[Change] = field(default_factory=list)
    """The latest commits of this process."""

    def note(self, version: Version, new: Piece | None, gone: list[int]) -> None:
        """Remember a commit of this process."""
        self.deleted += gone
        if len(self.changes) == _MOST_CHANGES:
            self.changes.clear()
        copied = None if new is None else new._replace(vectors=new.vectors.copy())   # the caller may change its own
        self.changes.append(Change(version, copied, gone))

    def follow(self, before: Snapshot, since: Version, version: Version) -> Snapshot | None:
        """The snapshot of ``version``, made from the one of ``since`` without reading; None if it must be loaded."""
        changes, self.changes = self.changes, []
        if [change.version for change in changes] != [(*since[:2], since[2] + i + 1) for i in range(len(changes))]:
            return None
        if not changes or changes[-1].version != version:
            return None
        segments, recent = list(self.segments.values()), self.recent
        gone = np.array(sorted(row for change in changes for row in change.gone), np.int64)
        for new in regroup((change.new for change in changes if change.new is not None), _MOST_ROWS):
            recent = with_rows(recent, before.about, new)
        if len(gone):
            segments = [_without(segment, gone) for segment in segments]
            if recent is not None:
                recent = _without(recent, gone)
                if 2 * recent.live < len(recent):
                    return None   # read anew, without those that are gone
            there = np.array([row for row in gone.tolist() if any(_has(each, row) for each in segments)], np.int64)
            self.dead = np.insert(self.dead, np.searchsorted(self.dead, there), there)   # sorted; none was dead before
        self.segments, self.recent, self.deleted = {each.name: each for each in segments}, recent, []
        return Snapshot(
            before.path, before.about, (*segments, *([] if recent is None else [recent])), before.rotation
        )


def load(root: Path, about: About, database: Database, before: Loaded) -> Snapshot:
    """The snapshot of the current commit; call this inside a transaction. ``before`` is brought up to date."""
    listed = records.read_segments(database)
    segments = {record.name: before.segments.get(record.name) or open_segment(root, record) for record in listed}
    guides: dict[str, dict[str, Path]] = {}
    for guide in records.read_guides(database):
        guides.setdefault(guide.segment, {})[guide.kind] = guide_folder(root, guide.name)
    recent = read_recent(database, about, before.recent)
    new = _new_dead(database, before) if list(before.segments) == list(segments) else None
    dead = records.read_dead(database) if new is None else np.union1d(before.dead, new) if len(new) else before.dead
    for name, segment in segments.items():
        if new is None and segment.alive is not None:
            segment = replace(segment, alive=None)
        if segment.guides != guides.get(name, {}):
            segment = replace(segment, guides=guides.get(name, {}))
        segments[name] = _without(segment, dead if new is None else new)
    before.segments, before.recent, before.dead, before.deleted, before.changes = segments, recent, dead, [], []
    before.rotation = rotations.read(database, before.rotation)
    return Snapshot(root, about, (*segments.values(), *([] if recent is None else [recent])), before.rotation)


def _new_dead(database: Database, before: Loaded) -> Indices | None:
    """The tombstones since then, if they are those of this process; None if all must be read.

    While the segments stay, no tombstone goes. So the number of tombstones tells whether there are others.
    """
    new = records.find_dead(database, before.deleted)
    return new if records.count_dead(database) == len(before.dead) + len(new) else None


def _without(segment: Segment, dead: Indices) -> Segment:
    """``segment`` without the rows that are ``dead``."""
    if not len(dead) or dead[-1] < segment.rows[0] or dead[0] > segment.rows[-1]:
        return segment
    if len(dead) > _FEW:
        alive = Selection.of_mask(~lies_in(segment.rows, dead))
        return replace(segment, alive=alive if segment.alive is None else alive & segment.alive)
    at = np.minimum(np.searchsorted(segment.rows, dead), len(segment) - 1)
    mask = np.ones(len(segment), np.bool_) if segment.alive is None else segment.alive.mask.copy()
    mask[at[segment.rows[at] == dead]] = False
    return replace(segment, alive=Selection.of_mask(mask))


def _has(segment: Segment, row: int) -> bool:
    at = int(np.searchsorted(segment.rows, row))
    return at < len(segment) and int(segment.rows[at]) == row


def lies_in(rows: Indices, chosen: Indices) -> Bools:
    """Return which of ``rows`` are in ``chosen``; both are sorted."""
    mask = np.zeros(len(rows), np.bool_)
    near = chosen[slice(*np.searchsorted(chosen, (rows[0], rows[-1] + 1)))]
    at = np.minimum(np.searchsorted(rows, near), len(rows) - 1)   # past the end only if a damaged file is not sorted
    mask[at[rows[at] == near]] = True
    return mask
