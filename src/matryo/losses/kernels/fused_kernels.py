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

__all__ = ["combine_kernel", "lse_kernel", "pull_kernel", "small_kernel"]

_STEPS = ["ragged_steps", "even_steps", "even_start"]   # one compilation serves all their values

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


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
    acc, level, left, right, bias, by_row, by_column, rows, columns, i, j, m, n, BM: tl.constexpr, BN: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, MASKED: tl.constexpr, OVER_ROWS: tl.constexpr,
):  # fmt: skip
    """The log-sum-exp of one tile at one dim, over its columns and, if asked for, over its rows."""
    s = acc
    if SCALED:
        s = s * tl.load(left + level * rows + m, m < rows, 0.0)[:, None]
        s = s * tl.load(right + level * columns + n, n < columns, 0.0)[None, :]
    if BIAS:
        s = s + tl.load(bias + (level * columns if RESTART else 0) + n, n < columns, 0.0)[None, :]
    if MASKED:
        s = tl.where((n < columns)[None, :], s, float("-inf"))
    most = _finite(tl.max(s, 1)) * _LOG2E
    total = tl.sum(tl.exp2(s * _LOG2E - most[:, None]), 1)
    at = by_row + (level * tl.cdiv(columns, BN) + j).to(tl.int64) * rows + m
    tl.store(at, (most + tl.log2(total)) * _LN2, m < rows)
    if OVER_ROWS:
        s = tl.where((m < rows)[:, None], s, float("-inf"))
        most = _finite(tl.where(n < columns, tl.max(s, 0), 0.0)) * _LOG2E
        total = tl.sum(tl.exp2(s * _LOG2E - most[None, :]), 0)
        at = by_column + (level * tl.cdiv(rows, BM) + i).to(tl.int64) * columns + n
        tl.store(at, (most + tl.log2(total)) * _LN2, n < columns)


