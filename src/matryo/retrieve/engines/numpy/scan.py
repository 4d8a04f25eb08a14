"""The first stage: score every allowed row at one dim with BLAS, in tiles, and keep the best.

A tile of scores fits the cache, whatever the number of rows. Only the few scores above the worst kept so far leave it.
BLAS rounds a row's score differently depending on its position in the matrix. BLAS therefore only selects candidates,
a few more than needed, by the ceilings of :mod:`matryo.retrieve.engines.exact`; their scores are computed one by one.

>>> from matryo.nesting import Nesting
>>> from matryo.retrieve import Blocks, Stage
>>> blocks = Blocks.of([[1, 0], [3, 4], [0, 1]], Nesting([1, 2]))
>>> request = Request(blocks, np.array([[3, 4]], "f4"), metric="l2")
>>> rows, sums, scores = first_stage(request, Stage(dim=2, keep=2))
>>> rows.tolist(), sums.tolist(), scores.tolist()
([[1, 2]], [[25.0, 4.0]], [[0.0, -18.0]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.arguments import checked
from matryo.retrieve.engines.exact import ceilings
from matryo.retrieve.engines.numpy.shortlist import Shortlist, query_norms, rerank
from matryo.retrieve.engines.request import Request
from matryo.retrieve.vectors.metric import NOTHING, key_rows, key_scores, keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.retrieve.plan.plan import Precision, Stage
    from matryo.retrieve.vectors.types import Bools, Doubles, Floats, Indices, Keys, Rows

_TILE = (512, 1024)   # queries × rows scored at a time: much work per product, yet small enough for the cache
_READ = 1 << 22   # the most numbers in a tile of rows, where few queries make it long
FEW = 8   # below this many queries, a plain sum of products is as fast as BLAS
_STEP = 64   # tile lengths are multiples of this, so that BLAS rounds every row alike
MORE = 16   # candidates selected beyond keep, because exact scores may change their order


class Candidates(NamedTuple):
    """Rows that look best to each query."""

    rows: Indices
    """[queries, n], unsorted; −1 where there are too few."""
    ceiling: Floats
    """[queries, 1], not below the exact score of any row that is not a candidate; −∞ if there is none."""


@checked
def first_stage(request: Request, stage: Stage) -> Shortlist:
    """Return the best ``stage.keep`` rows at ``stage.dim`` for each query; of equal scores the smaller row first."""
    # In float64, whose rounding errors are too small to appear in a float32 sum: so the sums of equal rows are equal,
    # wherever BLAS reads them.
    return rerank(request, unscored(choose(request, stage, np.float64).rows), stage)


def unscored(rows: Indices) -> Shortlist:
    """Return a shortlist of ``rows`` [queries, n] that has no sums yet."""
    zeros = np.zeros(rows.shape, np.float32)
    return Shortlist(rows, zeros, zeros)


def choose(request: Request, stage: Stage, dtype: Any = np.float32) -> Candidates:
    """Return the ``stage.keep`` rows of each query with the highest ceilings, and some more; sums are in ``dtype``."""
    best: dict[int, _Best] = {}
    for rows, queries, scores in scan(request, stage.dim, stage.precision, dtype):
        best.setdefault(queries.start, _Best(len(scores), stage.keep + MORE)).take(rows, scores)
    found = Candidates(
        np.full((len(request.queries), stage.keep + MORE), -1), np.full((len(request.queries), 1), -np.inf, np.float32)
    )
    for start, chosen in best.items():
        part = slice(start, start + len(chosen.keys))
        found.rows[part], found.ceiling[part] = chosen.rows(), chosen.worst
    return found


def scan(
    request: Request, dim: int, precision: Precision = "full", dtype: Any = np.float32
) -> Iterator[tuple[Rows, slice, Floats]]:
    """Yield tiles of the allowed rows, in order, each with some of the queries, and the ceilings of their scores."""
    blocks, queries = request.blocks, request.queries
    level = blocks.level(dim)
    height, width = _tile(len(queries), blocks.count, dim)
    lengths, few = query_norms(queries, dim), len(queries) < FEW
    # Groups of about equal size: for a group of one, BLAS would round by position.
    groups = np.array_split(queries[:, :dim].astype(np.float32 if few else dtype), -(-len(queries) // height) or 1)
    products = _sums if few else _blas
    for rows in _tiles(blocks.count, width, request.allowed):
        parts = [blocks.columns(number, rows, precision) for number in range(level + 1)]
        norms, start = blocks.norms[rows, level], 0
        for sums in products(groups, parts, width):
            some = slice(start, start + len(sums))
            yield rows, some, ceilings(request.metric, sums, norms, lengths[some], dim)
            start = some.stop


def scan_around(request: Request, dim: int) -> Iterator[tuple[Rows, slice, Floats]]:
    """Yield as :func:`scan`, but for vectors relative to the mean of the queries; for cosine, ceilings of scores − 1.

    Far from the origin, float32 sums lose what tells vectors apart: their errors grow with the norms. Relative to the
    queries, near vectors have small norms. The cosine is a distance of unit vectors: −‖x − q‖² / 2 is its score − 1.
    """
    blocks, cosine = request.blocks, request.metric == "cosine"
    queries = _as_doubles(request.queries[:, :dim], cosine)
    centre = queries.mean(0)
    apart = (queries - centre).astype(np.float32)
    lengths = query_norms(apart, dim)
    groups = np.array_split(apart, -(-len(apart) // _TILE[0]))
    for rows in _tiles(blocks.count, _TILE[1], request.allowed):
        vectors = _as_doubles(blocks.rows(rows, dim), cosine)
        lost = 2.0**-48 * np.abs(vectors).max(initial=0) * dim   # exceeds the rounding errors of float64
        tile = (vectors - centre).astype(np.float32)
        norms, start = query_norms(tile, dim)[:, 0], 0
        for sums in _blas(groups, [tile], _TILE[1]):
            some = slice(start, start + len(sums))
            highest = ceilings("l2", sums, norms, lengths[some], dim)
            highest += np.float32(lost) * (lengths[some] + norms.max(initial=0) + np.float32(lost))
            if cosine:   # of which float64 scores may differ by more than their distance from 1
                highest *= np.float32(0.5)
                highest += np.float32((dim + 32) * 2.0**-52)
            yield rows, some, highest
            start = some.stop


def _as_doubles(vectors: Floats, unit: bool) -> Doubles:
    doubles = vectors.astype(np.float64)
    if unit:
        lengths = np.sqrt(np.square(doubles).sum(1, keepdims=True))
        doubles /= np.where(lengths > 0, lengths, 1)
    return doubles


class _Best:
    """The best ``keep`` rows so far of some queries, as keys. Tiles of rows arrive in order.

    Scores above the worst kept wait until there are as many of them as are kept, because merging costs that much. The
    further the scan, the fewer scores of a tile qualify.
    """

    def __init__(self, queries: int, keep: int) -> None:
        self.keep = keep
        self.keys = np.full((queries, keep), NOTHING, np.int64)
        self.worst = np.full((queries, 1), -np.inf, np.float32)
        self.waiting: list[tuple[Indices, Keys]] = []   # the queries and the keys of each tile

    def take(self, rows: Rows, scores: Floats) -> None:
        """Add the scores of a tile of ``rows``, [queries, rows]."""
        query, column = np.divmod(np.flatnonzero(self._hopeful(scores)), scores.shape[1])
        row = column + rows.start if isinstance(rows, slice) else rows[column]
        self.waiting.append((query, keys(scores[query, column], row)))
        if sum(len(queries) for queries, _ in self.waiting) >= self.keys.size:
            self._merge()

    def rows(self) -> Indices:
        """The best rows, unsorted; −1 where there are too few."""
        self._merge()
        return key_rows(self.keys)

    def _hopeful(self, scores: Floats) -> Bools:
        width = scores.shape[1]
        if width > self.keep and np.isneginf(self.worst).any():
            # Fewer than keep rows so far: the keep-th best of some columns is a valid bound, and cheap to find.
            sample = scores[:, : max(4 * self.keep, width // 8)]
            at = sample.shape[1] - self.keep
            return scores >= np.maximum(self.worst, np.partition(sample, at, axis=1)[:, at, None])
        # Strictly better: a later row equal to the worst kept one would lose the tie.
        return scores > self.worst

    def _merge(self) -> None:
        if not self.waiting:
            return
        query, new = (np.concatenate(arrays) for arrays in zip(*self.waiting, strict=True))
        self.waiting = []
        order = np.argsort(query, kind="stable")
        both = np.concatenate([self.keys, packed(query[order], new[order], len(self.keys), NOTHING)], axis=1)
        both.partition(both.shape[1] - self.keep, axis=1)
        self.keys = both[:, -self.keep :].copy()
        self.worst = key_scores(self.keys[:, :1])


def packed(query: Indices, values: Indices, queries: int, empty: int) -> Indices:
    """Return a flat list, sorted by ``query``, as a rectangle: the values of each query, then ``empty`` places."""
    counts = np.bincount(query, minlength=queries)
    made = np.full((queries, int(counts.max(initial=0))), empty)
    made[query, np.arange(len(query)) - (np.cumsum(counts) - counts)[query]] = values
    return made


def _tile(queries: int, count: int, dim: int) -> tuple[int, int]:
    # The fewer the queries, the longer a tile.
    height, width = _TILE
    long = max(width, min(height * width // max(1, queries), _READ // dim))
    return height, min(long, -(-count // _STEP) * _STEP)


def _tiles(count: int, width: int, allowed: Bools | None) -> Iterator[Rows]:
    # Rows that are not allowed are never read: a tile gathers the allowed ones.
    if allowed is None or allowed.all():
        yield from (slice(start, min(start + width, count)) for start in range(0, count, width))
    else:
        rows = np.flatnonzero(allowed)
        yield from (rows[start : start + width] for start in range(0, len(rows), width))


def _blas(groups: list[Floats], parts: list[Floats], width: int) -> Iterator[Floats]:
    # Yields the inner products of each group of queries with a tile of rows, whose columns lie in parts.
    # How BLAS rounds depends on the shape of a matrix, so all tiles have the same: the last is padded with zeros.
    count, tile = len(parts[0]), parts[0]
    if len(parts) > 1 or count < width:
        tile = np.zeros((width, sum(part.shape[1] for part in parts)), np.float32)
        np.concatenate(parts, axis=1, out=tile[:count])
    tile = tile.astype(groups[0].dtype, copy=False)
    for queries in groups:
        yield (queries @ tile.T)[:, :count].astype(np.float32, copy=False)


def _sums(groups: list[Floats], parts: list[Floats], _width: int) -> Iterator[Floats]:
    # As _blas, by plain sums: for few queries BLAS is no faster.
    for queries in groups:
        sums, low = np.zeros((len(queries), len(parts[0])), np.float32), 0
        for part in parts:
            high = low + part.shape[1]
            sums += np.einsum("qd,nd->qn", queries[:, low:high], part)
            low = high
        yield sums
