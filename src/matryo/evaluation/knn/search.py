"""Exact nearest neighbours at many dims in one pass: a score at dim m is a running sum over blocks.

The inner product of two prefixes is that of the shorter ones plus the inner product of the next block, so all
dims together cost one product at the largest. Dividing by the norm of the database prefix ranks by cosine, which
on unit vectors is also the ranking by L2 distance.

>>> queries = np.array([[1.0, 0.0, 0.0]], np.float32)
>>> database = np.array([[1.0, 0.0, 9.0], [1.0, 0.1, 0.0]], np.float32)
>>> {dim: hits.tolist() for dim, hits in search(database, queries, dims=[2, 3], k=1).items()}
{2: [[0]], 3: [[1]]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.compiled import core, require_core
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.knn.keys import NOTHING, keys_of, rows_of, scores_of
from matryo.nesting import Nesting, prefix_norms
from matryo.progress import tqdm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Bools, Floats
    from matryo.evaluation.knn import kernel

    Vectors = np.ndarray[Any, np.dtype[np.floating[Any]]]
    Keys = np.ndarray[Any, np.dtype[np.int64]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

_BUDGET = 256 << 20   # bytes for a batch of queries, its best so far at every dim, and a tile of the database
_TILE = (1024, 2048)   # queries × database rows scored at a time: much work per product, yet small enough for the cache
_SAMPLE = 32 << 20   # the most bytes of rows sampled for the first bars


@dataclass(frozen=True)
class NeighbourBatch:
    """The neighbours of the queries from ``start`` on: database rows [queries, k] by dim, nearest first."""

    start: int
    indices: dict[int, Indices]


@dataclass(frozen=True)
class KeyBatch:
    """The keys of the neighbours of the queries from ``start`` on, [queries, k] by dim, nearest first."""

    start: int
    keys: dict[int, Keys]


@checked
def search(
    database: Vectors, queries: Vectors, dims: Sequence[int], k: int, *,
    fast: bool | None = None, progress: bool = False,
) -> dict[int, Indices]:
    """Return the ``k`` nearest database rows of each query at each dim, [queries, k], nearest first.

    Rows are ranked by cosine at that dim, in float32; of equal scores the smaller row comes first. ``fast=True`` uses
    the compiled core, ``False`` plain numpy; their scores differ only by rounding. By default, the core is used if it
    is installed.
    """
    batches = list(search_batches(database, queries, dims, k, fast=fast, progress=progress))
    return {dim: np.concatenate([batch.indices[dim] for batch in batches]) for dim in dims}


def search_batches(
    database: Vectors, queries: Vectors, dims: Sequence[int], k: int, *,
    fast: bool | None = None, progress: bool = False,
) -> Iterator[NeighbourBatch]:
    """Yield the results of :func:`search` in batches of queries, for callers that do not keep all of them."""
    for batch in search_keys(database, queries, dims, k, fast=fast, progress=progress):
        yield NeighbourBatch(batch.start, {dim: rows_of(keys) for dim, keys in batch.keys.items()})


def search_keys(
    database: Vectors, queries: Vectors, dims: Sequence[int], k: int, *,
    fast: bool | None = None, progress: bool = False,
) -> Iterator[KeyBatch]:
    """Yield the results of :func:`search` as keys, which those of other parts of the database can be merged with.

    With the compiled core, the keys of a row do not depend on the rows beside it.
    """
    nesting = Nesting(dims)
    _check(database, queries, nesting, k)
    pairs = len(queries) * len(database)
    scan = _pick(fast)
    rows = scan.batch(nesting.dim, len(nesting), k, len(database), _BUDGET)
    sample = _sample(database, nesting.dim) if scan is not Scan else np.empty((0, nesting.dim), np.float32)
    with tqdm(desc="search", total=pairs, unit="pair", unit_scale=True, delay=2, disable=not progress) as bar:
        for start in range(0, len(queries), rows):
            batch = _widen(queries[start : start + rows, : nesting.dim])
            norms = _finite(_norms(batch, [nesting.dim]), "query", start)
            # Scaled by a power of two, which rounds nothing, so that no score overflows.
            scaled = np.ldexp(batch, -np.frexp(norms)[1])
            best = scan(scaled, nesting.dims, k, len(database))
            best.guess(sample, k * len(sample) / len(database))
            _feed(best, len(scaled), database, nesting, bar)
            short = best.short()
            found = best.keys()
            if short.any():   # the guessed bar was too high, which is rare: these queries scan every row again
                best = scan(scaled[short], nesting.dims, k, len(database))
                _feed(best, 0, database, nesting, bar)
                for dim, again in best.keys().items():
                    found[dim][short] = again
            yield KeyBatch(start, found)


def _feed(best: Scan | kernel.Scan, queries: int, database: Vectors, nesting: Nesting, bar: Any) -> None:
    for first in range(0, len(database), best.rows):
        tile = _widen(database[first : first + best.rows, : nesting.dim])
        norms = best.load(tile)
        if not _are_ordinary(norms[:, -1], nesting.dim):   # rare, so that most tiles are not read once more here
            norms = best.load(_ordinary(tile))
        _finite(norms, "database", first)
        best.score(first)
        bar.update(queries * len(tile))


def _sample(database: Vectors, dim: int) -> Floats:
    """Return one random row of every eight, or fewer. A larger sample would cost more than its better guess saves."""
    stride = max(8, -(-4 * len(database) * dim // _SAMPLE))
    starts = np.arange(0, len(database) - stride + 1, stride)
    return _ordinary(_widen(database[starts + np.random.default_rng(0).integers(0, stride, len(starts)), :dim]))


def _pick(fast: bool | None) -> type[Scan | kernel.Scan]:
    if fast is False or (fast is None and core() is None):
        return Scan
    require_core()
    from matryo.evaluation.knn import kernel

    return kernel.Scan


class Scan:
    """The best ``k`` so far of some queries at every dim. Tiles of the database come in order, ``load`` then ``score``.

    This is plain numpy, the reference for the compiled :class:`matryo.evaluation.knn.kernel.Scan`.
    """

    def __init__(self, queries: Floats, dims: Sequence[int], k: int, _count: int) -> None:
        self.queries, self.nesting = queries, Nesting(dims)
        self.height, self.rows = _TILE
        self.best = [_Best(len(queries), k) for _ in dims]

    @staticmethod
    def batch(dim: int, dims: int, k: int, _count: int, budget: int) -> int:
        """Return the number of queries to scan at a time within ``budget`` bytes."""
        height, width = _TILE
        spare = budget - 4 * width * (2 * dim + 3 * height)
        return max(height, spare // (4 * dim + 2 * 8 * k * dims))

    def guess(self, rows: Floats, share: float) -> None:
        """Do nothing: only the compiled scan uses a guess."""

    def short(self) -> Bools:
        """Return no query, because no bar was guessed."""
        return np.zeros(len(self.queries), np.bool_)

    def load(self, tile: Floats) -> Floats:
        """Load the next tile, at most ``rows`` rows; return the norms of their prefixes, [rows, dims]."""
        norms = _norms(tile, self.nesting.dims)
        self.tile = tile
        # The floor of truncate: a zero vector stays zero, so it scores 0 with everything.
        self.scales = np.ascontiguousarray(np.reciprocal(np.maximum(norms, np.finfo(np.float32).tiny)).T)
        return norms

    def score(self, first: int) -> None:
        """Score the loaded tile, which begins at row ``first`` of the database."""
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

    def keys(self) -> dict[int, Keys]:
        """Return the keys of the best, [queries, k] by dim, best first."""
        return {dim: best.ordered() for dim, best in zip(self.nesting.dims, self.best, strict=True)}


class _Best:
    """The best k so far of each query at one dim, as 64-bit keys that sort by score, then by smaller row.

    One integer holds both, so selecting is a plain partition and the smaller row always wins a tie.
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.keys = np.full((queries, k), NOTHING, np.int64)
        self.worst = np.full(queries, -np.inf, np.float32)   # the bar; most of a tile is below

    def merge(self, scores: Floats, rows: slice, first: int) -> None:
        """Merge the scores of the database rows from ``first`` on; tiles must come in order."""
        width = scores.shape[1]
        if first == 0 and width > self.k:
            # No bar yet: the k-th best of the first few columns is one, and cheap to find.
            few = scores[:, : 8 * self.k]
            kth = few.shape[1] - self.k
            hopeful = scores >= np.partition(few, kth, axis=1)[:, kth, None]
        else:
            # Strictly better: a later row equal to the worst kept one would lose the tie.
            hopeful = scores > self.worst[rows, None]
        flat = np.flatnonzero(hopeful)
        if len(flat) == 0:
            return
        query, column = np.divmod(flat, width)
        found = _pack(keys_of(scores.ravel()[flat], column + first), query, len(scores))
        both = np.concatenate([self.keys[rows], found], axis=1)
        both.partition(found.shape[1], axis=1)
        self.keys[rows] = both[:, -self.k :]
        self.worst[rows] = scores_of(self.keys[rows, 0])

    def ordered(self) -> Keys:
        return np.sort(self.keys, axis=1)[:, ::-1]


