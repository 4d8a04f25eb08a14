"""Exact nearest neighbours at many dims in one pass: a score at dim m is a running sum over blocks.

The inner product of two prefixes is that of the shorter ones plus the inner product of the next block, so all
dims together cost one product at the largest. Dividing by the norm of the database prefix gives the order of
the cosine, which on unit vectors is also that of the L2 distance.

>>> queries = np.array([[1.0, 0.0, 0.0]], np.float32)
>>> database = np.array([[1.0, 0.0, 9.0], [1.0, 0.1, 0.0]], np.float32)
>>> {dim: hits.tolist() for dim, hits in search(database, queries, dims=[2, 3], k=1).items()}
{2: [[0]], 3: [[1]]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matryo.errors import EmbeddingsError, InputError, MissingExtra
from matryo.nesting import Nesting, prefix_norms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.evaluation.knn import kernel

    Vectors = np.ndarray[Any, np.dtype[np.floating[Any]]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Keys = np.ndarray[Any, np.dtype[np.int64]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["NeighbourBatch", "search", "search_batches"]

_BUDGET = 256 << 20   # bytes for a batch of queries, its best so far at every dim, and a tile of the database
_TILE = (1024, 2048)   # queries × database rows scored at a time: much work a product, yet near the cache
_SAMPLE = 32 << 20   # bytes of rows that are looked at first, at most
_REPAYS = 1 << 31   # multiplications from which on loading the compiled loop is time well spent
_NOTHING = np.iinfo(np.int64).min   # the key of no neighbour at all, below that of any score


@dataclass(frozen=True)
class NeighbourBatch:
    """The neighbours of the queries from ``start`` on: database rows [queries, k] by dim, nearest first."""

    start: int
    indices: dict[int, Indices]


def search(
    database: Vectors,
    queries: Vectors,
    dims: Sequence[int],
    k: int,
    *,
    fast: bool | None = None,
    progress: bool = False,
) -> dict[int, Indices]:
    """The ``k`` nearest database rows of each query at each dim, [queries, k], nearest first.

    Near means cosine at that dim, in float32; of equal scores the smaller row comes first. ``fast=True`` takes the
    compiled loop, which needs numba, ``False`` plain numpy; their scores differ by rounding only. By default a search
    long enough to repay the loading is compiled, where numba is installed.
    """
    batches = list(search_batches(database, queries, dims, k, fast=fast, progress=progress))
    return {dim: np.concatenate([batch.indices[dim] for batch in batches]) for dim in dims}


def search_batches(
    database: Vectors,
    queries: Vectors,
    dims: Sequence[int],
    k: int,
    *,
    fast: bool | None = None,
    progress: bool = False,
) -> Iterator[NeighbourBatch]:
    """:func:`search`, batch by batch of queries, for those who keep less than every index."""
    nesting = Nesting(dims)
    _check(database, queries, nesting, k)
    pairs = len(queries) * len(database)
    scan = _pick(fast, pairs * nesting.dim)
    rows = scan.batch(nesting.dim, len(nesting), k, len(database), _BUDGET)
    sample = _sample(database, nesting.dim) if scan is not Scan else np.empty((0, nesting.dim), np.float32)
    with tqdm(desc="search", total=pairs, unit="pair", unit_scale=True, delay=2, disable=not progress) as bar:
        for start in range(0, len(queries), rows):
            batch = _widen(queries[start : start + rows, : nesting.dim])
            norms = _finite(_norms(batch, [nesting.dim]), "query", start)
            # By a power of two, so that no score overflows and none is rounded.
            scaled = np.ldexp(batch, -np.frexp(norms)[1])
            best = scan(scaled, nesting.dims, k, len(database))
            best.guess(sample, k * len(sample) / len(database))
            _feed(best, len(scaled), database, nesting, bar)
            short = best.short()
            found = best.indices()
            if short.any():   # a guess that was too high, which is rare: every row again, for these queries
                best = scan(scaled[short], nesting.dims, k, len(database))
                _feed(best, 0, database, nesting, bar)
                for dim, again in best.indices().items():
                    found[dim][short] = again
            yield NeighbourBatch(start, found)


def _feed(best: Scan | kernel.Scan, queries: int, database: Vectors, nesting: Nesting, bar: Any) -> None:
    for first in range(0, len(database), best.rows):
        tile = _widen(database[first : first + best.rows, : nesting.dim])
        _finite(best.load(tile), "database", first)
        best.score(first)
        bar.update(queries * len(tile))


def _sample(database: Vectors, dim: int) -> Floats:
    """Some rows from everywhere: one of each eight, or fewer. More would cost more than the better guess saves."""
    stride = max(8, -(-4 * len(database) * dim // _SAMPLE))
    starts = np.arange(0, len(database) - stride + 1, stride)
    return _widen(database[starts + np.random.default_rng(0).integers(0, stride, len(starts)), :dim])


def _pick(fast: bool | None, work: int) -> type[Scan | kernel.Scan]:
    if fast or (fast is None and work >= _REPAYS):
        try:
            from matryo.evaluation.knn import kernel
        except ImportError as error:
            if fast:
                raise MissingExtra("numba", "evaluate") from error
        else:
            return kernel.Scan
    return Scan


class Scan:
    """The best ``k`` so far of some queries at every dim. Tiles of the database come in order, ``load`` then ``score``.

    This one is plain numpy, and the oracle of the compiled :class:`matryo.evaluation.knn.kernel.Scan`.
    """

    def __init__(self, queries: Floats, dims: Sequence[int], k: int, _count: int) -> None:
        self.queries, self.nesting = queries, Nesting(dims)
        self.height, self.rows = _TILE
        self.best = [_Best(len(queries), k) for _ in dims]

    @staticmethod
    def batch(dim: int, dims: int, k: int, _count: int, budget: int) -> int:
        """How many queries to scan at a time, to stay within ``budget`` bytes."""
        height, width = _TILE
        spare = budget - 4 * width * (2 * dim + 3 * height)
        return max(height, spare // (4 * dim + 2 * 8 * k * dims))

    def guess(self, rows: Floats, share: float) -> None:
        """Nothing here would gain by it."""

    def short(self) -> Bools:
        """No query: what was not guessed is not too high."""
        return np.zeros(len(self.queries), np.bool_)

    def load(self, tile: Floats) -> Floats:
        """Take in the next rows, at most ``rows`` of them; gives the norms of their prefixes, [rows, dims]."""
        norms = _norms(tile, self.nesting.dims)
        self.tile = tile
        # The same floor as truncate: a zero vector stays zero, so it scores 0 with everything.
        self.scales = np.ascontiguousarray(np.reciprocal(np.maximum(norms, np.finfo(np.float32).tiny)).T)
        return norms

    def score(self, first: int) -> None:
        """Score the rows taken in last, which are the database's from ``first`` on."""
        for top in range(0, len(self.queries), self.height):
            rows = slice(top, top + self.height)
            queries = self.queries[rows]
            total = np.zeros((len(queries), len(self.tile)), np.float32)
            added, scores = np.empty_like(total), np.empty_like(total)
            for (low, high), scale, found in zip(self.nesting.blocks, self.scales, self.best, strict=True):
                np.matmul(queries[:, low:high], self.tile[:, low:high].T, out=added)
                total += added
                np.multiply(total, scale, out=scores)
                found.merge(scores, rows, first)

    def indices(self) -> dict[int, Indices]:
        """The rows of the best, [queries, k] by dim, best first."""
        return {dim: best.indices() for dim, best in zip(self.nesting.dims, self.best, strict=True)}


