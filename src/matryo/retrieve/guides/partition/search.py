"""Search partitions along a plan. The search is in ``src/core/partition.h``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import require_core
from matryo.retrieve.engines.compiled import as_bytes, view_of
from matryo.retrieve.guides.partition.steps import check_plan, steps_of
from matryo.retrieve.vectors.queries import as_floats, as_mask, check_scores

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition.partition import Partition
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Doubles, Indices

_MOST = 3   # a query may visit this many times the share that is visited on average


class PartitionSearch:
    """A plan on partitions for one k. It is checked and prepared once, so that a query costs only its own work.

    Any number of threads may search at a time.
    """

    def __init__(self, blocks: Blocks, partition: Partition, plan: Plan, k: int) -> None:
        partition.check_fits(blocks)
        plan = plan.for_k(k)
        plan.check_fits(blocks.nesting)
        check_plan(plan, partition)
        self._k, self._metric, self._nesting, self._count = k, partition.metric, blocks.nesting, blocks.count
        everywhere = plan.probe in (None, 1) or not blocks.count
        share, lists = min(1.0, _MOST * (plan.probe or 1.0)), len(partition.lists)
        self._search = require_core().PartitionSearch(
            view_of(blocks, partition.metric),
            partition.compiled,
            steps_of(plan, blocks, partition),
            k,
            partition.gap(plan.probe),
            -1 if everywhere else max(1, round(share * blocks.count)),
            # About twice as many partitions as hold that share on average, because sizes differ.
            min(lists, int(2 * share * lists) + 16),
        ).search

    def __call__(self, queries: Any, allowed: Any = None, threads: int = 1) -> tuple[Indices, Doubles]:
        """Return the best k rows of each of the ``queries`` [n, d], or of one [d], and their scores; both [n, k].

        Hits are sorted nearest first; of equal scores the smaller row comes first. Scores are computed from the stored
        vectors at the plan's last dim, in float64. ``allowed`` is a mask of the rows that may be found in the visited
        partitions. If there are fewer than k, the remaining places have row −1 and score −∞.
        """
        vectors = as_floats(queries[None] if getattr(queries, "ndim", 2) == 1 else queries, self._nesting.dim)
        rows = np.empty((len(vectors), self._k), np.int64)
        scores = np.empty(rows.shape)
        mask = None if allowed is None or not self._count else as_bytes(as_mask(allowed, self._count))
        if self._search(vectors, mask, rows, scores, threads) >= 0:
            check_scores(vectors, self._nesting, self._metric)
        return rows, scores
