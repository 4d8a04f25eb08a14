"""The scan of :mod:`matryo.evaluation.search` with the compiled loop, on all cores: each takes some of the queries.

It needs the extra ``fast``; search imports it on request.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation import kernel
from matryo.evaluation.kernel import LANES, QUERIES, THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Scan"]

_TILE = 8 << 20   # bytes of database rows that all queries meet before the next come: near the cache
_PART = 16   # sixes of queries that a thread takes at a time


class Scan:
    """The best ``k`` so far of some queries at every dim. Tiles of the database come in order, ``load`` then ``score``.

    Of each query at each dim there is a list of keys (see ``_key``). What is above the bar, the k-th best when last
    looked, is appended; a full list is cut back to the best k. Much cheaper than a heap, and the list is full only
    once for every doubling of the rows seen.
    """

    def __init__(self, queries: Floats, dims: Sequence[int], k: int, count: int) -> None:
        self.queries, self.dims, self.k = len(queries), tuple(dims), k
        self.ends = np.array(self.dims)
        self.rows = max(1, _TILE // (4 * LANES * dims[-1])) * LANES
        groups = -(-len(queries) // QUERIES)
        padded = np.zeros((groups * QUERIES, dims[-1]), np.float32)
        padded[: len(queries)] = queries
        self.packed = np.ascontiguousarray(padded.reshape(groups, QUERIES, -1).transpose(0, 2, 1))
        lists = (groups, len(dims), QUERIES)
        self.bars = np.full(lists, -np.inf, np.float32)
        self.counts = np.zeros(lists, np.int64)
        self.keys = np.empty((*lists, _capacity(k, count)), np.int64)
        step = min(_PART, -(-groups // THREADS))
        self.parts = [slice(start, start + step) for start in range(0, groups, step)]

    @staticmethod
    def batch(dim: int, dims: int, k: int, count: int, budget: int) -> int:
        """How many queries to scan at a time, to stay within ``budget`` bytes."""
        tile = 3 * max(_TILE, 4 * LANES * dim)   # as it came, as panels, and norms
        query = 2 * 4 * dim + dims * (8 * _capacity(k, count) + 8 * k + 12)
        return max(QUERIES * THREADS, (budget - tile) // query)

    def load(self, tile: Floats) -> Floats:
        """Take in the next rows, at most ``rows`` of them; gives the norms of their prefixes, [rows, dims]."""
        count = -(-len(tile) // LANES)
        self.panels = np.empty((count, self.dims[-1], LANES), np.float32)
        squares = np.empty((count, len(self.dims), LANES), np.float32)
        step = -(-count // THREADS)

        def pack(start: int) -> None:
            rows, part = tile[start * LANES : (start + step) * LANES], slice(start, start + step)
            kernel.pack(rows, self.ends, self.panels[part], squares[part])

        _together(pack, range(0, count, step))
        norms = np.sqrt(squares)
        # The same floor as truncate: a zero vector stays zero, so it scores 0 with everything.
        self.scales = np.reciprocal(np.maximum(norms, np.finfo(np.float32).tiny))
        return norms.transpose(0, 2, 1).reshape(-1, len(self.dims))[: len(tile)]

    def score(self, first: int) -> None:
        """Score the rows taken in last, which are the database's from ``first`` on."""

        def scan(part: slice) -> None:
            lists = self.bars[part], self.counts[part], self.keys[part]
            kernel.scan(self.packed[part], self.panels, self.scales, self.ends, first, self.k, *lists)

        _together(scan, self.parts)

    def indices(self) -> dict[int, Indices]:
        """The rows of the best, [queries, k] by dim, best first."""
        best = self.keys[..., : self.k]

        def finish(part: slice) -> None:
            kernel.finish(self.keys[part], self.counts[part], self.k)
            best[part].sort(axis=-1)

        _together(finish, self.parts)
        return {dim: self._rows(best[:, i]) for i, dim in enumerate(self.dims)}

    def _rows(self, best: Indices) -> Indices:
        ordered = best.reshape(-1, self.k)[: self.queries, ::-1]
        return 0xFFFFFFFF - (ordered & 0xFFFFFFFF)


def _capacity(k: int, count: int) -> int:
    return min(count, k + max(k, 32))


def _together(do: Callable[[Any], None], parts: Iterable[Any]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(do, parts):
            pass
