"""Search at all dims as one compiled loop: rounded sums stay in registers, and only promising rows are scored.

A tile of ``QUERIES`` queries × ``LANES`` database rows is summed in 16-bit integers, two columns at a time: with
AVX-512 twice as fast as float32. At the end of a dim, the sums so far show which rows may be above the k-th best of
each query at that dim; then the loop continues with the next columns. No matrix of scores is ever stored, so a further
dim costs little more than a comparison. The few promising rows get a float32 score, which alone decides.

The error of a sum is bounded. Vectors are scaled to norm 2¹⁵ − 1 and rounded, so each prefix of m columns is within
c = √m / 2 of the true one. If two prefixes have norms X and Q, the inner product is within c (X + Q + c) of the sum, by
the Cauchy–Schwarz inequality, because integers are summed without error. The float32 arithmetic, including that of the
score, adds less than (m + 64) 2⁻²⁴ X Q. So the result is that of an exact float32 search for any vectors; vectors that
are nearly equal only take more time. A score sums column j in lane j % ``LANES``, then the lanes: equal rows have equal
scores, and a search at many dims gives the same bits as a search at each.

numba compiles this in a few seconds, on the first search after an installation, and caches the code for later
processes. It checks only this file for changes, hence ``_VECTORS``.
"""

# mypy: ignore-errors
# The types and rules are numba's.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import config, njit

from matryo.evaluation.knn import kernel_vectors as machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matryo.arrays import Bools, Floats

    Indices = np.ndarray[Any, np.dtype[np.int64]]

LANES, QUERIES = machine.LANES, machine.QUERIES
_VECTORS = "294c668fb8e6b3c9"   # the first digits of the sha256 of kernel_vectors.py: this file must change with it
THREADS = int(config.NUMBA_NUM_THREADS)
_TILE = 48 << 20   # bytes of the database rows that all queries scan before the next tile
_PART = 32   # groups of queries per thread at a time: they stay in its cache
_FULL = 32767   # the norm of a vector in 16 bits
_TINY = 2.0**-100   # smaller squared norms are too coarse in float32: such rows are always scored

# ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────


class _Queries(NamedTuple):
    """The queries of a thread. A slot is a query of a group at a dim: [group, slot]."""

    vectors: Floats
    words: Indices
    units: Floats   # a slot's bar is above the limit ``bar * unit - margin``, see find_hopeful
    margins: Floats
    slacks: Floats
    limits: Floats
    bars: Floats
    counts: Indices
    keys: Indices


class _Rows(NamedTuple):
    """A tile of the database: the rows, the rows in 16 bits with their norms, and the inverse norms."""

    tile: Floats
    panels: Indices
    reach: Floats
    scales: Floats


# No array is created here, so no references are counted: threads that count one array wait for each other.
_options = {"nogil": True, "_nrt": False}
_inlined = njit(forceinline=True, **_options)


def _compiled(function):
    try:
        return njit(cache=True, **_options)(function)
    except RuntimeError:   # no writable cache folder: a read-only installation without a home
        return njit(**_options)(function)


@_compiled
def _pack(rows, ends, words, squares, units):
    """Write rows [rows, columns] times their ``units`` as 16-bit ``words`` [panel, pair of columns, lane].

    The ``squares`` [panel, dim, lane] are summed up to the end of each dim in float64, one by one: the norm at a dim
    has the same bits whichever other dims there are. A dim that ends within a pair leaves the rest of that word empty.
    """
    for row in range(min(len(rows), words.shape[0] * words.shape[2])):
        panel, lane = row // words.shape[2], row % words.shape[2]
        total, column = 0.0, 0
        for i in range(len(ends)):
            while column < ends[i]:
                total += np.float64(rows[row, column]) * rows[row, column]
                column += 1
            squares[panel, i, lane] = total
        unit = _FULL / np.sqrt(total) if total > 0 else 0.0
        units[panel, lane] = unit
        column, pair = 0, 0
        for i in range(len(ends)):
            while column < ends[i]:
                low, high = np.int32(np.rint(rows[row, column] * unit)), np.int32(0)
                if column + 1 < ends[i]:
                    high = np.int32(np.rint(rows[row, column + 1] * unit))
                words[panel, pair, lane] = (low & 0xFFFF) | (high << 16)
                column, pair = min(column + 2, ends[i]), pair + 1