class _Best:
    """The best k so far of each query at one dim, as 64-bit keys that sort by score, then by smaller row.

    One integer holds both, so selecting is a plain partition and ties never depend on its whims.
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.keys = np.full((queries, k), _NOTHING, np.int64)
        self.worst = np.full(queries, -np.inf, np.float32)   # to be beaten; most of a tile does not

    def merge(self, scores: Floats, rows: slice, first: int) -> None:
        """Take in the scores of the database rows from ``first`` on; these must come in order."""
        width = scores.shape[1]
        if first == 0 and width > self.k:
            # No score to beat yet: the k-th best of the first few columns is one, and cheap to find.
            few = scores[:, : 8 * self.k]
            kth = few.shape[1] - self.k
            hopeful = scores >= np.partition(few, kth, axis=1)[:, kth, None]
        else:
            # Strictly better: a later row that only equals the worst kept one loses the tie anyway.
            hopeful = scores > self.worst[rows, None]
        flat = np.flatnonzero(hopeful)
        if len(flat) == 0:
            return
        query, column = np.divmod(flat, width)
        found = _pack(_keys(scores.ravel()[flat], column + first), query, len(scores))
        both = np.concatenate([self.keys[rows], found], axis=1)
        both.partition(found.shape[1], axis=1)
        self.keys[rows] = both[:, -self.k :]
        self.worst[rows] = _scores(self.keys[rows, 0])

    def indices(self) -> Indices:
        ordered = np.sort(self.keys, axis=1)[:, ::-1]
        return 0xFFFFFFFF - (ordered & 0xFFFFFFFF)


def _keys(scores: Floats, rows: Indices) -> Keys:
    # Floats sort like sign-magnitude integers; flipping the magnitude of the negative makes these ordinary.
    bits = (scores + np.float32(0)).view(np.int32)   # + 0 turns −0 into 0: equal scores need equal keys
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.astype(np.int64) << 32) | (0xFFFFFFFF - rows)


def _scores(keys: Keys) -> Floats:
    ordered = (keys >> 32).astype(np.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
    return np.where(keys == _NOTHING, np.float32(-np.inf), scores)


def _pack(keys: Keys, query: Indices, queries: int) -> Keys:
    # Ragged to rectangular: each query's keys side by side, the rest of its row filled with nothing.
    counts = np.bincount(query, minlength=queries)
    starts = np.cumsum(counts) - counts
    packed = np.full((queries, int(counts.max())), _NOTHING, np.int64)
    packed[query, np.arange(len(keys)) - starts[query]] = keys
    return packed


def _widen(vectors: Vectors) -> Floats:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _norms(vectors: Floats, dims: Sequence[int]) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):   # told by _finite, with the row
        return prefix_norms(vectors, dims)


def _finite(norms: Floats, which: str, first: int) -> Floats:
    bad = np.flatnonzero(~np.isfinite(norms).all(axis=1))
    if len(bad):
        raise EmbeddingsError(
            f"every {which} vector must be finite, with a norm that float32 can hold",
            got=f"NaN, infinity or overflow in row {first + bad[0]}",
            cure="check the folder with EmbeddingSet.verify(), and encode such rows again",
        )
    return norms


def _check(database: Vectors, queries: Vectors, nesting: Nesting, k: int) -> None:
    if database.ndim != 2 or queries.ndim != 2 or database.shape[1] != queries.shape[1]:
        raise EmbeddingsError(
            "database and queries must be two-dimensional with the same number of columns",
            got=f"{database.shape} and {queries.shape}",
            cure="encode both with one model",
        )
    nesting.check_fits(database.shape[1])
    if not 1 <= k <= len(database):
        raise InputError(f"k must lie in 1 … {len(database)}, the database's size", got=k, cure="ask less")
    if len(queries) == 0:
        raise InputError("there must be at least one query", got=0, cure="give some queries")
    if len(database) > 0xFFFFFFFF:
        raise InputError("the database must have fewer than 2³² vectors", got=len(database), cure="split it")
