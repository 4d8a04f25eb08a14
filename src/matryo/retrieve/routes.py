"""Routes: how each part of a snapshot is searched along a plan with its guides. One is made once, for many searches."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from matryo.errors import InputError
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.execute import Engine, execute
from matryo.retrieve.engines.few_rows import are_few, search_among
from matryo.retrieve.guides import GUIDES, Partition
from matryo.retrieve.guides.guide import Guide, Search, shared, unguided
from matryo.retrieve.guides.partition import Joined, Tail
from matryo.retrieve.parts import Part, joined, tail_part
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.store.guides import damaged_guide
from matryo.retrieve.store.rotating.coding import Coding, search_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.nesting import Nesting
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.store import Segment, Snapshot
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Doubles, Indices


class Routes:
    """The routes of an index on one engine; None is the default engine."""

    def __init__(
        self, nesting: Nesting, metric: Metric, engine: Engine | None, wanted: Callable[[], dict[str, Any]]
    ) -> None:
        self.nesting, self.metric, self.engine, self.wanted = nesting, metric, engine, wanted
        self._exact = Plan.single(nesting.dim)
        # Opened guides and prepared searches, kept as long as the blocks of their segment.
        self._ready: weakref.WeakKeyDictionary[Blocks, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def of(self, snapshot: Snapshot, plan: Plan | None, k: int) -> list[Part]:
        """The parts to search along a plan, checked and prepared once per snapshot."""
        routes = snapshot.routes
        known = routes.get((self, id(plan), k))
        if known is None or known[0] is not plan:
            if isinstance(snapshot.rotation, Coding):
                known = routes[self, id(plan), k] = plan, [self._coded(each, snapshot.rotation)
                                                           for each in snapshot.segments]  # fmt: skip
                return known[1]
            self._check_guides(snapshot, plan)
            _check_fits(plan or self._exact, k, self.nesting)
            # The plan is held, so that no other plan gets its id.
            known = routes[self, id(plan), k] = plan, self._parts(snapshot.segments, plan, k)
        return known[1]

    def _parts(self, segments: tuple[Segment, ...], plan: Plan | None, k: int) -> list[Part]:
        """Each segment by itself, but for the rows that joined partitions: they are searched with these."""
        parts = []
        host, late = joined(segments, self.guide) if Partition.serves(plan, self.engine) else (None, ())
        alone = host is None or k > len(host) or (host.alive is not None and self._few_are_left(host, plan))
        for segment in segments:
            if not alone and segment is host:
                view = self._tail(segment).view([tail_part(other, self.guide) for other in late])
                parts.append(Part((segment, *late), self._segment_search(segment, plan), view))
            elif alone or segment not in late:
                parts.append(self._lone(segment, plan))
        return parts

    def _coded(self, segment: Segment, coding: Coding) -> Part:
        """One segment of codes; its scan is prepared once."""
        ready = self._ready.setdefault(segment.blocks, {})
        if coding.name not in ready:
            ready[coding.name] = search_with(coding.scan(segment.blocks.full[0]))
        return Part((segment,), ready[coding.name])

    def _lone(self, segment: Segment, plan: Plan | None) -> Part:
        """One segment. If a filter leaves few rows, these are scored one by one, whatever the plan."""
        filtered = segment.alive is not None and self._few_are_left(segment, plan)
        small = plan is None and not segment.guides and are_few(segment.live, segment.blocks, plan)
        if self.engine is None and (filtered or small):
            among = search_among(segment.positions, self.nesting.dim if plan is None else plan.dim)
            return Part((segment,), among, masked=False)
        return Part((segment,), self._segment_search(segment, plan))

    def _tail(self, segment: Segment) -> Tail:
        """The rows that joined the partitions of a segment."""
        partition = cast("Partition", self.guide(segment, Partition.kind))
        key, ready = (Tail, segment.guides[Partition.kind]), self._ready[segment.blocks]
        if key not in ready:
            ready.setdefault(key, Tail(partition))   # one, even if threads meet here
        tail: Tail = ready[key]
        return tail

    def _segment_search(self, segment: Segment, plan: Plan | None) -> Search:
        """The search of the best live rows of a segment, with the first guide that serves the plan.

        A new or small segment may have no guide yet. It is scanned instead: nothing is missed, it only takes longer.
        """
        for kind, guide in GUIDES.items():
            if kind in segment.guides and guide.serves(plan, self.engine):
                search = self._prepared(segment, kind, plan)
                if search is not None:
                    return search if guide.threaded else shared(search)
        engine = self.engine or best_engine()

        def scan(request: Request, k: int) -> tuple[Indices, Doubles]:
            blocks = request.blocks
            stages = unguided(plan or Plan.single(blocks.nesting.dim, k=max(k, 1)), blocks)
            return execute(blocks, request.queries, stages, k, request.metric, request.allowed, engine=engine)

        return shared(scan)

    def _few_are_left(self, segment: Segment, plan: Plan | None) -> bool:
        """Whether scoring the live rows of a segment one by one costs less than the plan."""
        guided = None
        for kind, guide in GUIDES.items():
            if plan is not None and kind in segment.guides and guide.serves(plan, self.engine):
                guided = self.guide(segment, kind).reads(plan, segment.live / max(1, len(segment)))
                break
        return are_few(segment.live, segment.blocks, plan, guided)

    def _prepared(self, segment: Segment, kind: str, plan: Plan | None) -> Search | None:
        """The search of a segment along a plan with its guide of this ``kind``, prepared once."""
        guide, folder, ready = self.guide(segment, kind), segment.guides[kind], self._ready[segment.blocks]
        if (folder, plan) not in ready:
            with damaged_guide(folder):
                # The copy shares its arrays. A reference to the blocks themselves would keep their entry alive forever.
                blocks = ready.setdefault("blocks", replace(segment.blocks))
                ready[folder, plan] = guide.searcher(blocks, plan, self.engine)
        search: Search | None = ready[folder, plan]
        return search

    def guide(self, segment: Segment, kind: str) -> Guide:
        """The guide of this ``kind`` of a segment, opened once."""
        folder, ready = segment.guides[kind], self._ready.setdefault(segment.blocks, {})
        if folder not in ready:
            with damaged_guide(folder):
                ready[folder] = (Joined if kind == Joined.kind else GUIDES[kind]).open(folder)
        guide: Guide = ready[folder]
        return guide

    def _check_guides(self, snapshot: Snapshot, plan: Plan | None) -> None:
        if plan is None:
            return
        for kind, guide in GUIDES.items():
            value = None if guide.plan_field is None else getattr(plan, guide.plan_field)
            built = any(kind in segment.guides for segment in snapshot.segments)
            if value is not None and not built and kind not in self.wanted():
                raise InputError(
                    f"a plan with {guide.plan_field} needs an index with a {kind}",
                    got=f"{guide.plan_field}={value}",
                    cure=f"index.build({kind}={'True' if kind == 'partition' else plan.stages[0].dim})",
                )


@lru_cache(maxsize=256)   # a plan is checked again after each commit
def _check_fits(plan: Plan, k: int, nesting: Nesting) -> None:
    plan.for_k(k).check_fits(nesting)
