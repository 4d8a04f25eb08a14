"""The gradients at one small dim, in Triton, as attention computes them: no pull is ever written."""

from __future__ import annotations

import triton
import triton.language as tl

from matryo.losses.engines.triton.pulls import as_multiplied, of_columns, of_rows, pulls_of, turn_of

__all__ = ["small_kernel"]


@triton.jit(do_not_specialize=["level", "dim", "tiles_each"])
def small_kernel(
    mine, others, level, dim, rows, columns, tiles_each,
    left, right, bias, negative, top, top_right, even, share,
    into, into_stride, bias_sum, left_sum, right_sum,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, OF_Y: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of x (or of y) stays, those of the other pass by; the gradient, [own rows, dim], is added to ``into``.

    All small dims in one pass would read less, but hold so much in registers that it took twice as long.
    """
    own = tl.program_id(0) * BM + tl.arange(0, BM)
    wide = tl.arange(0, D)
    held = mine.load([tl.program_id(0) * BM, 0])   # beyond ``dim`` there are zeros
    acc = tl.zeros((BM, D), tl.float32)
    turn = turn_of(tl.load(negative + level))
    pulled = tl.zeros((BM,), tl.float32)
    first = tl.program_id(1) * tiles_each
    last = min(first + tiles_each, tl.cdiv(rows if OF_Y else columns, BN))
    for tile in tl.range(first, last, disable_licm=True):
        other = tile * BN + tl.arange(0, BN)
        # Asked for before the product, these are there when it is.
        if OF_Y:
            edge = (tl.program_id(0) + 1) * BM > columns
            row = of_rows(level, other[None, :], rows, left, top, even, SCALED, EVEN)
            column = of_columns(level, own[:, None], columns, right, bias, top_right, share,
                                SCALED, BIAS, RESTART, OVER_ROWS, EVEN)  # fmt: skip
        else:
            edge = (tile + 1) * BN > columns
            row = of_rows(level, own[:, None], rows, left, top, even, SCALED, EVEN)
            column = of_columns(level, other[None, :], columns, right, bias, top_right, share,
                                SCALED, BIAS, RESTART, OVER_ROWS, EVEN)  # fmt: skip
        passing = others.load([tile * BN, 0])
        products = tl.dot(held, passing.T, input_precision=PRECISION)
        p = pulls_of(products, row, column, turn, edge, SCALED, BIAS, OVER_ROWS, EVEN, MASKED)
        if BIAS_SUM:
            pulled += tl.sum(p, 1)
        if SCALED:
            p *= row[1] if OF_Y else column[1]
        p = as_multiplied(p, PRECISION)   # as what targets take is rounded, too
        acc = tl.dot(p.to(passing.dtype), passing, acc, input_precision=PRECISION)
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
