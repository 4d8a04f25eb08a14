"""Compiled loops that search for one query: sums over a block, the best of them, and the sums of a shortlist.

Each loop reads rows once, in order, and is limited by memory bandwidth. LLVM vectorises the sums of floats by itself.
For bytes, the instruction that multiplies four bytes and adds the products is written out (``add_dot``), with plain
arithmetic as a fallback for other processors. A float16 is widened as it is loaded. The sums of a row have the same
bits wherever the row lies, so equal rows have equal scores.

numba compiles each loop on its first use after an installation and caches the code for later processes. All loops are
in one file, because numba checks only the file of a loop for changes.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001
# The types and rules are numba's: an intrinsic must name the arguments that its code is made for.

from __future__ import annotations

import numpy as np
from llvmlite import binding, ir
from numba import config, njit, types
from numba.extending import intrinsic, models, register_model

LANES = 16   # rows per tile: the 32-bit sums in one AVX-512 register
# False if numba is configured to compile for another processor.
HOST = config.CPU_NAME is None and config.CPU_FEATURES is None
_HALF = HOST and bool(binding.get_host_cpu_features().get("f16c"))
_VNNI = HOST and bool(binding.get_host_cpu_features().get("avx512vnni"))

# ── vectors ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Sums(types.Type):
    """``LANES`` 32-bit integers, in registers."""


SUMS = _Sums(name=f"int32x{LANES}")
_int32 = ir.IntType(32)
INTS = ir.VectorType(_int32, LANES)
_bytes = ir.VectorType(ir.IntType(8), 4 * LANES)
FLOATS = ir.VectorType(ir.FloatType(), LANES)


@register_model(_Sums)
class _SumsModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, INTS)


def load(context, builder, kind, array, offset, vector, align=1):
    # Plain pointers: the offset counts items from the start of a contiguous array of any shape.
    start = builder.gep(context.make_array(kind)(context, builder, array).data, [offset])
    return builder.load(builder.bitcast(start, vector.as_pointer()), align=align)


def spread(builder, number, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(_int32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, None))


def _dot(builder, sums, codes, weights):
    # sums + the dot products of every four unsigned bytes of codes with four signed bytes of weights.
    if _VNNI:
        kind = ir.FunctionType(INTS, [INTS, INTS, INTS])
        name = "llvm.x86.avx512.vpdpbusd.512"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, [sums, builder.bitcast(codes, INTS), builder.bitcast(weights, INTS)])
    wide = ir.VectorType(_int32, 4 * LANES)
    product = builder.mul(builder.zext(codes, wide), builder.sext(weights, wide))
    for part in range(4):
        chosen = ir.Constant(INTS, [4 * lane + part for lane in range(LANES)])
        sums = builder.add(sums, builder.shuffle_vector(product, ir.Constant(wide, ir.Undefined), chosen))
    return sums


@intrinsic
def zeros(_typing):
    """A vector of zeros."""
    return SUMS(), lambda *_: ir.Constant(INTS, None)


@intrinsic
def add_dot(_typing, tiles, offset, query, at, sums):
    """Add to each of ``LANES`` sums the product of a row's four codes, from ``offset`` on, with four of the query."""

    def emit(context, builder, signature, args):
        codes = load(context, builder, signature.args[0], args[0], args[1], _bytes)
        weights = load(context, builder, signature.args[2], args[2], args[3], _int32)
        return _dot(builder, args[4], codes, builder.bitcast(spread(builder, weights, INTS), _bytes))

    return SUMS(tiles, types.intp, query, types.intp, SUMS), emit


@intrinsic
def add_long_dot(_typing, codes, offset, query, at, sums):
    """Add the product of 64 signed codes of one row from ``offset`` on with 64 of the query, spread over the lanes.

    The codes are made unsigned by adding 128; the caller subtracts the effect.
    """

    def emit(context, builder, signature, args):
        row = load(context, builder, signature.args[0], args[0], args[1], _bytes)
        row = builder.xor(row, ir.Constant(_bytes, [-128] * (4 * LANES)))
        weights = load(context, builder, signature.args[2], args[2], args[3], _bytes)
        return _dot(builder, args[4], row, weights)

    return SUMS(codes, types.intp, query, types.intp, SUMS), emit


@intrinsic
def total(_typing, sums):
    """The sum over the lanes."""

    def emit(_context, builder, _signature, args):
        kind = ir.FunctionType(_int32, [INTS])
        name = f"llvm.vector.reduce.add.v{LANES}i32"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, [args[0]])

    return types.int32(SUMS), emit


@intrinsic
def grade(_typing, high, low, scale, offsets, dots, place, bar):
    """Store the dots ``128 · high + low``; returns a bit per dot whose ``scale · dot + offset`` is above the bar."""

    def emit(context, builder, signature, args):
        both = builder.add(builder.shl(args[0], ir.Constant(INTS, [7] * LANES)), args[1])
        start = builder.gep(context.make_array(signature.args[4])(context, builder, args[4]).data, [args[5]])
        builder.store(both, builder.bitcast(start, INTS.as_pointer()), align=4)
        scores = _scaled(context, builder, signature.args[3], args[3], args[5], both, args[2])
        return bits(builder, builder.fcmp_ordered(">", scores, spread(builder, args[6], FLOATS)))

    return types.uint64(SUMS, SUMS, types.float32, offsets, dots, types.intp, types.float32), emit