@_compiled
def _scan(some, rows, ends, pair_ends, first, k, room, hopeful, places, scores):
    """Update the lists with ``rows``, which begin at row ``first`` of the database.

    Each slot has a list of ``counts`` ``keys``, at most ``room``, all of which were above the score in ``bars`` when
    they were added. ``hopeful``, ``places`` and ``scores`` are work space.
    """
    size = LANES * rows.tile.shape[1]
    for panel in range(len(rows.panels)):
        for at in range((panel + 1) * size, min((panel + 2) * size, rows.tile.size), 16):
            machine.prefetch(rows.tile, at)
        _sift(some, rows, panel, pair_ends, hopeful)
        for query in range(len(hopeful)):
            for start in range(0, len(ends), LANES):
                dims = machine.nonzero(hopeful, query * hopeful.shape[1] + start)
                if dims:
                    found = _score(some, query, rows, panel, ends, start, dims, hopeful, places, scores)
                    _keep(some, query, first + panel * LANES, k, room, found, places, scores)


@_compiled
def _sift(some, rows, panel, pair_ends, hopeful):
    """Write for each query at each dim [query, dim] a bit per row of the panel that may be above the bar."""
    words, limits, slacks, panels, reach = some.words, some.limits, some.slacks, rows.panels, rows.reach
    dims, stride, at = len(pair_ends), hopeful.shape[1], 0
    for group in range(len(words)):
        sums, pair, row = machine.no_sums(), 0, panel * pair_ends[-1] * LANES
        for i in range(dims):
            while pair < pair_ends[i]:
                sums = machine.add_pairs(words, at, panels, row, sums)
                pair, at, row = pair + 1, at + QUERIES, row + LANES
            slot, place = (group * dims + i) * QUERIES, group * QUERIES * stride + i
            machine.find_hopeful(sums, reach, (panel * dims + i) * LANES, limits, slacks, slot, hopeful, place, stride)


@_inlined
def _score(some, query, rows, panel, ends, start, dims, hopeful, places, scores):
    """Score the promising rows of a query at up to ``LANES`` dims; return their number, dims and lanes."""
    there, lanes = len(rows.tile) - panel * LANES, machine.union(hopeful, query * hopeful.shape[1] + start)
    if 2 * machine.count_bits(lanes) > LANES and there >= LANES:
        return _score_all(some, query, rows, panel, ends, start, places, scores)
    found, width = 0, rows.tile.shape[1]
    while lanes:
        lane = machine.lowest_bit(lanes)
        lanes &= lanes - np.uint64(1)
        if lane >= there:
            break
        at, row, column, left, sums = query * width, (panel * LANES + lane) * width, 0, dims, machine.no_dot()
        while left:   # one sum for all dims at which this row is promising
            i = start + machine.lowest_bit(left)
            left &= left - np.uint64(1)
            if (hopeful[query, i] >> lane) & 1:
                while column + LANES <= ends[i]:
                    sums = machine.add_products(some.vectors, at, rows.tile, row, 0, LANES, sums)
                    at, row, column = at + LANES, row + LANES, column + LANES
                whole = sums
                if column < ends[i]:
                    whole = machine.add_products(some.vectors, at, rows.tile, row, 0, ends[i] - column, sums)
                scores[found] = machine.fold(whole) * rows.scales[panel, i, lane]
                places[0, found], places[1, found] = i, lane
                found += 1
    return found


@_compiled
def _score_all(some, query, rows, panel, ends, start, places, scores):
    """Score a panel in which most rows are promising, several at a time; return those above the bar."""
    width, stop, found, group = rows.tile.shape[1], min(start + LANES, len(ends)), 0, query // QUERIES
    for lane in range(0, LANES, machine.BLOCK):
        at, row, column, sums = query * width, (panel * LANES + lane) * width, 0, machine.no_dots()
        for i in range(start, stop):
            while column + LANES <= ends[i]:
                sums = machine.add_products(some.vectors, at, rows.tile, row, width, LANES, sums)
                at, row, column = at + LANES, row + LANES, column + LANES
            whole = sums
            if column < ends[i]:
                whole = machine.add_products(some.vectors, at, rows.tile, row, width, ends[i] - column, sums)
            scale = (panel * len(ends) + i) * LANES + lane
            machine.store_folds(whole, rows.scales, scale, scores, (i - start) * LANES + lane)
    for i in range(start, stop):
        lanes = machine.above(scores, (i - start) * LANES, some.bars[group, i * QUERIES + query % QUERIES])
        while lanes:
            lane = machine.lowest_bit(lanes)
            lanes &= lanes - np.uint64(1)
            places[0, found], places[1, found], scores[found] = i, lane, scores[(i - start) * LANES + lane]
            found += 1
    return found