@triton.jit(do_not_specialize=_STEPS)
def lse_kernel(
    x_ragged, y_ragged, x_even, y_even, ends, ragged_steps, even_steps, even_start, rows, columns,
    left, right, bias, by_row, by_column,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, MASKED: tl.constexpr,
    OVER_ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the log-sum-exp of every tile: [dims, column tiles, rows], and [dims, row tiles, columns]."""
    i, j = _place(tl.program_id(0), tl.cdiv(rows, BM), tl.cdiv(columns, BN), GROUP)
    m, n = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    level = 0
    end = tl.load(ends)
    for step in tl.range(ragged_steps, disable_licm=True):
        a = x_ragged.load([i * BM, step * BR])
        b = y_ragged.load([j * BN, step * BR])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if step + 1 == end:
            _lse_at(acc, level, left, right, bias, by_row, by_column, rows, columns, i, j, m, n, BM, BN,
                    SCALED, BIAS, RESTART, MASKED, OVER_ROWS)  # fmt: skip
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
                    SCALED, BIAS, RESTART, MASKED, OVER_ROWS)  # fmt: skip
            level += 1
            end = tl.load(ends + level)


@triton.jit(do_not_specialize=["parts"])
def combine_kernel(logs, out, parts, count, BLOCK: tl.constexpr):
    """The log-sum-exp of [dims, parts, count] over the parts."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = logs + tl.program_id(1).to(tl.int64) * parts * count + at
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(parts):
        here = tl.load(start, at < count, 0.0) * _LOG2E
        start += count
        higher = tl.maximum(most, here)
        total = total * tl.exp2(most - _finite(higher)) + tl.exp2(here - _finite(higher))
        most = higher
    tl.store(out + tl.program_id(1) * count + at, (_finite(most) + tl.log2(total)) * _LN2, at < count)


@triton.jit
def _of_rows(
    level, m, rows, left, top, hard, target, even, SCALED: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """What every row brings to its pulls: (there?, left, top, hard, target, even)."""
    ok, at = m < rows, level * rows + m
    here = tl.load(top + at, ok, float("inf"))
    scale, take = here, here   # where there are none, nobody asks
    if SCALED:
        scale = tl.load(left + at, ok, 0.0)
    if EVEN:
        take = tl.load(even + at, ok, 0.0)
    return ok, scale, here, tl.load(hard + at, ok, 0.0), tl.load(target + m, ok, -1), take


@triton.jit
def _of_columns(
    level, n, columns, right, bias, top_right, share,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """What every column brings: (there?, its number, right, bias, top, share)."""
    ok, at = n < columns, level * columns + n
    scale, shift, here, part = n, n, n, n
    if SCALED:
        scale = tl.load(right + at, ok, 0.0)
    if BIAS:
        shift = tl.load(bias + (level * columns if RESTART else 0) + n, ok, 0.0) * _LOG2E
    if OVER_ROWS:
        here = tl.load(top_right + at, ok, float("inf"))
    if EVEN:
        part = tl.load(share + n, ok, 0.0)
    return ok, n, scale, shift, here, part


@triton.jit
def _pulls(
    products, row, column, SCALED: tl.constexpr, BIAS: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The pull of every score of a tile, but for its sign, and the scores without bias.

    Rows stand and columns lie, or the other way round. Exponents are those of 2, and soft is part of them.
    """
    ok, left, top, hard, target, even = row
    there, n, right, bias, top_right, share = column
    s = products
    if SCALED:
        s = s * left * right
    score = s * _LOG2E
    if BIAS:
        score += bias
    if MASKED:   # a row's log-sum-exp bounds no score beyond the last column
        score = tl.where(there, score, float("-inf"))
    p = tl.exp2(score - top)
    if OVER_ROWS:   # a column's log-sum-exp bounds no score beyond the last row
        p += tl.exp2(tl.where(ok, score, float("-inf")) - top_right)
    p = tl.where(n == target, p - hard, p)
    if EVEN:
        p -= even * share
    return p, s


@triton.jit
def _swept(
    products, level, m, n, rows, columns, left, right, bias, sign, top, hard, target, top_right, even, share,
    bias_sum, left_sum, right_sum,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What the pulls of a tile at one dim multiply x and y with; their sums are added where they are wanted."""
    row = _of_rows(level, m[:, None], rows, left, top, hard, target, even, SCALED, EVEN)
    column = _of_columns(level, n[None, :], columns, right, bias, top_right, share,
                         SCALED, BIAS, RESTART, OVER_ROWS, EVEN)  # fmt: skip
    p, s = _pulls(products, row, column, SCALED, BIAS, OVER_ROWS, EVEN, MASKED)
    p *= tl.load(sign + level)
    column_ok = n < columns
    if BIAS_SUM:
        tl.atomic_add(bias_sum + (level * columns if RESTART else 0) + n, tl.sum(p, 0), column_ok, sem="relaxed")
    if SCALED:   # a score is 0 beyond the last column
        tl.atomic_add(left_sum + level * rows + m, tl.sum(p * s, 1), m < rows, sem="relaxed")
        tl.atomic_add(right_sum + level * columns + n, tl.sum(p * s, 0), column_ok, sem="relaxed")
        p = p * row[1] * column[2]
    return p


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


@triton.jit(do_not_specialize=[*_STEPS, "dims", "tiles"])
def pull_kernel(
    x_ragged, y_ragged, x_even, y_even, ends, ragged_steps, even_steps, even_start, rows, columns,
    left, right, bias, sign, top, hard, target, top_right, even, share,
    pulls, bias_sum, left_sum, right_sum, first, width, tiles, dims,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the pulls at every dim, [dims, rows, width], of the columns from ``first`` on, ``tiles`` tiles of them.

    Where the dims share their columns, what is stored is the sum over a dim and all later ones: what the block that
    this dim adds is multiplied with. The tile is gone over again for that, while it is in the cache.
    """
    i, j = _place(tl.program_id(0), tl.cdiv(rows, BM), tiles, GROUP)
    begin = first + j * BN
    m, n = i * BM + tl.arange(0, BM), begin + tl.arange(0, BN)
    corner = pulls + (i * BM).to(tl.int64) * width + j * BN
    stride = width.to(tl.int64) * rows   # rows may be 1, which Triton makes a constant
    acc = tl.zeros((BM, BN), tl.float32)
    level = 0
    end = tl.load(ends)
    for step in tl.range(ragged_steps, disable_licm=True):
        a = x_ragged.load([i * BM, step * BR])
        b = y_ragged.load([begin, step * BR])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if (step + 1 == end) & (level < dims - 1):
            p = _swept(acc, level, m, n, rows, columns, left, right, bias, sign, top, hard, target, top_right,
                       even, share, bias_sum, left_sum, right_sum, SCALED, BIAS, RESTART, OVER_ROWS, EVEN,
                       BIAS_SUM, MASKED)  # fmt: skip
            _store_tile(corner + level * stride, p, rows - i * BM, width, BM, BN)
            level += 1
            end = tl.load(ends + level)
            if RESTART:
                acc = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(even_steps, disable_licm=True):
        a = x_even.load([i * BM, even_start + step * BK])
        b = y_even.load([begin, even_start + step * BK])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if (ragged_steps + step + 1 == end) & (level < dims - 1):
            p = _swept(acc, level, m, n, rows, columns, left, right, bias, sign, top, hard, target, top_right,
                       even, share, bias_sum, left_sum, right_sum, SCALED, BIAS, RESTART, OVER_ROWS, EVEN,
                       BIAS_SUM, MASKED)  # fmt: skip
            _store_tile(corner + level * stride, p, rows - i * BM, width, BM, BN)
            level += 1
            end = tl.load(ends + level)
    total = _swept(acc, dims - 1, m, n, rows, columns, left, right, bias, sign, top, hard, target, top_right,
                   even, share, bias_sum, left_sum, right_sum, SCALED, BIAS, RESTART, OVER_ROWS, EVEN,
                   BIAS_SUM, MASKED)  # fmt: skip
    _store_tile(corner + (dims - 1) * stride, total, rows - i * BM, width, BM, BN)
    if not RESTART:
        tl.debug_barrier()   # other threads may have written what is read
        for back in tl.range(2, dims + 1, disable_licm=True, num_stages=1):
            here = corner + (dims - back) * stride
            total += _load_tile(here, rows - i * BM, width, BM, BN).to(tl.float32)
            _store_tile(here, total, rows - i * BM, width, BM, BN)


@triton.jit(do_not_specialize=["level", "dim", "tiles_each"])
def small_kernel(
    mine, others, level, dim, rows, columns, tiles_each,
    left, right, bias, sign, top, hard, target, top_right, even, share,
    into, into_stride, bias_sum, left_sum, right_sum,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, OF_Y: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient at one small dim, as attention does it: a tile of x (or of y) stays, those of the other pass by.

    Nothing is written but the gradient, [own rows, dim], added to ``into``.
    """
    own = tl.program_id(0) * BM + tl.arange(0, BM)
    wide = tl.arange(0, D)
    held = mine.load([tl.program_id(0) * BM, 0])   # beyond ``dim`` there are zeros
    acc = tl.zeros((BM, D), tl.float32)
    pulled = tl.zeros((BM,), tl.float32)
    first = tl.program_id(1) * tiles_each
    last = min(first + tiles_each, tl.cdiv(rows if OF_Y else columns, BN))
    for tile in tl.range(first, last, disable_licm=True):
        other = tile * BN + tl.arange(0, BN)
        # Asked for before the product, these are there when it is.
        if OF_Y:
            row = _of_rows(level, other[None, :], rows, left, top, hard, target, even, SCALED, EVEN)
            column = _of_columns(level, own[:, None], columns, right, bias, top_right, share,
                                 SCALED, BIAS, RESTART, OVER_ROWS, EVEN)  # fmt: skip
        else:
            row = _of_rows(level, own[:, None], rows, left, top, hard, target, even, SCALED, EVEN)
            column = _of_columns(level, other[None, :], columns, right, bias, top_right, share,
                                 SCALED, BIAS, RESTART, OVER_ROWS, EVEN)  # fmt: skip
        passing = others.load([tile * BN, 0])
        products = tl.dot(held, passing.T, input_precision=PRECISION)
        p, _ = _pulls(products, row, column, SCALED, BIAS, OVER_ROWS, EVEN, MASKED)
        if BIAS_SUM:
            pulled += tl.sum(p, 1)
        if SCALED:
            p *= row[1] if OF_Y else column[2]
        acc = tl.dot(p.to(passing.dtype), passing, acc, input_precision=PRECISION)
    turn = tl.load(sign + level)
    acc *= turn
    count = columns if OF_Y else rows
    ok = own < count
    if SCALED:
        acc *= tl.load((right if OF_Y else left) + level * count + own, ok, 0.0)[:, None]
        # Scores are linear in x and in y: the sum of p · s over a row is what the gradient has along it.
        along = tl.sum(acc * held.to(tl.float32), 1)
        tl.atomic_add((right_sum if OF_Y else left_sum) + level * count + own, along, ok, sem="relaxed")
    if BIAS_SUM:
        tl.atomic_add(bias_sum + (level * columns if RESTART else 0) + own, turn * pulled, ok, sem="relaxed")
    at = into + own.to(tl.int64)[:, None] * into_stride + wide[None, :]
    tl.atomic_add(at, acc, ok[:, None] & (wide < dim)[None, :], sem="relaxed")