def _pack(keys: Keys, query: Indices, queries: int) -> Keys:
    # From a flat list to a rectangle: the keys of each query in a row, padded with NOTHING.
    counts = np.bincount(query, minlength=queries)
    starts = np.cumsum(counts) - counts
    packed = np.full((queries, int(counts.max())), NOTHING, np.int64)
    packed[query, np.arange(len(keys)) - starts[query]] = keys
    return packed


def _widen(vectors: Vectors) -> Floats:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _ordinary(rows: Floats) -> Floats:
    """Scale rows of very large or small numbers by a power of two, so that their squares are numbers of float32."""
    peak = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    exponents = np.frexp(peak)[1] * (np.isfinite(peak) & (np.abs(np.frexp(peak)[1]) > 40))
    return np.ldexp(rows, -exponents[:, None]) if exponents.any() else rows


def _are_ordinary(norms: Floats, dim: int) -> bool:
    """Return whether rows of ``dim`` columns with these norms are sure to stay as they are in :func:`_ordinary`."""
    return bool(norms.size == 0 or (norms.max() < 2.0**40 and norms.min() >= 2.0**-40 * dim**0.5))


def _norms(vectors: Floats, dims: Sequence[int]) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):   # _finite reports overflows, with the row
        return np.asarray(prefix_norms(vectors, dims))


def _finite(norms: Floats, which: str, first: int) -> Floats:
    bad = np.flatnonzero(~np.isfinite(norms).all(axis=1))
    if len(bad):
        raise EmbeddingsError(
            f"every {which} vector must be finite, with a norm that float32 can hold",
            got=f"NaN, infinity or overflow in row {first + bad[0]}",
            cure="check the folder with EmbeddingSet.verify(), and encode those rows again",
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
        raise InputError(f"k must be in 1 … {len(database)}, the size of the database", got=k, cure="change k")
    if len(queries) == 0:
        raise InputError("there must be at least one query", got=0, cure="pass some queries")
    if len(database) > 0xFFFFFFFF:
        raise InputError("the database must have fewer than 2³² vectors", got=len(database), cure="split it")
