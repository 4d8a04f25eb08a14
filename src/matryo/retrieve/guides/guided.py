"""One segment searched along a plan, with the guides that it has.

A plan says which guide it follows: partitions (``probe``), a graph (``ef``), or none. A segment that has no such
guide yet, as it is new or small, is scanned instead: nothing is missed, and it only takes longer. Exact search is
certified by a sketch where there is one.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.engines.compiled.engine import best_engine
from matryo.retrieve.engines.execute import Engine, execute
from matryo.retrieve.engines.numpy.scan import unscored
from matryo.retrieve.guides.graph import Graph
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from matryo.retrieve.engines.numpy.shortlist import Shortlist
    from matryo.retrieve.plan.plan import Precision
    from matryo.retrieve.store.segments.segment import Segment
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["KINDS", "Guided", "build_guide"]

KINDS: Mapping[str, Any] = {"sketch": Sketch, "partition": Partition, "graph": Graph}


def build_guide(kind: str, metric: Metric, fields: Mapping[str, Any], blocks: Blocks, place: Path) -> None:
    """Make a guide of some blocks and write it to a new folder."""
    KINDS[kind].of(blocks, metric, **fields).write(place)


def _stored(plan: Plan, blocks: Blocks) -> tuple[Stage, ...]:
    """The stages, in full precision where the blocks have no copies in int8: partitions have codes of their own."""
    return tuple(
        stage if stage.precision == "full" or blocks.nesting.dims.index(stage.dim) in blocks.int8
        else replace(stage, precision="full")
        for stage in plan.stages
    )  # fmt: skip


class Guided:
    """Searches of segments; what they need is made ready once, and kept while the segments' blocks are."""

    def __init__(self, metric: Metric, engine: Engine | None = None) -> None:
        self.metric = metric
        self.engine = engine
        self._ready: weakref.WeakKeyDictionary[Blocks, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def search(self, segment: Segment, queries: Any, plan: Plan | None, k: int) -> tuple[Indices, Floats]:
        """The best ``k`` rows of each of the ``queries`` and their scores, [n, k]; without a plan, exactly.

        Rows that do not count are left out; where there are fewer than ``k``: row −1, score −∞.
        """
        if self.engine is None:
            if plan is None and "sketch" in segment.guides:
                return self._certified(segment).search(queries, k, segment.alive)
            if plan is not None and plan.ef is None and self._has_tiles(segment, plan):
                return self._partitioned(segment, plan, k)(queries, segment.alive)
        plan = plan or Plan.single(segment.blocks.nesting.dim, k=max(k, 1))
        engine = self.engine or best_engine()
        if plan.ef is not None and "graph" in segment.guides:
            engine = self._walking(self._opened(segment, "graph"), plan, engine)
        alone = replace(plan, stages=_stored(plan, segment.blocks), probe=None, ef=None)
        return execute(segment.blocks, queries, alone, k, self.metric, segment.alive, engine=engine)

    def _has_tiles(self, segment: Segment, plan: Plan) -> bool:
        # Who asks for partitions gets them, or is told why not; who scans in int8 at their dim scans their tiles.
        first = plan.stages[0]
        if "partition" not in segment.guides:
            return False
        same = first.precision == "int8" and first.dim == self._opened(segment, "partition").dim
        return plan.probe is not None or same

    def _certified(self, segment: Segment) -> Certified:
        found: Certified = self._once(
            segment, "certified", lambda: Certified(segment.blocks, self._opened(segment, "sketch"))
        )
        return found

    def _partitioned(self, segment: Segment, plan: Plan, k: int) -> PartitionSearch:
        partition = self._opened(segment, "partition")
        key = segment.guides["partition"], plan, k
        found: PartitionSearch = self._once(
            segment, key, lambda: PartitionSearch(segment.blocks, partition, plan, k)
        )
        return found

    def _opened(self, segment: Segment, kind: str) -> Any:
        place = segment.guides[kind]
        return self._once(segment, place, lambda: KINDS[kind].open(place))

    def _once(self, segment: Segment, key: Any, make: Callable[[], Any]) -> Any:
        ready = self._ready.setdefault(segment.blocks, {})
        if key not in ready:
            ready[key] = make()
        return ready[key]

    def _walking(self, graph: Graph, plan: Plan, engine: Engine) -> Engine:
        """The engine, whose first stage walks through the graph instead."""
        if plan.stages[0].dim != graph.dim:
            raise InputError(
                f"the graph of this index is of {graph.dim} dims", got=plan.stages[0].dim, cure="plan with those first"
            )
        effort = plan.ef or 0

        def first_stage(
            blocks: Blocks,
            queries: Floats,
            dim: int,
            keep: int,
            metric: Metric,
            precision: Precision,
            allowed: Bools | None,
        ) -> Shortlist:
            rows = graph.walk(queries, keep, effort, allowed)
            return engine.rerank(blocks, queries, unscored(rows), 0, dim, keep, metric, precision)

        return Engine(first_stage, engine.rerank)
