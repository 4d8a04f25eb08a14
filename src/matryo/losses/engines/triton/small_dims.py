"""The gradients at one small dim, fused as in FlashAttention: the score gradients are never written to memory."""

from __future__ import annotations

import triton
import triton.language as tl

from matryo.losses.engines.triton.score_gradient import as_operand, load_columns, load_rows, score_gradients, sign_of


@triton.jit(do_not_specialize=["level", "dim", "tiles_each"])
def small_kernel(
    resident_side, streamed_side, level, dim, rows, columns, tiles_each,
    left, right, bias, negative, row_offset, column_offset, share_coef, share,
    into, into_stride, bias_sum, left_sum, right_sum,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, OF_Y: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr, OVER_ROWS: tl.constexpr, SHARE: tl.constexpr,
    BIAS_SUM: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradient of x (or of y, with OF_Y) at one dim to ``into``, [rows, dim].

    A program keeps one tile of its side in registers and loops over tiles of the other side. One pass over all small
    dims would read less memory, but was measured to take twice as long because of register pressure.
    """
    own = tl.program_id(0) * BM + tl.arange(0, BM)
    column_ids = tl.arange(0, D)
    resident = resident_side.load([tl.program_id(0) * BM, 0])   # zero beyond ``dim``
    acc = tl.zeros((BM, D), tl.float32)
    sign = sign_of(tl.load(negative + level))
    grad_sum = tl.zeros((BM,), tl.float32)
    first = tl.program_id(1) * tiles_each
    last = min(first + tiles_each, tl.cdiv(rows if OF_Y else columns, BN))
    for tile in tl.range(first, last, disable_licm=True):
        other = tile * BN + tl.arange(0, BN)
        # Loaded before the product, to hide the latency.
        if OF_Y:
            edge = (tl.program_id(0) + 1) * BM > columns
            row = load_rows(level, other[None, :], rows, left, row_offset, share_coef, SCALED, SHARE)
            column = load_columns(level, own[:, None], columns, right, bias, column_offset, share,
                                SCALED, BIAS, SEPARATE, OVER_ROWS, SHARE)  # fmt: skip
        else:
            edge = (tile + 1) * BN > columns
            row = load_rows(level, own[:, None], rows, left, row_offset, share_coef, SCALED, SHARE)
            column = load_columns(level, other[None, :], columns, right, bias, column_offset, share,
                                SCALED, BIAS, SEPARATE, OVER_ROWS, SHARE)  # fmt: skip
        streamed = streamed_side.load([tile * BN, 0])
        products = tl.dot(resident, streamed.T, input_precision=PRECISION)
        p = score_gradients(products, row, column, sign, edge, SCALED, BIAS, OVER_ROWS, SHARE, MASKED)
        if BIAS_SUM:
            grad_sum += tl.sum(p, 1)
        if SCALED:
            p *= row[1] if OF_Y else column[1]
        p = as_operand(p, PRECISION)   # targets_kernel rounds the target's gradient alike
        acc = tl.dot(p.to(streamed.dtype), streamed, acc, input_precision=PRECISION)
    acc *= sign
    count = columns if OF_Y else rows
    ok = own < count
    if SCALED:
        acc *= tl.load((right if OF_Y else left) + level * count + own, ok, 0.0)[:, None]
        # Scores are linear in x and y: Σ gradient · score over a row is the inner product of the row and its gradient.
        scale_grad = tl.sum(acc * resident.to(tl.float32), 1)
        tl.atomic_add((right_sum if OF_Y else left_sum) + level * count + own, scale_grad, ok, sem="relaxed")
    if BIAS_SUM:
        tl.atomic_add(bias_sum + (level * columns if SEPARATE else 0) + own, sign * grad_sum, ok, sem="relaxed")
    at = into + own.to(tl.int64)[:, None] * into_stride + column_ids[None, :]
    tl.atomic_add(at, acc, ok[:, None] & (column_ids < dim)[None, :], sem="relaxed")
