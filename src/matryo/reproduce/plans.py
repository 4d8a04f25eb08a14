"""The paper's plans of adaptive retrieval, D_s × D_r and funnels, run on shortlists that are found once for all.

The stages after the first are those of :mod:`matryo.retrieve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation.knn.search import search
from matryo.metrics import hit_rate, mean_average_precision, precision, relevance
from matryo.metrics.ranking import average_precision
from matryo.retrieve import Blocks
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.numpy.scan import unscored
from matryo.retrieve.engines.request import Request
from matryo.retrieve.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Bools
    from matryo.embeddings import EmbeddingSet
    from matryo.nesting import Nesting

    Rows = np.ndarray[Any, np.dtype[np.int64]]

DEPTHS = (10, 25, 50, 100)
KEEP = 200
LENGTHS = (100, 200, 400, 800, 1600, 2048)   # of shortlists
CASCADES = ((200, 100, 50, 25, 10), (400, 200, 50, 25, 10), (800, 400, 200, 50, 10))   # of funnels
BATCH = 200   # queries ranked again at a time


def most_kept(plans: Sequence[Plan], dims: Sequence[int]) -> dict[int, int]:
    """Return the longest shortlist that the first stages need at each dim, at least ten."""
    first = [plan.stages[0] for plan in plans]
    return {dim: max((stage.keep for stage in first if stage.dim == dim), default=10) for dim in dims}


class Shortlists:
    """Shortlists of first stages: the nearest at each dim, found once for all plans."""

    def __init__(self, database: EmbeddingSet, queries: EmbeddingSet, most: dict[int, int]) -> None:
        self.blocks = Blocks.of(database.vectors, database.nesting)
        self.queries = np.asarray(queries.vectors, np.float32)
        self.known, self.asked = np.asarray(database.labels), np.asarray(queries.labels)
        self.totals = np.bincount(self.known, minlength=int(self.asked.max()) + 1)[self.asked]
        self.rows: dict[int, Rows] = {}
        for length in sorted(set(most.values())):
            dims = [dim for dim in database.nesting.dims if most[dim] == length]
            self.rows |= search(database.vectors, self.queries, dims, min(length, database.count), progress=True)
        self.full = np.sort(self.rows[database.nesting.dim][:, :10], axis=1)

    def run(self, plan: Plan) -> Rows:
        """The hits of a plan, [queries, k]."""
        first, *later = plan.stages
        held = self.rows[first.dim][:, : first.keep]
        if not later:
            return held
        rerank, parts = best_engine().rerank, []
        for start in range(0, len(self.queries), BATCH):
            some = slice(start, start + BATCH)
            request, done = Request(self.blocks, self.queries[some]), 0
            found = unscored(held[some])
            for stage in later:
                found = rerank(request, found, stage, done)
                done = stage.dim
            parts.append(found.rows)
        return np.concatenate(parts)

    def outcomes(self, plan: Plan, k: int = 10) -> tuple[Array, Array]:
        """Whether the first hit of each query is of its class, and its AP@k."""
        relevant = self._relevant(plan)
        return relevant[:, 0].astype(np.float32), average_precision(relevant, self.totals, min(k, relevant.shape[1]))

    def _relevant(self, plan: Plan) -> Bools:
        return relevance(self.known[self.run(plan)], self.asked)

    def graded(self, plan: Plan) -> dict[str, Any]:
        """Quality and cost of a plan."""
        found = self.run(plan)
        relevant = relevance(self.known[found], self.asked)
        depths = [k for k in DEPTHS if k <= found.shape[1]]
        hits = (found[:, :10, None] == self.full[:, None, :]).any(1)
        count = self.blocks.count
        return {
            "plan": plan.to_dict(),
            "mflops": plan.mflops(count, reuse=False), "mflops_computed": plan.mflops(count),
            **{f"top{k}": hit_rate(relevant, k) for k in (1, 5, 10)},
            **{f"map@{k}": mean_average_precision(relevant, self.totals, k) for k in depths},
            **{f"p@{k}": precision(relevant, k) for k in depths},
            "recall@10": float(hits.mean()),
        }  # fmt: skip


def adaptive_plans(nesting: Nesting, keep: int = KEEP) -> list[Plan]:
    """Every pair of a shorter and a longer dim."""
    k = min(100, keep)
    return [Plan.adaptive(low, high, keep=keep, k=k) for low in nesting.dims for high in nesting.dims if low < high]


def funnel_plans(nesting: Nesting, cascades: Sequence[Sequence[int]] = CASCADES) -> list[Plan]:
    """The paper's three cascades from each dim that leaves room for their stages."""
    plans = []
    for low in nesting.dims:
        for keeps in cascades:
            dims = [low * 2**stage for stage in range(len(keeps))]
            if {*dims} <= {*nesting.dims}:
                last = [] if dims[-1] == nesting.dim else [(nesting.dim, keeps[-1])]
                plans.append(Plan.of([*zip(dims, keeps, strict=True), *last]))
    return plans
