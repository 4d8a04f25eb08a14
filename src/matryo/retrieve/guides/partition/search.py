"""Search partitions along a plan, by compiled loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import MissingExtra
from matryo.retrieve.engines.compiled.engine import addresses
from matryo.retrieve.guides.partition.build import LANES
from matryo.retrieve.guides.partition.steps import check_plan, steps_of
from matryo.retrieve.vectors.blocks import Blocks, checked_norms
from matryo.retrieve.vectors.metric import METRICS
from matryo.retrieve.vectors.queries import as_mask, as_queries, check_not_zero

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition.partition import Partition
    from matryo.retrieve.plan.plan import Plan
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
        self._kernels = _kernels()
        self._k, self._metric, self._nesting, self._count = k, partition.metric, blocks.nesting, blocks.count
        self._stages, self._margins = steps_of(plan, blocks, partition)
        self._everyone = np.empty(0, np.bool_)
        # The machine, an array, holds addresses only. The arrays at these addresses are kept alive here.
        self._tables = addresses(blocks, blocks.nesting.dim), np.array(blocks.nesting.dims, np.int64)
        self._held = blocks.picked, blocks.norms, partition
        self._machine = self._assembled(blocks, partition, plan)

    def __call__(self, queries: Any, allowed: Any = None) -> tuple[Indices, Doubles]:
        """Return the best k rows of each of the ``queries`` [n, d], or of one [d], and their scores; both [n, k].

        Hits are sorted nearest first; of equal scores the smaller row comes first. Scores are computed from the stored
        vectors at the plan's last dim, in float64. ``allowed`` is a mask of the rows that may be found in the visited
        partitions. If there are fewer than k, the remaining places have row −1 and score −∞.
        """
        array = np.asarray(queries)
        array = as_queries(array[None] if array.ndim == 1 else array, self._nesting.dim)
        if array.dtype != np.float32 or not array.flags.c_contiguous:
            with np.errstate(over="ignore"):   # checked_norms reports overflows, with the row
                array = np.ascontiguousarray(array, np.float32)
        mask = as_mask(allowed, self._count) if self._count else None
        mask = self._everyone if mask is None else np.ascontiguousarray(mask)   # an empty mask allows all
        rows, scores = np.empty((len(array), self._k), np.int64), np.empty((len(array), self._k))
        bad = self._kernels.search(self._machine, self._stages, self._margins, array, mask, rows, scores)
        if bad >= 0:
            norms = checked_norms(array[bad : bad + 1], self._nesting, "queries", bad)
            check_not_zero(norms[:, -1:], bad)
        return rows, scores

    def _assembled(self, blocks: Blocks, partition: Partition, plan: Plan) -> Indices:
        lists = len(partition.lists)
        everywhere = plan.probe in (None, 1) or not blocks.count
        share = min(1.0, _MOST * (plan.probe or 1.0))
        numbers = {
            "metric": METRICS.index(partition.metric),
            "width": blocks.nesting.dim, "dim": partition.dim, "long": partition.long,
            "fours": partition.tiles.shape[1] // (4 * LANES), "list_count": lists,
            "tile_count": len(partition.tiles), "mean_tiles": len(partition.means),
            "wanted": -1 if everywhere else max(1, round(share * blocks.count)),
            # About twice as many partitions as hold that share on average, because sizes differ.
            "most": min(lists, int(2 * share * lists) + 16),
            "k": self._k, "stride": partition.codes.shape[1], "levels": len(blocks.nesting),
            "block_count": len(blocks.full), "count": blocks.count, "half": int(blocks.dtype == "float16"),
        }
        arrays = {**partition.arrays(), "norms": blocks.norms, "blocks": self._tables[0], "dims": self._tables[1]}
        numbers |= {name: array.ctypes.data for name, array in arrays.items()}
        return np.array([numbers[name] for name in self._kernels.FIELDS], np.int64)


def _kernels() -> Any:
    with MissingExtra.unless_installed("numba", "retrieve"):
        from matryo.retrieve.guides.partition import kernels
    return kernels
