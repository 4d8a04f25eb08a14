"""Search partitions along a plan. The search is in ``src/core/partition.h``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import require_core
from matryo.errors import InputError
from matryo.retrieve.engines.compiled import view_of
from matryo.retrieve.guides.partition.steps import steps_of
from matryo.retrieve.vectors.queries import as_floats, as_mask, check_scores

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition.partition import Partition
    from matryo.retrieve.guides.partition.tail import TailView
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Bools, Doubles, Floats, Indices

_SPARE = 16   # partitions beyond those that the budget needs if all have the same size
_PLACES_PER_HIT = 4   # places that a query visits at least, per hit; kPlacesPerHit in src/core/rerank.h


class PartitionSearch:
    """A plan on partitions for one k. It is checked and prepared once, so that a query costs only its own work.

    Any number of threads may search at a time.
    """

    def __init__(self, blocks: Blocks, partition: Partition, plan: Plan, k: int, *, scan_only: bool = False) -> None:
        partition.check_fits(blocks)
        if plan.ef is not None:
            got, cure = f"ef={plan.ef}", "pass probe=0.05 instead"
            raise InputError("a plan for partitions must not have ef", got=got, cure=cure)
        plan = plan.for_k(k)
        plan.check_fits(blocks.nesting)
        self._k, self._metric, self._nesting, self._partition = k, partition.metric, blocks.nesting, partition
        budget = partition.budget(plan.probe)
        lists, places = len(partition.lists), max(1, int(partition.lists[:, 1].sum()))
        steps = steps_of(plan, blocks, partition)
        self.compiled = require_core().PartitionSearch(
            view_of(blocks, partition.metric),
            partition.compiled,
            steps[:1] if scan_only else steps,
            k,
            budget,
            partition.scale,
            min(lists, math.ceil(1.5 * max(budget, _PLACES_PER_HIT * k) / places * lists) + _SPARE),
        )
        self._search = self.compiled.search
        self._wider_for = lru_cache(maxsize=256)(partition.wider_for)   # searches often have the same share
        self._masks: tuple[Any, Any] = None, None   # the last mask, and by slot if it came twice

    def __call__(
        self, queries: Any, allowed: Any = None, threads: int = 1, share: float = 1.0, tail: TailView | None = None
    ) -> tuple[Indices, Doubles]:
        """Return the best k rows of each of the ``queries`` [n, d], or of one [d], and their scores; both [n, k].

        Hits are sorted nearest first; of equal scores the smaller row comes first. Scores are computed from the stored
        vectors at the plan's last dim, in float64. ``allowed`` is a mask of the rows that may be found, which are a
        ``share`` of all: the fewer, the more partitions are visited. If there are fewer than k, the remaining places
        have row −1 and score −∞. Rows of a ``tail``, which ``allowed`` covers too, follow those of the partitions.
        """
        vectors = as_floats(queries[None] if getattr(queries, "ndim", 2) == 1 else queries, self._nesting.dim)
        rows = np.empty((len(vectors), self._k), np.int64)
        scores = np.empty(rows.shape)
        count, late = (0, None) if tail is None else (tail.count, tail.compiled)
        count += self._partition.count
        mask, by_slot = (None, False) if allowed is None or not count else self._as_mask(allowed, count)
        wider = 1.0 if mask is None else self._wider_for(share)
        if self._search(vectors, mask, rows, scores, threads, wider, late, by_slot) >= 0:
            check_scores(vectors, self._nesting, self._metric)
        return rows, scores

    def _as_mask(self, allowed: Any, count: int) -> tuple[Bools, bool]:
        """The mask as the core reads it, and whether it is in the order of the slots.

        Rows of a partition have neighbouring slots, so reading a mask by slots takes less time; a mask that is searched
        with again, such as that of the rows that are not deleted, is worth the conversion.
        """
        known, by_slot = self._masks   # one tuple, as threads may replace it
        if known is not allowed:
            mask = np.ascontiguousarray(as_mask(allowed, count))
            self._masks = mask, None   # a view or a copy would not be met again
            return mask, False
        if by_slot is None:
            by_slot = self._partition.by_slot(allowed)
            self._masks = known, by_slot
        return by_slot, True

    def score_lists(self, queries: Any) -> Floats:
        """Return the score of each query with the mean of each partition, in multiples of the scale."""
        vectors = as_floats(queries, self._nesting.dim)
        scores = np.empty((len(vectors), len(self._partition.lists)), np.float32)
        if self.compiled.score_lists(vectors, scores) >= 0:
            check_scores(vectors, self._nesting, self._metric)
        return scores
