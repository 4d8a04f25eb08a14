"""Search at all dims as one compiled loop: running sums stay in registers, and at each dim only the hopeful leave.

A tile of six queries × ``LANES`` database rows is summed column by column. Where a dim ends, the sums so far are
scaled by the inverse norms of the database prefixes and compared with the k-th best of each query at that dim;
then the loop goes on with the next column. No matrix of scores is ever stored, so a further dim costs little more
than a comparison. As the sums run column by column whichever dims are asked for, a search at many dims gives the
very bits of a search at each.

numba compiles this in about two seconds, on the first search after an installation; later processes load what it
kept. LLVM does not find such a loop's vectors by itself, so they are spelt out: ``zeros``, ``load``,
``add_product`` and ``grade`` are a few instructions each. All is in one file, because numba looks at no other to
see whether what it kept is stale.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001
# The types here are numba's, and so are the rules: an intrinsic must name the arguments that its code is made for.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import binding, ir
from numba import config, njit, types
from numba.extending import intrinsic, models, register_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Scan"]

# Rows fill two registers. Twelve sums, the rows and a query then fit the sixteen registers of AVX2.
LANES = 32 if binding.get_host_cpu_features().get("avx512f") else 16
QUERIES = 6
THREADS = int(config.NUMBA_NUM_THREADS)
_TILE = 8 << 20   # bytes of database rows that all queries meet before the next come: near the cache
_PART = 16   # groups of queries that a thread takes at a time

# ── vectors ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Vector(types.Type):
    """``LANES`` floats, in registers."""


_vector = _Vector(name=f"float32x{LANES}")
_llvm_vector = ir.VectorType(ir.FloatType(), LANES)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _llvm_vector)


def _address(context, builder, kind, array, offset):
    # Plain pointers, counted in floats from the start of a contiguous array of any shape: numba's own views count
    # references, and two threads that count the same array wait for each other.
    return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])


def _vector_address(context, builder, kind, array, offset):
    return builder.bitcast(_address(context, builder, kind, array, offset), _llvm_vector.as_pointer())


def _spread(builder, number):
    one = builder.insert_element(ir.Constant(_llvm_vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    first = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(one, ir.Constant(_llvm_vector, ir.Undefined), first)


@intrinsic
def zeros(_typing):
    """A vector of zeros."""
    return _vector(), lambda *_: ir.Constant(_llvm_vector, None)


@intrinsic
def load(_typing, array, offset):
    """The ``LANES`` floats of ``array`` from ``offset`` on."""

    def emit(context, builder, signature, args):
        return builder.load(_vector_address(context, builder, signature.args[0], *args), align=4)

    return _vector(array, types.intp), emit


@intrinsic
def add_product(_typing, array, offset, rows, sums):
    """``sums + array[offset] * rows``, rounded once where the processor can."""

    def emit(context, builder, signature, args):
        number = builder.load(_address(context, builder, signature.args[0], *args[:2]))
        product = builder.fmul(_spread(builder, number), args[2], flags=("contract",))
        return builder.fadd(product, args[3], flags=("contract",))

    return _vector(array, types.intp, _vector, _vector), emit


@intrinsic
def grade(_typing, sums, scale, bar, scores, offset):
    """Store the scores ``sums * scale`` from ``offset`` on; a bit for each that is above the bar."""

    def emit(context, builder, signature, args):
        graded = builder.fmul(args[0], args[1])
        builder.store(graded, _vector_address(context, builder, signature.args[3], *args[3:]), align=4)
        above = builder.fcmp_ordered(">", graded, _spread(builder, args[2]))
        return builder.zext(builder.bitcast(above, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(_vector, _vector, types.float32, scores, types.intp), emit


@intrinsic
def lowest_bit(_typing, bits):
    """The place of the lowest bit that is set; there must be one."""

    def emit(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit


# ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────


def _compiled(function):
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:   # no folder to keep it in: a read-only installation without a home
        return njit(nogil=True)(function)


@_compiled
def _pack(rows, ends, panels, squares):
    """Rows [rows, columns] as ``panels`` [panel, column, lane], and their ``squares`` summed up to each dim's end.

    The sums run in float64, one by one: the norm at a dim has the same bits whichever other dims are asked for.
    """
    for panel in range(len(panels)):
        for lane in range(LANES):
            row, column, total = panel * LANES + lane, 0, 0.0
            for i in range(len(ends)):
                while column < ends[i]:
                    value = rows[row, column] if row < len(rows) else np.float32(0)
                    panels[panel, column, lane] = value
                    total += np.float64(value) * value
                    column += 1
                # No score is above a bar when its scale is NaN: lanes beyond the last row never get in.
                squares[panel, i, lane] = total if row < len(rows) else np.nan


@_compiled
def _scan(queries, panels, scales, ends, first, k, bars, counts, keys):
    """Score queries [group, column, query] with panels, whose rows are the database's from ``first`` on.

    Each query of a group has a slot at each dim: a list of ``keys``, as many as ``counts`` says, all of which were
    above the score in ``bars`` when they came.
    """
    slots = len(ends) * QUERIES
    scores, hopeful = np.empty((slots, LANES), np.float32), np.empty(slots, np.uint64)
    for panel in range(len(panels)):
        rows, scale = panels[panel], scales[panel]
        for group in range(len(queries)):
            _score(queries, group, rows, scale, ends, bars, scores, hopeful)
            _keep(scores, hopeful, group, first + panel * LANES, k, bars, counts, keys)


@_compiled
def _score(queries, group, rows, scale, ends, bars, scores, hopeful):
    # Unrolled by hand over the six queries: names become registers, the elements of a list would not.
    sums0 = sums1 = sums2 = sums3 = sums4 = sums5 = zeros()
    column, at = 0, group * ends[-1] * QUERIES
    for i in range(len(ends)):
        while column < ends[i]:
            values = load(rows, column * LANES)
            sums0 = add_product(queries, at, values, sums0)
            sums1 = add_product(queries, at + 1, values, sums1)
            sums2 = add_product(queries, at + 2, values, sums2)
            sums3 = add_product(queries, at + 3, values, sums3)
            sums4 = add_product(queries, at + 4, values, sums4)
            sums5 = add_product(queries, at + 5, values, sums5)
            column, at = column + 1, at + QUERIES
        inverse, slot = load(scale, i * LANES), i * QUERIES
        hopeful[slot] = grade(sums0, inverse, bars[group, slot], scores, slot * LANES)
        hopeful[slot + 1] = grade(sums1, inverse, bars[group, slot + 1], scores, (slot + 1) * LANES)
        hopeful[slot + 2] = grade(sums2, inverse, bars[group, slot + 2], scores, (slot + 2) * LANES)
        hopeful[slot + 3] = grade(sums3, inverse, bars[group, slot + 3], scores, (slot + 3) * LANES)
        hopeful[slot + 4] = grade(sums4, inverse, bars[group, slot + 4], scores, (slot + 4) * LANES)
        hopeful[slot + 5] = grade(sums5, inverse, bars[group, slot + 5], scores, (slot + 5) * LANES)


@_compiled
def _keep(scores, hopeful, group, row, k, bars, counts, keys):
    bits = scores.view(np.int32)
    for slot in range(len(hopeful)):
        lanes = hopeful[slot]
        if lanes == 0:
            continue
        count = counts[group, slot]
        while lanes:
            lane = lowest_bit(lanes)
            lanes &= lanes - np.uint64(1)
            keys[group, slot, count] = _key(bits[slot, lane], row + lane)
            count += 1
            if count == keys.shape[2]:   # full: back to the best k, and a higher bar
                _best_first(keys[group, slot], k)
                bits[slot, lane] = _ordered(keys[group, slot, k - 1] >> 32)
                bars[group, slot] = scores[slot, lane]
                count = k
        counts[group, slot] = count


@_compiled
def _ordered(bits):
    # Floats sort like sign-magnitude integers; flipping the magnitude of the negative makes these ordinary, and back.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@_compiled
def _key(bits, row):
    # One integer that sorts by score, then by smaller row; −0 and 0 are one score.
    score = np.int64(0) if bits == np.int32(-0x80000000) else np.int64(bits)
    return (_ordered(score) << 32) | (0xFFFFFFFF - row)


@_compiled
def _best_first(keys, k):
    # Quickselect: the k largest come first, the k-th of them at k − 1. Swaps without asking, since nobody can
    # predict the answer.
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


@_compiled
def _finish(keys, counts, k):
    """Move the best ``k`` of each list to its front."""
    for group, slot in np.ndindex(counts.shape):
        if counts[group, slot] > k:
            _best_first(keys[group, slot, : counts[group, slot]], k)


# ── its owner ─────────────────────────────────────────────────────────────────────────────────────────────────


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
        slots = (groups, len(dims) * QUERIES)
        self.bars = np.full(slots, -np.inf, np.float32)
        self.counts = np.zeros(slots, np.int64)
        self.keys = np.empty((*slots, _capacity(k, count)), np.int64)
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
            _pack(rows, self.ends, self.panels[part], squares[part])

        _together(pack, range(0, count, step))
        norms = np.sqrt(squares)
        # The same floor as truncate: a zero vector stays zero, so it scores 0 with everything.
        self.scales = np.reciprocal(np.maximum(norms, np.finfo(np.float32).tiny))
        return norms.transpose(0, 2, 1).reshape(-1, len(self.dims))[: len(tile)]

    def score(self, first: int) -> None:
        """Score the rows taken in last, which are the database's from ``first`` on."""

        def scan(part: slice) -> None:
            slots = self.bars[part], self.counts[part], self.keys[part]
            _scan(self.packed[part], self.panels, self.scales, self.ends, first, self.k, *slots)

        _together(scan, self.parts)

    def indices(self) -> dict[int, Indices]:
        """The rows of the best, [queries, k] by dim, best first."""

        def finish(part: slice) -> None:
            _finish(self.keys[part], self.counts[part], self.k)
            self.keys[part, :, : self.k].sort(axis=-1)

        _together(finish, self.parts)
        by_dim = self.keys.reshape(-1, len(self.dims), QUERIES, self.keys.shape[-1])
        return {dim: self._rows(by_dim[:, i, :, : self.k]) for i, dim in enumerate(self.dims)}

    def _rows(self, keys: Indices) -> Indices:
        ordered = keys.reshape(-1, self.k)[: self.queries, ::-1]
        return 0xFFFFFFFF - (ordered & 0xFFFFFFFF)


def _capacity(k: int, count: int) -> int:
    return min(count, k + max(k, 32))


def _together(do: Callable[[Any], None], parts: Iterable[Any]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(do, parts):
            pass
