"""The parts of a snapshot that are searched one by one: a segment, or one with the rows that joined its partitions.

Rows of a part are numbered from 0 on: those of its first segment, then those of the next.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from matryo.compiled import core
from matryo.retrieve.engines.request import Request
from matryo.retrieve.guides import Partition, Sketch
from matryo.retrieve.guides.partition import Joined, TailPart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matryo.retrieve.guides import Guide
    from matryo.retrieve.guides.guide import Search
    from matryo.retrieve.guides.partition import TailView
    from matryo.retrieve.store import Segment
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array, Bools, Doubles, Indices

    OpenGuide = Callable[[Segment, str], Guide]

_OWN = 4   # a segment with at least this part of the rows of the largest gets partitions of its own
_MUCH_LARGER = 4   # a segment with more than this many times the rows of the partitions does not join them


@dataclass(frozen=True, eq=False)
class Part:
    """Segments that one search covers, in the order of insertion."""

    segments: tuple[Segment, ...]
    search: Search
    tail: TailView | None = None
    """The rows of all segments but the first."""
    masked: bool = True
    """Whether the search reads the mask of the live rows."""

    @cached_property
    def count(self) -> int:
        """The number of rows."""
        return sum(map(len, self.segments))

    @cached_property
    def _live(self) -> int:
        return sum(segment.live for segment in self.segments)

    @cached_property
    def _allowed(self) -> Bools | None:
        """The mask of the live rows; None if all are, or if the search does not read it."""
        if not self.masked or all(segment.alive is None for segment in self.segments):
            return None
        every = [np.ones(len(s), np.bool_) if s.alive is None else s.alive.mask for s in self.segments]
        return every[0] if len(every) == 1 else np.concatenate(every)

    def request(self, queries: Array, metric: Metric, threads: int, bars: Doubles | None = None) -> Request:
        """Return the request for ``queries``; see :attr:`Request.bars`."""
        return Request(self.segments[0].blocks, queries, metric, self._allowed, threads, self.tail, bars, self._live)

    def prepare(self) -> None:
        """Compute what every search needs, so that none waits for it."""
        _ = self._allowed, self._live, self._integers, self.count

    def ids(self, rows: Indices, nothing: Any) -> Array:
        """Return the ids of rows, some of which may be −1: ``nothing`` there."""
        if self._integers is not None:
            ids = np.empty(rows.shape, np.int64)
            self._integers.take(np.ascontiguousarray(rows, np.int64), ids, nothing)
            return ids
        return self._each(rows, lambda segment, at: segment.ids.take(at), nothing)

    @cached_property
    def _integers(self) -> Any:
        """The ids as a ``matryo._core.Ids``; None if they are strings."""
        compiled = core()
        if compiled is None or any(segment.ids.text is not None for segment in self.segments):
            return None
        return compiled.Ids([segment.ids.numbers for segment in self.segments])

    def numbers(self, rows: Indices) -> Indices:
        """Return the row numbers of rows; −1 for −1."""
        return self._each(rows, lambda segment, at: np.asarray(segment.rows[at]), -1)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.segments)))

    def _each(self, rows: Indices, take: Callable[[Segment, Any], Any], nothing: Any) -> Array:
        """The values that ``take`` returns for rows, given the segment of a row and its position there."""
        first, count = self.segments[0], self._ends[0]
        if len(self.segments) == 1 and rows.size and (rows.item(-1) if len(rows) == 1 else rows[:, -1].min()) >= 0:
            return np.asarray(take(first, rows))   # −1 would be last
        elsewhere = [(place, row) for place, row in enumerate(rows.ravel().tolist()) if not 0 <= row < count]
        if not elsewhere:
            return np.asarray(take(first, rows))
        inside = rows.ravel().copy()
        inside[[place for place, _ in elsewhere]] = 0
        out = np.asarray(take(first, inside))
        for place, row in elsewhere:   # few: the tail has a small share of the rows
            number = bisect_right(self._ends, row)
            out[place] = nothing if row < 0 else take(self.segments[number], row - self._ends[number - 1])
        return out.reshape(rows.shape)


def needs_own(counts: Sequence[int]) -> list[bool]:
    """Whether each segment gets partitions of its own, given their numbers of rows; the others join the last that does.

    >>> needs_own([1000, 300, 20, 400, 8, 9])
    [True, True, True, True, False, False]
    """
    largest = max(counts, default=0)
    last = max((number for number, count in enumerate(counts) if _OWN * count >= largest), default=-1)
    return [number <= last for number in range(len(counts))]


def joined(segments: Sequence[Segment], open_guide: OpenGuide) -> tuple[Segment | None, tuple[Segment, ...]]:
    """Return the last segment with partitions, and the later segments whose rows joined them; None if there are none.

    Recent rows, which are in memory, have no stored places: they join when they are searched.
    """
    host, later = _host(segments)
    if host is None:
        return None, ()
    name, late = host.guides[Partition.kind].name, []
    for segment in later:
        stored = tail_part(segment, open_guide).joined
        if not segment.name or (stored is not None and stored.partition == name):
            late.append(segment)
    return (host, tuple(late)) if late else (None, ())


def tail_part(segment: Segment, open_guide: OpenGuide) -> TailPart:
    """Return the rows of a segment with their stored places, if they have some."""
    stored = cast("Joined", open_guide(segment, Joined.kind)) if Joined.kind in segment.guides else None
    return TailPart(segment.blocks, segment.rows, stored)


def drift_of(segments: Sequence[Segment], open_guide: OpenGuide) -> tuple[int, float | None]:
    """Return the number of vectors that joined partitions, and their distance from the means relative to the others.

    Distances are mean squares. None if no vector joined.
    """
    host, late = joined(segments, open_guide)
    stored = [places for segment in late if (places := tail_part(segment, open_guide).joined) is not None]
    count = sum(len(places.adjust) for places in stored)
    usual = 0.0 if host is None else cast("Partition", open_guide(host, Partition.kind)).distance
    if not count or usual <= 0:
        return count, None
    return count, sum(places.distance * len(places.adjust) for places in stored) / count / usual


def missing_guide(
    segments: Sequence[Segment], open_guide: OpenGuide, metric: Metric, wanted: Mapping[str, Any]
) -> tuple[str, Guide, Mapping[str, Any]] | None:
    """Make the first guide that rows need which were added since: the name of their segment, the guide, its fields.

    Rows join the partitions of the last segment that has its own, and their sketch has its axes. A much larger segment
    gets its own. So does the first if none has its own any more: they were merged, as the index has grown fourfold.
    """
    host, later = _host(segments)
    if core() is None or Partition.kind not in wanted:
        return None
    sketched = Sketch.kind in wanted
    if host is not None and sketched and Sketch.kind not in host.guides:
        return host.name, Sketch.of(host.blocks, metric), wanted[Sketch.kind]
    for segment in segments if host is None else later:
        if segment.name and (host is None or len(segment) > _MUCH_LARGER * len(host)):
            own = wanted[Partition.kind]
            return segment.name, Partition.of(segment.blocks, metric, progress=True, **own), own
        if segment.name and host is not None:
            name = host.guides[Partition.kind].name
            known = Joined.kind in segment.guides and cast("Joined", open_guide(segment, Joined.kind)).partition == name
            if not known:
                partition = cast("Partition", open_guide(host, Partition.kind))
                return segment.name, Joined.of(segment.blocks, partition, name), {}
            if sketched and Sketch.kind not in segment.guides:
                like = cast("Sketch", open_guide(host, Sketch.kind))
                return segment.name, Sketch.of(segment.blocks, metric, like=like), {"like": name}
    return None


def _host(segments: Sequence[Segment]) -> tuple[Segment | None, Sequence[Segment]]:
    """The last segment with partitions, and the segments after it."""
    for number in range(len(segments) - 1, -1, -1):
        if Partition.kind in segments[number].guides:
            return segments[number], segments[number + 1 :]
    return None, ()
