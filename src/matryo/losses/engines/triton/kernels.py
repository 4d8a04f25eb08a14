"""The Triton kernels of the fused engine: one matrix-product loop yields the scores at every dim.

A program owns a [BM, BN] tile of scores and accumulates its product over the columns of x and y in steps. After the
last step of a dim, the accumulator holds the scores at that dim. The program reduces or differentiates them, then
continues accumulating. All dims together therefore cost one product, and the scores stay in registers.

The operands x and y are read in two parts. The *ragged* part is a copy of the blocks whose width is not a multiple of
the step, each padded with zeros. The *even* part is the original tensors, from the first column after which every
block is a whole number of steps wide. ``ends[level]`` is the number of steps after which a dim is complete.
"""

from __future__ import annotations

import triton
import triton.language as tl

from matryo.losses.engines.triton.score_gradient import LOG2E, load_columns, load_rows, score_gradients, sign_of

_STEPS = ["ragged_steps", "even_steps", "even_start"]   # not specialised: one compilation serves all values

_LN2 = tl.constexpr(0.6931471805599453)
_MIN_LOG2, _MAX_LOG2 = tl.constexpr(-80.0), tl.constexpr(120.0)
# Without subtracting a maximum, sums of 2^s within these exponents neither underflow nor overflow in float32.


@triton.jit
def _tile_of(number, down, across, GROUP: tl.constexpr):
    """Return the (row, column) tile of a program. Groups of row tiles reuse the same columns while these are in L2."""
    first = number // (GROUP * across) * GROUP
    size = min(down - first, GROUP)
    offset = number % (GROUP * across)
    return first + offset % size, offset // size


@triton.jit
def _finite(maximum):
    """The value to subtract before exponentials: 0 if all scores are −∞ (masked by the bias), to avoid ∞ − ∞."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def _lse_at(
    acc, level, left, right, bias, row_lse, column_lse, rows, columns, i, j, m, n,
    BM: tl.constexpr, BN: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr,
    MASKED: tl.constexpr, OVER_ROWS: tl.constexpr, UNSHIFTED: tl.constexpr,
):  # fmt: skip
    """Write the log-sum-exp of one tile at one dim, over its columns and, with OVER_ROWS, over its rows.

    UNSHIFTED skips the subtraction of the maximum, so no register waits for it. Valid for scores of moderate size only;
    ``combine_kernel`` checks the range afterwards.
    """
    s = acc
    if SCALED:
        s = s * tl.load(left + level * rows + m, m < rows, 0.0)[:, None]
        s = s * tl.load(right + level * columns + n, n < columns, 0.0)[None, :]
    if BIAS:
        s = s + tl.load(bias + (level * columns if SEPARATE else 0) + n, n < columns, 0.0)[None, :]
    if MASKED:
        s = tl.where((n < columns)[None, :], s, float("-inf"))
    maximum = tl.zeros((BM,), tl.float32)
    if not UNSHIFTED:
        maximum = _finite(tl.max(s, 1)) * LOG2E
    total = tl.sum(tl.exp2(s * LOG2E - maximum[:, None]), 1)
    at = row_lse + (level * tl.cdiv(columns, BN) + j).to(tl.int64) * rows + m
    tl.store(at, (maximum + tl.log2(total)) * _LN2, m < rows)
    if OVER_ROWS:
        s = tl.where((m < rows)[:, None], s, float("-inf"))
        maximum = tl.zeros((BN,), tl.float32)
        if not UNSHIFTED:
            maximum = _finite(tl.where(n < columns, tl.max(s, 0), 0.0)) * LOG2E
        total = tl.sum(tl.exp2(s * LOG2E - maximum[None, :]), 0)
        at = column_lse + (level * tl.cdiv(rows, BM) + i).to(tl.int64) * columns + n
        tl.store(at, (maximum + tl.log2(total)) * _LN2, n < columns)


@triton.jit(do_not_specialize=_STEPS)
def lse_kernel(
    x_ragged, y_ragged, x_even, y_even, ends, ragged_steps, even_steps, even_start, rows, columns,
    left, right, bias, row_lse, column_lse, out_of_range,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr, MASKED: tl.constexpr,
    OVER_ROWS: tl.constexpr, UNSHIFTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the log-sum-exp of every tile: [dims, column tiles, rows] and [dims, row tiles, columns].

    The kernel is launched twice. The UNSHIFTED launch is fast, but valid for scores of moderate size only. The second
    one subtracts maxima and returns at once unless ``combine_kernel`` set ``out_of_range`` after the first.
    """
    if not UNSHIFTED and out_of_range is not None:  # noqa: SIM102 - the outer condition is resolved at compile time
        if tl.load(out_of_range) == 0:
            return
    i, j = _tile_of(tl.program_id(0), tl.cdiv(rows, BM), tl.cdiv(columns, BN), GROUP)
    m, n = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    level = 0
    end = tl.load(ends)
    if x_ragged is not None:
        for step in tl.range(ragged_steps, disable_licm=True):
            a = x_ragged.load([i * BM, step * BR])
            b = y_ragged.load([j * BN, step * BR])
            acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
            if step + 1 == end:
                _lse_at(acc, level, left, right, bias, row_lse, column_lse, rows, columns, i, j, m, n, BM, BN,
                        SCALED, BIAS, SEPARATE, MASKED, OVER_ROWS, UNSHIFTED)  # fmt: skip
                level += 1
                end = tl.load(ends + level)
                if SEPARATE:
                    acc = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(even_steps, disable_licm=True):
        a = x_even.load([i * BM, even_start + step * BK])
        b = y_even.load([j * BN, even_start + step * BK])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if ragged_steps + step + 1 == end:
            _lse_at(acc, level, left, right, bias, row_lse, column_lse, rows, columns, i, j, m, n, BM, BN,
                    SCALED, BIAS, SEPARATE, MASKED, OVER_ROWS, UNSHIFTED)  # fmt: skip
            level += 1
            end = tl.load(ends + level)


