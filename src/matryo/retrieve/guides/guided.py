"""Search one segment along a plan, with the guides that the segment has.

A new or small segment may have no guide yet. It is scanned instead: nothing is missed, the search only takes longer.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from matryo.retrieve.engines.compiled.engine import best_engine
from matryo.retrieve.engines.execute import Engine, execute
from matryo.retrieve.engines.request import Request
from matryo.retrieve.guides import GUIDES
from matryo.retrieve.guides.guide import unguided
from matryo.retrieve.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.retrieve.guides.guide import Search
    from matryo.retrieve.store.segments.segment import Segment
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Floats, Indices


class Guided:
    """Searches segments. Opened guides and prepared searches are kept as long as the blocks of their segment."""

    def __init__(self, metric: Metric, engine: Engine | None = None) -> None:
        self.metric = metric
        self.engine = engine
        self._ready: weakref.WeakKeyDictionary[Blocks, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def search(self, segment: Segment, queries: Any, plan: Plan | None, k: int) -> tuple[Indices, Floats]:
        """Return the best ``k`` rows of each of the ``queries`` and their scores, [n, k]; exact without a plan.

        Deleted rows are never found. If there are fewer than ``k`` rows, the remaining places have row −1, score −∞.
        """
        for kind, guide in GUIDES.items():
            if kind in segment.guides and guide.serves(plan, self.engine):
                search = self._prepared(segment, kind, plan)
                if search is not None:
                    return search(Request(segment.blocks, queries, self.metric, segment.alive), k)
        plan = unguided(plan or Plan.single(segment.blocks.nesting.dim, k=max(k, 1)), segment.blocks)
        engine = self.engine or best_engine()
        return execute(segment.blocks, queries, plan, k, self.metric, segment.alive, engine=engine)

    def _prepared(self, segment: Segment, kind: str, plan: Plan | None) -> Search | None:
        folder = segment.guides[kind]
        # The copy shares its arrays. A reference to the blocks themselves would keep their entry alive forever.
        blocks: Blocks = self._once(segment, "blocks", lambda: replace(segment.blocks))
        guide = self._once(segment, folder, lambda: GUIDES[kind].open(folder))
        search: Search | None = self._once(segment, (folder, plan), lambda: guide.searcher(blocks, plan, self.engine))
        return search

    def _once(self, segment: Segment, key: Any, make: Callable[[], Any]) -> Any:
        ready = self._ready.setdefault(segment.blocks, {})
        if key not in ready:
            ready[key] = make()
        return ready[key]