@intrinsic
def reaching(_typing, dots, scale, offsets, tails, reach, place, bar):
    """A bit per row whose bound ``scale · dot + offset + reach · tail`` is not below the bar."""

    def emit(context, builder, signature, args):
        both = load(context, builder, signature.args[0], args[0], args[5], INTS, align=4)
        tail = load(context, builder, signature.args[3], args[3], args[5], FLOATS, align=4)
        scores = _scaled(context, builder, signature.args[2], args[2], args[5], both, args[1])
        bounds = builder.fadd(scores, builder.fmul(tail, spread(builder, args[4], FLOATS)))
        return bits(builder, builder.fcmp_unordered(">=", bounds, spread(builder, args[6], FLOATS)))

    return types.uint64(dots, types.float32, offsets, tails, types.float32, types.intp, types.float32), emit


def _scaled(context, builder, kind, offsets, place, dots, scale):
    scores = builder.fmul(builder.sitofp(dots, FLOATS), spread(builder, scale, FLOATS))
    if isinstance(kind, types.NoneType):
        return scores
    return builder.fadd(scores, load(context, builder, kind, offsets, place, FLOATS, align=4))


def bits(builder, lanes):
    return builder.zext(builder.bitcast(lanes, ir.IntType(LANES)), ir.IntType(64))


@intrinsic
def lowest_bit(_typing, bits):
    """The position of the lowest set bit; at least one must be set."""

    def emit(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit


@intrinsic
def pointer(_typing, address):
    """The value at an address."""

    def emit(_context, builder, _signature, args):
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), emit