@_inlined
def _keep(some, query, row, k, room, found, places, scores):
    group, bars, counts, keys = query // QUERIES, some.bars, some.counts, some.keys
    for j in range(found):
        slot = places[0, j] * QUERIES + query % QUERIES
        if scores[j] > bars[group, slot]:
            keys[group, slot, counts[group, slot]] = _key(np.float32(scores[j]).view(np.int32), row + places[1, j])
            counts[group, slot] += 1
            if counts[group, slot] == room:   # full: keep the best k, which raises the bar
                _raise_bar(some, group, slot, k)
                counts[group, slot] = k


@_compiled
def _raise_bar(some, group, slot, k):
    """Move the best ``k`` of a slot to the front of its list; the last of them is the bar."""
    _best_first(some.keys[group, slot, : some.counts[group, slot]], k)
    bar = np.int32(_ordered(some.keys[group, slot, k - 1] >> 32)).view(np.float32)
    some.bars[group, slot] = bar
    some.limits[group, slot] = bar * some.units[group, slot] - some.margins[group, slot]


@_compiled
def _cut(some, k):
    """Cut the list of every slot to its best ``k``, and empty it."""
    for group, slot in np.ndindex(some.counts.shape):
        if some.counts[group, slot] >= k:
            _raise_bar(some, group, slot, k)
        some.counts[group, slot] = 0


@_compiled
def _ordered(bits):
    # Floats sort like sign-magnitude integers. Flipping the magnitude bits of negative ones gives two's complement.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@_compiled
def _key(bits, row):
    # One integer that sorts by score, then by smaller row; −0 equals 0.
    score = np.int64(0) if bits == np.int32(-0x80000000) else np.int64(bits)
    return (_ordered(score) << 32) | (0xFFFFFFFF - row)


@_compiled
def _best_first(keys, k):
    # Quickselect: moves the k largest to the front, the k-th of them to k − 1. Swaps without a branch, because the
    # branch could not be predicted.
    low, high = 0, len(keys)
    while high - low > 1:
        last, middle = high - 1, (low + high) >> 1
        at = _median(keys, low, middle, last)
        pivot, keys[at] = keys[at], keys[last]
        edge = low
        for i in range(low, last):
            key = keys[i]
            keys[i], keys[edge] = keys[edge], key
            edge += key > pivot
        keys[last], keys[edge] = keys[edge], pivot
        if edge == k - 1:
            return
        low, high = (edge + 1, high) if edge < k - 1 else (low, edge)


@_compiled
def _median(keys, a, b, c):
    if (keys[a] > keys[b]) != (keys[a] > keys[c]):
        return a
    return b if (keys[b] > keys[a]) != (keys[b] > keys[c]) else c


# ── the scan ──────────────────────────────────────────────────────────────────────────────────────────────────


