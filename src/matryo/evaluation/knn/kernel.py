"""The compiled scan of an evaluation search: all dims in one pass, with the kernel of ``src/core/neighbours.h``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import require_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Bools, Floats

    Indices = np.ndarray[Any, np.dtype[np.int64]]

_TILE = 48 << 20   # bytes of the database rows that all queries scan before the next tile


class Scan:
    """The best ``k`` so far of some queries at every dim. Tiles of the database come in order, ``load`` then ``score``.

    Each query has a list of rows per dim. Rows above the bar, the k-th best at the last cut, are added. A full list is
    cut to the best k, about once per doubling of the rows seen.
    """

    def __init__(self, queries: Floats, dims: Sequence[int], k: int, count: int) -> None:
        self.queries, self.dims, self.k = len(queries), tuple(dims), k
        core = require_core()
        self.rows = max(1, _TILE // (core.PANEL_ROWS * _row_bytes(dims[-1], len(dims)))) * core.PANEL_ROWS
        self.core = core.Neighbours(queries, np.array(dims, np.int64), k, _room(k, count), core.default_threads())

    @staticmethod
    def batch(dim: int, dims: int, k: int, count: int, budget: int) -> int:
        """Return the number of queries to scan at a time within ``budget`` bytes."""
        core = require_core()
        tile: int = max(_TILE, core.PANEL_ROWS * _row_bytes(dim, dims))
        query = 10 * (dim + dims) + dims * (8 * _room(k, count) + 8 * k + 32)
        least: int = core.GROUP_QUERIES * core.default_threads()
        return max(least, (budget - tile) // query)

    def load(self, tile: Floats) -> Floats:
        """Load the next tile, at most ``rows`` rows; return the norms of their prefixes, [rows, dims]."""
        norms = np.empty((len(tile), len(self.dims)), np.float32)
        self.core.load(tile, norms)
        return norms

    def guess(self, rows: Floats, share: float) -> None:
        """Set bars that somewhat more rows of a sample reach than the ``share`` of the best k it should hold."""
        few = int(share + 4 * share**0.5 + 4)
        part = few / 16   # a bar for the sample itself, from one row of sixteen; none if that is too high
        for some, keep in ((rows[::16], int(part + 2 * part**0.5 + 2)), (rows, few)) if 8 * few < len(rows) else ():
            self.load(np.ascontiguousarray(some))
            self.core.guess(keep)

    def score(self, first: int) -> None:
        """Score the loaded tile, which begins at row ``first`` of the database."""
        self.core.score(first)

    def short(self) -> Bools:
        """Return the queries with fewer than k rows above a bar, which was then guessed too high."""
        result = np.empty(self.queries, np.bool_)
        self.core.short(result)
        return result

    def keys(self) -> dict[int, Indices]:
        """Return the keys of the best, [queries, k] by dim, best first; see :mod:`matryo.evaluation.knn.keys`."""
        keys = np.empty((len(self.dims), self.queries, self.k), np.int64)
        self.core.keys(keys)
        return dict(zip(self.dims, keys, strict=True))


def _row_bytes(dim: int, dims: int) -> int:
    return 6 * (dim + dims) + 20 * dims   # the row, its 16-bit words (one spare column per dim), and norms


def _room(k: int, count: int) -> int:
    return max(k + 1, min(count, k + max(k, 32)))
