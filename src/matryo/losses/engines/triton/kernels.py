"""The kernels of the fused engine, in Triton: one sweep over the columns of x and y meets every dim on its way.

A program owns a tile of rows × columns and adds up its products step by step. Where a step ends a dim, the tile holds
the scores at that dim; the program takes from them what is wanted, and goes on adding. So all dims cost one product,
and a tile lives in registers only.

x and y come in two parts: the *ragged* part holds the blocks that are no whole number of steps wide, each padded with
zeros (few columns, copied); the *even* part is the tensors as they are, from the column where only whole steps follow.
"""

from __future__ import annotations

import triton
import triton.language as tl

from matryo.losses.engines.triton.pulls import LOG2E, of_columns, of_rows, pulls_of, turn_of

__all__ = ["combine_kernel", "lse_kernel", "pull_kernel"]

_STEPS = ["ragged_steps", "even_steps", "even_start"]   # one compilation serves all their values

_LN2 = tl.constexpr(0.6931471805599453)
_LEAST, _MOST = tl.constexpr(-80.0), tl.constexpr(120.0)   # between these powers of 2 a sum of exponentials is exact


@triton.jit
def _place(number, down, across, GROUP: tl.constexpr):
    """The tile of a program: groups of row tiles share the columns they read while these are in the cache."""
    first = number // (GROUP * across) * GROUP
    size = min(down - first, GROUP)
    inside = number % (GROUP * across)
    return first + inside % size, inside // size


@triton.jit
def _finite(most):
    """What to subtract before exponentials: scores may all be −∞, by a bias that masks them."""
    return tl.where(most == float("-inf"), 0.0, most)