@triton.jit(do_not_specialize=["parts"])
def combine_kernel(
    logs, out, out_of_range, parts, count, PARTS: tl.constexpr, BLOCK: tl.constexpr, UNSHIFTED: tl.constexpr
):
    """Combine tile log-sum-exps: reduce [dims, parts, count] over ``parts``, PARTS at a time.

    The UNSHIFTED launch sets ``out_of_range`` if a sum left the safe range; otherwise the other one returns at once.
    """
    if not UNSHIFTED and out_of_range is not None:  # noqa: SIM102
        if tl.load(out_of_range) == 0:
            return
    at, k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PARTS)
    start = logs + tl.program_id(1).to(tl.int64) * parts * count + at[None, :]
    minimum, maximum = tl.full((BLOCK,), float("inf"), tl.float32), tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, parts, PARTS):
        part = (first + k)[:, None]
        there = part < parts
        here = tl.load(start + part.to(tl.int64) * count, there & (at < count)[None, :], 0.0) * LOG2E
        minimum = tl.minimum(minimum, tl.min(tl.where(there, here, float("inf")), 0))
        here = tl.where(there, here, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(here, 0))
        total = total * tl.exp2(maximum - _finite(new_maximum)) + tl.sum(
            tl.exp2(here - _finite(new_maximum)[None, :]), 0
        )
        maximum = new_maximum
    if UNSHIFTED:
        tl.store(out_of_range + at * 0, 1, (at < count) & ~((minimum > _MIN_LOG2) & (maximum < _MAX_LOG2)))
    tl.store(out + tl.program_id(1) * count + at, (_finite(maximum) + tl.log2(total)) * _LN2, at < count)