class Scan:
    """The best ``k`` so far of some queries at every dim. Tiles of the database come in order, ``load`` then ``score``.

    Each query has a list of keys per dim (see ``_key``). Rows above the bar, the k-th best at the last cut, are added.
    A full list is cut to the best k, about once per doubling of the rows seen.
    """

    def __init__(self, queries: Floats, dims: Sequence[int], k: int, count: int) -> None:
        self.queries, self.dims, self.k = len(queries), tuple(dims), k
        self.ends = ends = np.array(self.dims)
        self.pair_ends = np.cumsum((np.diff(ends, prepend=0) + 1) // 2)
        self.rows = max(1, _TILE // (LANES * _row_bytes(dims[-1], len(dims)))) * LANES
        groups = -(-len(queries) // QUERIES)
        vectors = np.zeros((groups * QUERIES, dims[-1]), np.float32)
        vectors[: len(queries)] = queries
        words, squares, units = self._empty(groups, QUERIES)
        _pack(vectors, ends, words, squares, units)
        norms, off, slots = np.sqrt(squares) * units[:, None], np.sqrt(ends)[:, None] / 2, (groups, len(dims) * QUERIES)
        margins, slacks = off + (ends[:, None] + 64) * 2.0**-24 * norms, off * (norms + off)
        padding = np.arange(groups * QUERIES) >= len(queries)
        bars = np.where(padding, np.inf, -np.inf).reshape(groups, 1, QUERIES)   # no row is above the bar of padding
        floats = (units[:, None], margins, slacks, bars, bars)
        floats = [np.broadcast_to(some, norms.shape).astype(np.float32).reshape(slots) for some in floats]
        keys = np.empty((*slots, _capacity(k, count)), np.int64)
        self.state = _Queries(vectors.reshape(groups, QUERIES, -1), words, *floats, np.zeros(slots, np.int64), keys)
        step = min(_PART, -(-groups // THREADS))
        self.parts = [slice(start, start + step) for start in range(0, groups, step)]

    def _empty(self, panels: int, lanes: int) -> tuple[Any, Any, Any]:
        words = np.zeros((panels, self.pair_ends[-1], lanes), np.int32)
        return words, np.zeros((panels, len(self.dims), lanes)), np.zeros((panels, lanes))

    @staticmethod
    def batch(dim: int, dims: int, k: int, count: int, budget: int) -> int:
        """Return the number of queries to scan at a time within ``budget`` bytes."""
        tile = max(_TILE, LANES * _row_bytes(dim, dims))
        query = 10 * (dim + dims) + dims * (8 * _capacity(k, count) + 8 * k + 32)
        return max(QUERIES * THREADS, (budget - tile) // query)

    def load(self, tile: Floats) -> Floats:
        """Load the next tile, at most ``rows`` rows; return the norms of their prefixes, [rows, dims]."""
        tile = tile.view()
        tile.flags.writeable = False   # part of the type in numba, and rows of a file are read-only
        count = -(-len(tile) // LANES)
        words, squares, units = self._empty(count, LANES)
        step = -(-count // THREADS)

        def pack(start: int) -> None:
            part = slice(start, start + step)
            _pack(tile[start * LANES : (start + step) * LANES], self.ends, words[part], squares[part], units[part])

        _together(pack, range(0, count, step))
        with np.errstate(all="ignore"):   # the caller reports overflows, with the row
            norms = np.sqrt(squares.astype(np.float32))
            # The floor of truncate: a zero vector stays zero, so it scores 0 with everything.
            scales = np.reciprocal(np.maximum(norms, np.finfo(np.float32).tiny))
            reach = (units[:, None] / scales).astype(np.float32)
        reach[squares < _TINY] = np.nan
        reach[squares == 0] = _FULL   # scores of 0 are exact
        self.tile = _Rows(tile, words, reach, scales)
        return norms.transpose(0, 2, 1).reshape(-1, len(self.dims))[: len(tile)]

    def guess(self, rows: Floats, share: float) -> None:
        """Set bars that somewhat more rows of a sample reach than the ``share`` of the best k it should hold."""
        few, begin = int(share + 4 * share**0.5 + 4), self.state.bars.copy()
        part = few / 16   # a bar for the sample itself, from one row of sixteen; none if that is too high
        steps = ((rows[::16], int(part + 2 * part**0.5 + 2)), (rows, few))
        for some, k in steps if 8 * few < len(rows) else ():
            self.load(np.ascontiguousarray(some))
            self._run(0, k, min(self.state.keys.shape[-1], 2 * k))
            lacking = self.state.counts < k
            _together(lambda part, k=k: _cut(self._some(part), k), self.parts)
            self.state.bars[lacking] = self.state.limits[lacking] = begin[lacking]

    def score(self, first: int) -> None:
        """Score the loaded tile, which begins at row ``first`` of the database."""
        self._run(first, self.k, self.state.keys.shape[-1])

    def _run(self, first: int, k: int, room: int) -> None:
        def scan(part: slice) -> None:
            some = self._some(part)
            hopeful = np.zeros((len(some.words) * QUERIES, -(-len(self.dims) // LANES) * LANES), np.uint32)
            desk = hopeful, np.empty((2, LANES * LANES), np.int64), np.empty(LANES * LANES, np.float32)
            _scan(some, self.tile, self.ends, self.pair_ends, first, k, room, *desk)

        _together(scan, self.parts)

    def _some(self, part: slice) -> _Queries:
        return _Queries(*(array[part] for array in self.state))

    def short(self) -> Bools:
        """Return the queries with fewer than k rows above a bar, which was then guessed too high."""
        counts = self.state.counts.reshape(-1, len(self.dims), QUERIES)
        return (counts < self.k).any(axis=1).ravel()[: self.queries]

    def indices(self) -> dict[int, Indices]:
        """Return the rows of the best, [queries, k] by dim, best first."""
        keys = self.state.keys

        def finish(part: slice) -> None:
            _cut(self._some(part), self.k)
            keys[part, :, : self.k].sort(axis=-1)

        _together(finish, self.parts)

        def unpack(i: int) -> Indices:
            of_dim = keys.reshape(-1, len(self.dims), QUERIES, keys.shape[-1])[:, i, :, : self.k]
            return 0xFFFFFFFF - (of_dim.reshape(-1, self.k)[: self.queries, ::-1] & 0xFFFFFFFF)

        return dict(zip(self.dims, _together(unpack, range(len(self.dims))), strict=True))


def _row_bytes(dim: int, dims: int) -> int:
    return 6 * (dim + dims) + 28 * dims   # the row, its 16-bit words (one spare column per dim), and norms


def _capacity(k: int, count: int) -> int:
    return min(count, k + max(k, 32))


def _together(do: Callable[[Any], Any], parts: Iterable[Any]) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(do, parts))