@triton.jit
def _lse_at(
    acc, level, left, right, bias, by_row, by_column, rows, columns, i, j, m, n,
    BM: tl.constexpr, BN: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr,
    MASKED: tl.constexpr, OVER_ROWS: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """The log-sum-exp of one tile at one dim, over its columns and, if asked for, over its rows.

    Scores that are near 0 need no maximum to subtract. Without it, nothing has to be held until it is known.
    """
    s = acc
    if SCALED:
        s = s * tl.load(left + level * rows + m, m < rows, 0.0)[:, None]
        s = s * tl.load(right + level * columns + n, n < columns, 0.0)[None, :]
    if BIAS:
        s = s + tl.load(bias + (level * columns if RESTART else 0) + n, n < columns, 0.0)[None, :]
    if MASKED:
        s = tl.where((n < columns)[None, :], s, float("-inf"))
    most = tl.zeros((BM,), tl.float32)
    if not NEAR:
        most = _finite(tl.max(s, 1)) * LOG2E
    total = tl.sum(tl.exp2(s * LOG2E - most[:, None]), 1)
    at = by_row + (level * tl.cdiv(columns, BN) + j).to(tl.int64) * rows + m
    tl.store(at, (most + tl.log2(total)) * _LN2, m < rows)
    if OVER_ROWS:
        s = tl.where((m < rows)[:, None], s, float("-inf"))
        most = tl.zeros((BN,), tl.float32)
        if not NEAR:
            most = _finite(tl.where(n < columns, tl.max(s, 0), 0.0)) * LOG2E
        total = tl.sum(tl.exp2(s * LOG2E - most[None, :]), 0)
        at = by_column + (level * tl.cdiv(rows, BM) + i).to(tl.int64) * columns + n
        tl.store(at, (most + tl.log2(total)) * _LN2, n < columns)


@triton.jit(do_not_specialize=_STEPS)
def lse_kernel(
    x_ragged, y_ragged, x_even, y_even, ends, ragged_steps, even_steps, even_start, rows, columns,
    left, right, bias, by_row, by_column, far,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, MASKED: tl.constexpr,
    OVER_ROWS: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the log-sum-exp of every tile: [dims, column tiles, rows], and [dims, row tiles, columns].

    Two are launched: one for scores that are ``NEAR`` 0, and, when its sums have been looked at, one for any, which
    works if they showed some that are ``far`` from it.
    """
    if not NEAR and far is not None:  # noqa: SIM102 - known when compiling, and when running
        if tl.load(far) == 0:
            return
    i, j = _place(tl.program_id(0), tl.cdiv(rows, BM), tl.cdiv(columns, BN), GROUP)
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
                _lse_at(acc, level, left, right, bias, by_row, by_column, rows, columns, i, j, m, n, BM, BN,
                        SCALED, BIAS, RESTART, MASKED, OVER_ROWS, NEAR)  # fmt: skip
                level += 1
                end = tl.load(ends + level)
                if RESTART:
                    acc = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(even_steps, disable_licm=True):
        a = x_even.load([i * BM, even_start + step * BK])
        b = y_even.load([j * BN, even_start + step * BK])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if ragged_steps + step + 1 == end:
            _lse_at(acc, level, left, right, bias, by_row, by_column, rows, columns, i, j, m, n, BM, BN,
                    SCALED, BIAS, RESTART, MASKED, OVER_ROWS, NEAR)  # fmt: skip
            level += 1
            end = tl.load(ends + level)


@triton.jit(do_not_specialize=["parts"])
def combine_kernel(logs, out, far, parts, count, PARTS: tl.constexpr, BLOCK: tl.constexpr, NEAR: tl.constexpr):
    """The log-sum-exp of [dims, parts, count] over the parts, so many at once; ``far`` as where they were written."""
    if not NEAR and far is not None:  # noqa: SIM102
        if tl.load(far) == 0:
            return
    at, k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PARTS)
    start = logs + tl.program_id(1).to(tl.int64) * parts * count + at[None, :]
    least, most = tl.full((BLOCK,), float("inf"), tl.float32), tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, parts, PARTS):
        part = (first + k)[:, None]
        there = part < parts
        here = tl.load(start + part.to(tl.int64) * count, there & (at < count)[None, :], 0.0) * LOG2E
        least = tl.minimum(least, tl.min(tl.where(there, here, float("inf")), 0))
        here = tl.where(there, here, float("-inf"))
        higher = tl.maximum(most, tl.max(here, 0))
        total = total * tl.exp2(most - _finite(higher)) + tl.sum(tl.exp2(here - _finite(higher)[None, :]), 0)
        most = higher
    if NEAR:
        tl.store(far + at * 0, 1, (at < count) & ~((least > _LEAST) & (most < _MOST)))
    tl.store(out + tl.program_id(1) * count + at, (_finite(most) + tl.log2(total)) * _LN2, at < count)


@triton.jit
def _sums_of_columns(tile, BM: tl.constexpr, EXACT: tl.constexpr):
    """Sums over the rows of a tile: by a product in half precision, which asks no other thread for its numbers."""
    if EXACT:
        sums = tl.sum(tile, 0)
    else:
        ones = tl.full((16, BM), 1.0, tl.bfloat16)   # sixteen rows are the least there is
        sums = tl.max(tl.dot(ones, tile.to(tl.bfloat16)), 0)
    return sums


@triton.jit
def _swept(
    products, level, minus, row, m, n, edge, rows, columns, right, bias, top_right, share, bias_sum,
    left_sum, right_sum, BM: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What the pulls of a tile at one dim multiply x and y with; their sums are added where they are wanted."""
    turn = turn_of(minus)
    column = of_columns(level, n[None, :], columns, right, bias, top_right, share,
                        SCALED, BIAS, RESTART, OVER_ROWS, EVEN)  # fmt: skip
    p = pulls_of(products, row, column, turn, edge, SCALED, BIAS, OVER_ROWS, EVEN, MASKED)
    if turn < 0:
        p = -p
    column_ok = n < columns
    if BIAS_SUM:
        tl.atomic_add(bias_sum + (level * columns if RESTART else 0) + n, tl.sum(p, 0), column_ok, sem="relaxed")
    if SCALED:
        p = p * row[1] * column[1]
        along = p * products   # the pull times the score, which is 0 beyond the last column
        tl.atomic_add(left_sum + level * rows + m, tl.sum(along, 1), m < rows, sem="relaxed")
        tl.atomic_add(right_sum + level * columns + n, _sums_of_columns(along, BM, EXACT), column_ok, sem="relaxed")
    return p


@triton.jit
def _packed(tile, BM: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr):
    """A tile in as few registers as its type takes: two halves in one."""
    if tl.float32 == TYPE:
        packed = tile
    else:
        even, odd = tl.split(tile.to(TYPE).to(tl.uint16, bitcast=True).reshape(BM, BN // 2, 2))
        packed = even.to(tl.uint32) | (odd.to(tl.uint32) << 16)
    return packed


@triton.jit
def _unpacked(packed, BM: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr):
    """It in float32."""
    if tl.float32 == TYPE:
        tile = packed
    else:
        even = (packed & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True)
        odd = (packed >> 16).to(tl.uint16).to(TYPE, bitcast=True)
        tile = tl.join(even, odd).reshape(BM, BN).to(tl.float32)
    return tile


# Addresses are made where they are used: kept, those of a tile would take twice the registers of the tile itself.


@triton.jit
def _store_tile(corner, tile, rows, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Write a tile of which the first ``rows`` exist."""
    m = tl.arange(0, BM)[:, None]
    tl.store(corner + m * stride + tl.arange(0, BN)[None, :], tile.to(corner.dtype.element_ty), m < rows)


@triton.jit
def _load_tile(corner, rows, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Read it."""
    m = tl.arange(0, BM)[:, None]
    return tl.load(corner + m * stride + tl.arange(0, BN)[None, :], m < rows, 0.0)


@triton.jit(do_not_specialize=[*_STEPS, "lowest", "dims", "tiles"])
def pull_kernel(
    x_ragged, y_ragged, x_even, y_even, ends, ragged_steps, even_steps, even_start, rows, columns,
    left, right, bias, negative, top, top_right, even, share,
    pulls, bias_sum, left_sum, right_sum, first, width, tiles, lowest, dims,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, HELD: tl.constexpr, LATER: tl.constexpr, DOWN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the pulls at ``dims`` dims, from the ``lowest`` on, [dims, rows, width], of ``tiles`` tiles of columns from
    ``first`` on.

    Where the dims share their columns, what is stored is the sum over a dim and all later ones: what the block that
    this dim adds is multiplied with. Up to the last dim, the pulls of the earlier ones (``HELD``, at most three) wait
    in registers. With ``LATER``, there is a sum over later dims already, behind those that are written. With ``DOWN``,
    none waits: from the last dim the products are taken away again, and every dim is met when its sum is there.
    """
    TYPE: tl.constexpr = pulls.dtype.element_ty
    EXACT: tl.constexpr = tl.float32 == TYPE
    negative, top = negative + lowest, top + lowest * rows
    if SCALED:
        left, left_sum = left + lowest * rows, left_sum + lowest * rows
        right, right_sum = right + lowest * columns, right_sum + lowest * columns
    if OVER_ROWS:
        top_right += lowest * columns
    if EVEN:
        even += lowest * rows
    if RESTART and BIAS:
        bias += lowest * columns
    if RESTART and BIAS_SUM:
        bias_sum += lowest * columns
    i, j = _place(tl.program_id(0), tl.cdiv(rows, BM), tiles, GROUP)
    begin = first + j * BN
    m, n = i * BM + tl.arange(0, BM), begin + tl.arange(0, BN)
    corner = pulls + (i * BM).to(tl.int64) * width + j * BN
    stride = width.to(tl.int64) * rows   # rows may be 1, which Triton makes a constant
    edge = begin + BN > columns
    acc = tl.zeros((BM, BN), tl.float32)
    # Each made anew: names of one value, Triton takes for unchanged where one gets the value of another in a loop.
    old = _packed(tl.zeros((BM, BN), tl.float32), BM, BN, TYPE)
    older = _packed(tl.zeros((BM, BN), tl.float32), BM, BN, TYPE)
    oldest = _packed(tl.zeros((BM, BN), tl.float32), BM, BN, TYPE)
    level = dims - 1 if DOWN else 0
    # What a dim needs of its rows is asked for when the one before is done, so that it is there in time.
    end, minus = tl.load(ends + level), tl.load(negative + level)
    row = of_rows(level, m[:, None], rows, left, top, even, SCALED, EVEN)
    if x_ragged is not None:
        for step in tl.range(ragged_steps, disable_licm=True):
            a = x_ragged.load([i * BM, step * BR])
            b = y_ragged.load([begin, step * BR])
            acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
            if not DOWN:  # noqa: SIM102
                if (step + 1 == end) & (level < dims - 1):
                    p = _swept(acc, level, minus, row, m, n, edge, rows, columns, right, bias, top_right, share,
                               bias_sum, left_sum, right_sum, BM, SCALED, BIAS, RESTART, OVER_ROWS, EVEN, BIAS_SUM,
                               MASKED, EXACT)  # fmt: skip
                    if RESTART:
                        _store_tile(corner + level * stride, p, rows - i * BM, width, BM, BN)
                    else:
                        oldest, older, old = older, old, _packed(p, BM, BN, TYPE)
                    level += 1
                    end, minus = tl.load(ends + level), tl.load(negative + level)
                    row = of_rows(level, m[:, None], rows, left, top, even, SCALED, EVEN)
                    if RESTART:
                        acc = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(even_steps, disable_licm=True):
        a = x_even.load([i * BM, even_start + step * BK])
        b = y_even.load([begin, even_start + step * BK])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if not DOWN:  # noqa: SIM102
            if (ragged_steps + step + 1 == end) & (level < dims - 1):
                p = _swept(acc, level, minus, row, m, n, edge, rows, columns, right, bias, top_right, share,
                           bias_sum, left_sum, right_sum, BM, SCALED, BIAS, RESTART, OVER_ROWS, EVEN, BIAS_SUM, MASKED,
                           EXACT)  # fmt: skip
                if RESTART:
                    _store_tile(corner + level * stride, p, rows - i * BM, width, BM, BN)
                else:
                    oldest, older, old = older, old, _packed(p, BM, BN, TYPE)
                level += 1
                end, minus = tl.load(ends + level), tl.load(negative + level)
                row = of_rows(level, m[:, None], rows, left, top, even, SCALED, EVEN)
    total = _swept(acc, dims - 1, minus, row, m, n, edge, rows, columns, right, bias, top_right, share,
                   bias_sum, left_sum, right_sum, BM, SCALED, BIAS, RESTART, OVER_ROWS, EVEN, BIAS_SUM, MASKED,
                   EXACT)  # fmt: skip
    if LATER:
        total += _load_tile(corner + dims * stride, rows - i * BM, width, BM, BN).to(tl.float32)
    here = corner + (dims - 1) * stride
    _store_tile(here, total, rows - i * BM, width, BM, BN)
    if HELD >= 1:
        total += _unpacked(old, BM, BN, TYPE)
        _store_tile(here - stride, total, rows - i * BM, width, BM, BN)
    if HELD >= 2:
        total += _unpacked(older, BM, BN, TYPE)
        _store_tile(here - 2 * stride, total, rows - i * BM, width, BM, BN)
    if HELD >= 3:
        total += _unpacked(oldest, BM, BN, TYPE)
        _store_tile(here - 3 * stride, total, rows - i * BM, width, BM, BN)
    if DOWN:
        acc = -acc   # products are taken away by adding them to this
        first_end = tl.load(ends)
        level -= 1
        end, minus = tl.load(ends + level), tl.load(negative + level)
        row = of_rows(level, m[:, None], rows, left, top, even, SCALED, EVEN)
        for back in tl.range(ragged_steps + even_steps - max(ragged_steps, first_end), disable_licm=True):
            step = even_steps - 1 - back
            a = x_even.load([i * BM, even_start + step * BK])
            b = y_even.load([begin, even_start + step * BK])
            acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
            if ragged_steps + step == end:
                total += _swept(-acc, level, minus, row, m, n, edge, rows, columns, right, bias, top_right, share,
                                bias_sum, left_sum, right_sum, BM, SCALED, BIAS, RESTART, OVER_ROWS, EVEN, BIAS_SUM,
                                MASKED, EXACT)  # fmt: skip
                _store_tile(corner + level * stride, total, rows - i * BM, width, BM, BN)
                level = max(level - 1, 0)
                end, minus = tl.load(ends + level), tl.load(negative + level)
                row = of_rows(level, m[:, None], rows, left, top, even, SCALED, EVEN)
        if x_ragged is not None:
            for back in tl.range(ragged_steps - first_end, disable_licm=True):
                step = ragged_steps - 1 - back
                a = x_ragged.load([i * BM, step * BR])
                b = y_ragged.load([begin, step * BR])
                acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
                if step == end:
                    total += _swept(-acc, level, minus, row, m, n, edge, rows, columns, right, bias, top_right, share,
                                    bias_sum, left_sum, right_sum, BM, SCALED, BIAS, RESTART, OVER_ROWS, EVEN,
                                    BIAS_SUM, MASKED, EXACT)  # fmt: skip
                    _store_tile(corner + level * stride, total, rows - i * BM, width, BM, BN)
                    level = max(level - 1, 0)
                    end, minus = tl.load(ends + level), tl.load(negative + level)
                    row = of_rows(level, m[:, None], rows, left, top, even, SCALED, EVEN)