@intrinsic
def same_bits(_typing, number):
    """Reinterpret the bits of a float32 as int32, or the reverse."""

    def emit(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return (types.int32 if number == types.float32 else types.float32)(number), emit


def widen(builder, bits, number, integer):
    # Converts the bits of float16 to floats. Without an instruction: exponents differ by 112, signs by 16 bits.
    if _HALF:
        kind = ir.VectorType(ir.HalfType(), LANES) if isinstance(number, ir.VectorType) else ir.HalfType()
        return builder.fpext(builder.bitcast(bits, kind), number)

    def all_of(kind, value):
        return ir.Constant(kind, [value] * LANES if isinstance(kind, ir.VectorType) else value)

    whole = builder.zext(bits, integer)
    size = builder.shl(builder.and_(whole, all_of(integer, 0x7FFF)), all_of(integer, 13))
    size = builder.fmul(builder.bitcast(size, number), all_of(number, 2.0**112))
    sign = builder.shl(builder.and_(whole, all_of(integer, 0x8000)), all_of(integer, 16))
    return builder.bitcast(builder.or_(builder.bitcast(size, integer), sign), number)


@intrinsic
def wide(_typing, number):
    """Convert to float32: a float32 is unchanged, an int8 is its value, 16 bits are a float16 (unknown to numba)."""

    def emit(_context, builder, signature, args):
        if signature.args[0] == types.float32:
            return args[0]
        if signature.args[0] == types.int8:
            return builder.sitofp(args[0], ir.FloatType())
        return widen(builder, args[0], ir.FloatType(), _int32)

    return types.float32(number), emit


# ── blocks ────────────────────────────────────────────────────────────────────────────────────────────────────

# The order of a sum is free, but always the same: the sum of a row depends on the row alone.
_ANY_ORDER = {"reassoc", "contract"}


def compiled(function):
    # Without a cache if no folder is writable: a read-only installation without a home.
    try:
        return njit(nogil=True, cache=True, fastmath=_ANY_ORDER)(function)
    except RuntimeError:
        return njit(nogil=True, fastmath=_ANY_ORDER)(function)


@compiled
def add_products(rows, query, sums):
    """Add the inner product of each of the ``rows`` [n, width] with the ``query`` to its sum."""
    for i in range(len(rows)):
        one = np.float32(0)
        for j in range(len(query)):
            one += wide(rows[i, j]) * query[j]
        sums[i] += one


@compiled
def add_products_at(rows, query, at, sums):
    """Add the inner products of the rows numbered ``at`` to their sums."""
    for i in range(len(at)):
        one = np.float32(0)
        for j in range(len(query)):
            one += wide(rows[at[i], j]) * query[j]
        sums[i] += one


@compiled
def add_squares(rows, query, sums):
    """Add the squared distance of each of the ``rows`` [n, width] from the ``query`` to its sum."""
    for i in range(len(rows)):
        one = np.float32(0)
        for j in range(len(query)):
            apart = wide(rows[i, j]) - query[j]
            one += apart * apart
        sums[i] += one


@compiled
def _shift(query):
    # The effect on the product of adding 128 to every code of a row.
    shift = np.int32(0)
    for j in range(len(query)):
        shift += np.int32(query[j])
    return np.int32(128) * shift


@compiled
def best(scores, keep):
    """Return the rows of the ``keep`` largest ``scores``, best first; of equal scores the smaller row first."""
    keys, count, bar = np.empty(2 * keep + 64, np.int64), 0, np.float32(-np.inf)
    for i in range(len(scores)):
        if scores[i] > bar or count < keep:
            keys[count] = key_of(scores[i], i)
            count += 1
            if count == len(keys):
                bar = cut(keys, keep)
                count = keep
    return _sorted_rows(keys[:count], keep)


# ── sketches ──────────────────────────────────────────────────────────────────────────────────────────────────


@compiled
def scan_sketch(tiles, high, low, scale, offsets, allowed, dots, count, keep):
    """Write the product of every row's codes with the query's to ``dots``; return the rows of the best ``keep`` scores.

    ``tiles`` [tile, four columns, row, column] are unsigned codes. The query's codes are 128 · ``high`` + ``low``: 14
    bits cost a second instruction, but no additional memory traffic.
    """
    keys, found, bar = np.empty(2 * keep + 64, np.int64), 0, np.float32(-np.inf)
    fours = tiles.shape[1]
    for tile in range(len(tiles)):
        highs = lows = zeros()
        at = tile * fours * 4 * LANES
        for j in range(fours):
            highs = add_dot(tiles, at + j * 4 * LANES, high, 4 * j, highs)
            lows = add_dot(tiles, at + j * 4 * LANES, low, 4 * j, lows)
        lanes = grade(highs, lows, scale, offsets, dots, tile * LANES, bar)
        while lanes:
            row = tile * LANES + lowest_bit(lanes)
            lanes &= lanes - np.uint64(1)
            if row < count and allowed[row]:
                keys[found] = key_of(np.float32(dots[row]) * scale + _offset(offsets, row), row)
                found += 1
                if found == len(keys):
                    bar = cut(keys, keep)
                    found = keep
    return _sorted_rows(keys[:found], keep)


@compiled
def sift_sketch(dots, scale, offsets, tails, reach, bar, allowed, rows, sums, count):
    """Write the rows that may reach the bar to ``rows``, and their sums so far to ``sums``; return their number."""
    found = 0
    for place in range(0, len(dots), LANES):
        lanes = reaching(dots, scale, offsets, tails, reach, place, bar)
        while lanes:
            row = place + lowest_bit(lanes)
            lanes &= lanes - np.uint64(1)
            if row < count and allowed[row]:
                rows[found] = row
                sums[found] = np.float64(dots[row]) * scale
                found += 1
    return found


@compiled
def sift_more(codes, high, low, scale, offsets, tails, reach, bar, rows, sums):
    """Add the products over further ``codes`` [n, width] to the sums of ``rows``.

    Rows that may still reach the bar are moved to the front; returns their number.
    """
    width, found = codes.shape[1], 0
    shift = 128 * np.int64(_shift(high)) + _shift(low)
    for i in range(len(rows)):
        row = rows[i]
        highs = lows = zeros()
        for j in range(0, width, 64):
            highs = add_long_dot(codes, row * width + j, high, j, highs)
            lows = add_long_dot(codes, row * width + j, low, j, lows)
        dot = 128 * np.int64(total(highs)) + total(lows) - shift
        sum_ = sums[i] + np.float64(dot) * scale
        if not sum_ + _offset(offsets, row) + reach * tails[row] < bar:
            rows[found], sums[found] = row, sum_
            found += 1
    return found


@compiled
def _offset(offsets, row):
    if offsets is None:
        return np.float32(0)
    return offsets[row]


@compiled
def key_of(score, row):
    # One integer that sorts by score, then by smaller row; −0 and 0 are one score.
    bits = np.int64(same_bits(score if score != 0 else np.float32(0)))
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | (0xFFFFFFFF - row)


@compiled
def cut(keys, keep):
    # The best ``keep`` to the front, and the score that others must beat from now on. Quickselect.
    low, high = 0, len(keys)
    while high - low > 1:
        middle, edge, pivot = (low + high) >> 1, low, keys[(low + high) >> 1]
        keys[middle] = keys[high - 1]
        for i in range(low, high - 1):   # swaps without asking, since nobody can predict the answer
            key = keys[i]
            keys[i], keys[edge] = keys[edge], key
            edge += key > pivot
        keys[high - 1], keys[edge] = keys[edge], pivot
        if edge == keep - 1:
            break
        low, high = (edge + 1, high) if edge < keep - 1 else (low, edge)
    bits = keys[keep - 1] >> 32
    return same_bits(np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF)))


@compiled
def _sorted_rows(keys, keep):
    return 0xFFFFFFFF - (np.sort(keys)[::-1][:keep] & 0xFFFFFFFF)
