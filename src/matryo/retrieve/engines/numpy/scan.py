"""The first stage: every allowed row at one dim, and the best of them, through BLAS in tiles.

A tile of scores is as large as a cache, whatever the number of rows, and only the few scores that beat the worst
kept so far leave it. The rounding of BLAS depends on where in a matrix a row lies, so it only chooses: those it
chooses, and some more, are scored anew by :func:`matryo.retrieve.engines.numpy.shortlist.rerank`.

>>> from matryo.nesting import Nesting
>>> blocks = Blocks.of([[1, 0], [3, 4], [0, 1]], Nesting([1, 2]))
>>> rows, sums, scores = first_stage(blocks, np.array([[3, 4]], "f4"), dim=2, keep=2, metric="l2")
>>> rows.tolist(), sums.tolist(), scores.tolist()
([[1, 2]], [[25.0, 4.0]], [[0.0, -18.0]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.retrieve.engines.numpy.shortlist import Shortlist, query_norms, rerank
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import NOTHING, Metric, key_rows, key_scores, keys, score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.retrieve.plan.plan import Precision

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]
    Keys = np.ndarray[Any, np.dtype[np.int64]]
    Rows = slice | Indices

__all__ = ["FEW", "MORE", "choose", "first_stage", "unscored"]

_TILE = (512, 1024)   # queries × rows scored at a time: much work a product, yet near the cache
_READ = 1 << 22   # numbers of a tile of rows, where few queries make it long
FEW = 8   # queries below which a plain sum of products is as fast as BLAS
_STEP = 64   # rows of which BLAS rounds each alike: a multiple of what its inner loops take at a time
MORE = 16   # rows chosen beyond those asked for, as others may be the best once scored anew


def first_stage(
    blocks: Blocks,
    queries: Floats,
    dim: int,
    keep: int,
    metric: Metric,
    precision: Precision = "full",
    allowed: Bools | None = None,
) -> Shortlist:
    """The best ``keep`` rows at ``dim`` for each of the ``queries`` [n, d], among the ``allowed`` (a mask; None: all).

    Of equal scores the smaller row comes first.
    """
    chosen = choose(blocks, queries, dim, keep, metric, precision, allowed)
    return rerank(blocks, queries, unscored(chosen), 0, dim, keep, metric, precision)


def unscored(rows: Indices) -> Shortlist:
    """Rows of which nothing is known yet."""
    nothing = np.zeros(rows.shape, np.float32)
    return Shortlist(rows, nothing, nothing)


def choose(
    blocks: Blocks,
    queries: Floats,
    dim: int,
    keep: int,
    metric: Metric,
    precision: Precision = "full",
    allowed: Bools | None = None,
) -> Indices:
    """Rows that have the best ``keep`` among them, and some more, in no order; −1 where there are too few."""
    level = blocks.level(dim)
    height, width = _tile(len(queries), blocks.count, dim)
    # Of about equal size: of a group of one, the product would be one that BLAS rounds by place.
    groups = np.array_split(queries[:, :dim], -(-len(queries) // height) or 1)
    lengths = np.array_split(query_norms(queries, dim), len(groups))
    best = [_Best(len(group), keep + MORE) for group in groups]
    products = _sums if len(queries) < FEW else _blas
    for rows in _tiles(blocks.count, width, allowed):
        parts = [blocks.columns(number, rows, precision) for number in range(level + 1)]
        norms = blocks.norms[rows, level]
        for sums, length, chosen in zip(products(groups, parts, width), lengths, best, strict=True):
            chosen.take(rows, score(metric, sums, norms, length))
    return np.concatenate([chosen.rows() for chosen in best])


class _Best:
    """The best ``keep`` so far of some queries, as keys. Tiles of rows come in order.

    What beats the worst kept waits until there is as much of it as is kept, as merging costs that much; the further
    the scan, the less of a tile is any good.
    """

    def __init__(self, queries: int, keep: int) -> None:
        self.keep = keep
        self.keys = np.full((queries, keep), NOTHING, np.int64)
        self.worst = np.full((queries, 1), -np.inf, np.float32)
        self.waiting: list[tuple[Indices, Keys]] = []   # the query of each, and its key

    def take(self, rows: Rows, scores: Floats) -> None:
        """Take in the scores of a tile of ``rows``."""
        query, column = np.divmod(np.flatnonzero(self._hopeful(scores)), scores.shape[1])
        row = column + rows.start if isinstance(rows, slice) else rows[column]
        self.waiting.append((query, keys(scores[query, column], row)))
        if sum(len(one) for one, _ in self.waiting) >= self.keys.size:
            self._merge()

    def rows(self) -> Indices:
        """The best, in no order; −1 where there are too few."""
        self._merge()
        return key_rows(self.keys)

    def _hopeful(self, scores: Floats) -> Bools:
        width = scores.shape[1]
        if width > self.keep and np.isneginf(self.worst).any():
            # Too few to beat yet: the keep-th best of some columns is a bound too, and cheap to find.
            some = scores[:, : max(4 * self.keep, width // 8)]
            at = some.shape[1] - self.keep
            return scores >= np.maximum(self.worst, np.partition(some, at, axis=1)[:, at, None])
        # Strictly better: a later row that only equals the worst kept one loses the tie anyway.
        return scores > self.worst

    def _merge(self) -> None:
        if not self.waiting:
            return
        query, found = (np.concatenate([one[part] for one in self.waiting]) for part in range(2))
        self.waiting = []
        # Ragged to rectangular: each query's own side by side, after what it has.
        order = np.argsort(query, kind="stable")
        query = query[order]
        counts = np.bincount(query, minlength=len(self.keys))
        place = np.arange(len(query)) - (np.cumsum(counts) - counts)[query] + self.keep
        both = np.pad(self.keys, ((0, 0), (0, int(counts.max(initial=0)))), constant_values=NOTHING)
        both[query, place] = found[order]
        both.partition(both.shape[1] - self.keep, axis=1)
        self.keys = both[:, -self.keep :].copy()
        self.worst = key_scores(self.keys[:, :1])


def _tile(queries: int, count: int, dim: int) -> tuple[int, int]:
    # Few queries make a tile long.
    height, width = _TILE
    long = max(width, min(height * width // max(1, queries), _READ // dim))
    return height, min(long, -(-count // _STEP) * _STEP)


def _tiles(count: int, width: int, allowed: Bools | None) -> Iterator[Rows]:
    # In order. Rows that are not allowed are never read: among few allowed ones, a tile gathers from far.
    if allowed is None or allowed.all():
        yield from (slice(start, min(start + width, count)) for start in range(0, count, width))
    else:
        rows = np.flatnonzero(allowed)
        yield from (rows[start : start + width] for start in range(0, len(rows), width))


def _blas(groups: list[Floats], parts: list[Floats], width: int) -> Iterator[Floats]:
    # The inner products of each group of queries with the rows whose columns lie in parts, one after the other.
    # BLAS rounds by the shape of a matrix, so all tiles have one: zeros fill up the last.
    count, tile = len(parts[0]), parts[0]
    if len(parts) > 1 or count < width:
        tile = np.zeros((width, sum(part.shape[1] for part in parts)), np.float32)
        np.concatenate(parts, axis=1, out=tile[:count])
    for queries in groups:
        yield (queries @ tile.T)[:, :count]


def _sums(groups: list[Floats], parts: list[Floats], _width: int) -> Iterator[Floats]:
    # The same without BLAS, which is no faster for few queries.
    for queries in groups:
        sums, low = np.zeros((len(queries), len(parts[0])), np.float32), 0
        for part in parts:
            high = low + part.shape[1]
            sums += np.einsum("qd,nd->qn", queries[:, low:high], part)
            low = high
        yield sums