@triton.jit
def _column_sums(tile, BM: tl.constexpr, EXACT: tl.constexpr):
    """Sum a tile over its rows. In half precision by a matrix product, which needs no exchange between threads."""
    if EXACT:
        sums = tl.sum(tile, 0)
    else:
        ones = tl.full((16, BM), 1.0, tl.bfloat16)   # tl.dot needs at least 16 rows
        sums = tl.max(tl.dot(ones, tile.to(tl.bfloat16)), 0)
    return sums


@triton.jit
def _gradient_at(
    products, level, is_negative, row, m, n, edge, rows, columns, right, bias, column_offset, share, bias_sum,
    left_sum, right_sum, BM: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr, OVER_ROWS: tl.constexpr, SHARE: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Return the tile of factors that multiply x and y at one dim: score gradient · left · right.

    Adds the gradients with respect to the bias and to log(left) and log(right), if needed.
    """
    sign = sign_of(is_negative)
    column = load_columns(level, n[None, :], columns, right, bias, column_offset, share,
                        SCALED, BIAS, SEPARATE, OVER_ROWS, SHARE)  # fmt: skip
    p = score_gradients(products, row, column, sign, edge, SCALED, BIAS, OVER_ROWS, SHARE, MASKED)
    if sign < 0:
        p = -p
    column_ok = n < columns
    if BIAS_SUM:
        tl.atomic_add(bias_sum + (level * columns if SEPARATE else 0) + n, tl.sum(p, 0), column_ok, sem="relaxed")
    if SCALED:
        p = p * row[1] * column[1]
        scale_grad = p * products   # score gradient · score; 0 beyond the last column
        tl.atomic_add(left_sum + level * rows + m, tl.sum(scale_grad, 1), m < rows, sem="relaxed")
        tl.atomic_add(right_sum + level * columns + n, _column_sums(scale_grad, BM, EXACT), column_ok, sem="relaxed")
    return p


@triton.jit
def _pack(tile, BM: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr):
    """Pack two half-precision values per uint32, to halve the registers of a tile. float32 is not packed."""
    if tl.float32 == TYPE:
        packed = tile
    else:
        even, odd = tl.split(tile.to(TYPE).to(tl.uint16, bitcast=True).reshape(BM, BN // 2, 2))
        packed = even.to(tl.uint32) | (odd.to(tl.uint32) << 16)
    return packed


@triton.jit
def _unpack(packed, BM: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr):
    """Unpack a tile of two half-precision values per uint32 and convert it to float32."""
    if tl.float32 == TYPE:
        tile = packed
    else:
        even = (packed & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True)
        odd = (packed >> 16).to(tl.uint16).to(TYPE, bitcast=True)
        tile = tl.join(even, odd).reshape(BM, BN).to(tl.float32)
    return tile


# Addresses are recomputed at each use: keeping the 64-bit addresses of a tile would take twice its own registers.


@triton.jit
def _store_tile(corner, tile, rows, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Store the first ``rows`` rows of a tile."""
    m = tl.arange(0, BM)[:, None]
    tl.store(corner + m * stride + tl.arange(0, BN)[None, :], tile.to(corner.dtype.element_ty), m < rows)


@triton.jit
def _load_tile(corner, rows, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Load the first ``rows`` rows of a tile; the others are 0."""
    m = tl.arange(0, BM)[:, None]
    return tl.load(corner + m * stride + tl.arange(0, BN)[None, :], m < rows, 0.0)


@triton.jit(do_not_specialize=[*_STEPS, "lowest", "dims", "tiles"])
def gradient_kernel(
    x_ragged, y_ragged, x_even, y_even, ends, ragged_steps, even_steps, even_start, rows, columns,
    left, right, bias, negative, row_offset, column_offset, share_coef, share,
    grads, bias_sum, left_sum, right_sum, first, width, tiles, lowest, dims,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr, OVER_ROWS: tl.constexpr, SHARE: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, HELD: tl.constexpr, LATER: tl.constexpr, DOWN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write score gradients [dims, rows, width] at ``dims`` dims starting with the index ``lowest``.

    Covers ``tiles`` tiles of columns starting at column ``first``. If the dims are tied, the stored value is the suffix
    sum over a dim and all larger ones, which is the factor of the block that the dim adds. The suffix sum starts at the
    largest dim, which the loop reaches last:

    - HELD (at most 3): the gradients of that many smaller dims wait in registers, packed.
    - LATER: the suffix sum over the dims beyond these is already stored behind them, and is added.
    - DOWN: nothing waits. After the largest dim the loop runs backwards and subtracts the products again, so the dims
      are visited from the largest to the smallest.
    """
    TYPE: tl.constexpr = grads.dtype.element_ty
    EXACT: tl.constexpr = tl.float32 == TYPE
    negative, row_offset = negative + lowest, row_offset + lowest * rows
    if SCALED:
        left, left_sum = left + lowest * rows, left_sum + lowest * rows
        right, right_sum = right + lowest * columns, right_sum + lowest * columns
    if OVER_ROWS:
        column_offset += lowest * columns
    if SHARE:
        share_coef += lowest * rows
    if SEPARATE and BIAS:
        bias += lowest * columns
    if SEPARATE and BIAS_SUM:
        bias_sum += lowest * columns
    i, j = _tile_of(tl.program_id(0), tl.cdiv(rows, BM), tiles, GROUP)
    begin = first + j * BN
    m, n = i * BM + tl.arange(0, BM), begin + tl.arange(0, BN)
    corner = grads + (i * BM).to(tl.int64) * width + j * BN
    stride = width.to(tl.int64) * rows   # width is converted: rows may be 1, which Triton makes a constant
    edge = begin + BN > columns
    acc = tl.zeros((BM, BN), tl.float32)
    # Three separate tensors: if the names shared one initial value, Triton would treat their rotation in the loop as
    # loop-invariant and drop it.
    old = _pack(tl.zeros((BM, BN), tl.float32), BM, BN, TYPE)
    older = _pack(tl.zeros((BM, BN), tl.float32), BM, BN, TYPE)
    oldest = _pack(tl.zeros((BM, BN), tl.float32), BM, BN, TYPE)
    level = dims - 1 if DOWN else 0
    # The row statistics of a dim are loaded when the previous dim is done, to hide the latency.
    end, is_negative = tl.load(ends + level), tl.load(negative + level)
    row = load_rows(level, m[:, None], rows, left, row_offset, share_coef, SCALED, SHARE)
    if x_ragged is not None:
        for step in tl.range(ragged_steps, disable_licm=True):
            a = x_ragged.load([i * BM, step * BR])
            b = y_ragged.load([begin, step * BR])
            acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
            if not DOWN:  # noqa: SIM102
                if (step + 1 == end) & (level < dims - 1):
                    p = _gradient_at(acc, level, is_negative, row, m, n, edge, rows, columns, right, bias,
                                     column_offset, share, bias_sum, left_sum, right_sum, BM, SCALED, BIAS, SEPARATE,
                                     OVER_ROWS, SHARE, BIAS_SUM, MASKED, EXACT)  # fmt: skip
                    if SEPARATE:
                        _store_tile(corner + level * stride, p, rows - i * BM, width, BM, BN)
                    else:
                        oldest, older, old = older, old, _pack(p, BM, BN, TYPE)
                    level += 1
                    end, is_negative = tl.load(ends + level), tl.load(negative + level)
                    row = load_rows(level, m[:, None], rows, left, row_offset, share_coef, SCALED, SHARE)
                    if SEPARATE:
                        acc = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(even_steps, disable_licm=True):
        a = x_even.load([i * BM, even_start + step * BK])
        b = y_even.load([begin, even_start + step * BK])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if not DOWN:  # noqa: SIM102
            if (ragged_steps + step + 1 == end) & (level < dims - 1):
                p = _gradient_at(acc, level, is_negative, row, m, n, edge, rows, columns, right, bias, column_offset,
                                 share, bias_sum, left_sum, right_sum, BM, SCALED, BIAS, SEPARATE, OVER_ROWS, SHARE,
                                 BIAS_SUM, MASKED, EXACT)  # fmt: skip
                if SEPARATE:
                    _store_tile(corner + level * stride, p, rows - i * BM, width, BM, BN)
                else:
                    oldest, older, old = older, old, _pack(p, BM, BN, TYPE)
                level += 1
                end, is_negative = tl.load(ends + level), tl.load(negative + level)
                row = load_rows(level, m[:, None], rows, left, row_offset, share_coef, SCALED, SHARE)
    total = _gradient_at(acc, dims - 1, is_negative, row, m, n, edge, rows, columns, right, bias, column_offset, share,
                         bias_sum, left_sum, right_sum, BM, SCALED, BIAS, SEPARATE, OVER_ROWS, SHARE, BIAS_SUM, MASKED,
                         EXACT)  # fmt: skip
    if LATER:
        total += _load_tile(corner + dims * stride, rows - i * BM, width, BM, BN).to(tl.float32)
    here = corner + (dims - 1) * stride
    _store_tile(here, total, rows - i * BM, width, BM, BN)
    if HELD >= 1:
        total += _unpack(old, BM, BN, TYPE)
        _store_tile(here - stride, total, rows - i * BM, width, BM, BN)
    if HELD >= 2:
        total += _unpack(older, BM, BN, TYPE)
        _store_tile(here - 2 * stride, total, rows - i * BM, width, BM, BN)
    if HELD >= 3:
        total += _unpack(oldest, BM, BN, TYPE)
        _store_tile(here - 3 * stride, total, rows - i * BM, width, BM, BN)
    if DOWN:
        acc = -acc   # adding products to the negated accumulator subtracts them
        first_end = tl.load(ends)
        level -= 1
        end, is_negative = tl.load(ends + level), tl.load(negative + level)
        row = load_rows(level, m[:, None], rows, left, row_offset, share_coef, SCALED, SHARE)
        for back in tl.range(ragged_steps + even_steps - max(ragged_steps, first_end), disable_licm=True):
            step = even_steps - 1 - back
            a = x_even.load([i * BM, even_start + step * BK])
            b = y_even.load([begin, even_start + step * BK])
            acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
            if ragged_steps + step == end:
                total += _gradient_at(-acc, level, is_negative, row, m, n, edge, rows, columns, right, bias,
                                      column_offset, share, bias_sum, left_sum, right_sum, BM, SCALED, BIAS, SEPARATE,
                                      OVER_ROWS, SHARE, BIAS_SUM, MASKED, EXACT)  # fmt: skip
                _store_tile(corner + level * stride, total, rows - i * BM, width, BM, BN)
                level = max(level - 1, 0)
                end, is_negative = tl.load(ends + level), tl.load(negative + level)
                row = load_rows(level, m[:, None], rows, left, row_offset, share_coef, SCALED, SHARE)
        if x_ragged is not None:
            for back in tl.range(ragged_steps - first_end, disable_licm=True):
                step = ragged_steps - 1 - back
                a = x_ragged.load([i * BM, step * BR])
                b = y_ragged.load([begin, step * BR])
                acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
                if step == end:
                    total += _gradient_at(-acc, level, is_negative, row, m, n, edge, rows, columns, right, bias,
                                          column_offset, share, bias_sum, left_sum, right_sum, BM, SCALED, BIAS,
                                          SEPARATE, OVER_ROWS, SHARE, BIAS_SUM, MASKED, EXACT)  # fmt: skip
                    _store_tile(corner + level * stride, total, rows - i * BM, width, BM, BN)
                    level = max(level - 1, 0)
                    end, is_negative = tl.load(ends + level), tl.load(negative + level)
                    row = load_rows(level, m[:, None], rows, left, row_offset, share_coef, SCALED, SHARE)
