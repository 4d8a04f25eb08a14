"""The score gradients at the targets, one per row and dim, computed apart from the tile kernels.

The tile kernels treat all columns alike, because a search for targets would cost registers and time. For large dims,
the gradients at the targets computed here overwrite the stored ones. Small dims store no score gradients: there, the
gradients of x and y get a correction, which is the exact gradient at the target minus the value that the product used,
rounded as the product rounded it. The result stays exact when a probability is close to 1 and 1 − p would cancel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from matryo.losses.engines.contract import ScoreGradient, Scores
from matryo.losses.engines.triton.launch import launch
from matryo.losses.engines.triton.operands import ceil_div, device_ints, flags, padded_width
from matryo.losses.engines.triton.products import Buffers
from matryo.losses.engines.triton.score_gradient import (
    LOG2E,
    as_operand,
    load_columns,
    load_rows,
    score_gradients,
    sign_of,
)
from matryo.losses.engines.triton.statistics import Stats

_ROWS, _BLOCK = 16, 128   # rows per program, in kernels that read vectors and in those that do not


class Targets:
    """The score gradients at the targets. The first ``small`` dims store no score gradients and get corrections.

    The constructor also corrects the gradients of the bias and the scales.
    """

    def __init__(self, scores: Scores, grad: ScoreGradient, stats: Stats, buffers: Buffers, small: int) -> None:
        dims, new = len(scores.nesting), scores.x.new_empty
        self.scores, self.target, self.buffers, self.small = scores, grad.target, buffers, small
        self.grads = new(dims - small, scores.rows, dtype=torch.float32)
        """[large dims, rows]: the values to store."""
        self.correction = new(2, small, scores.rows, dtype=torch.float32)
        """[2, small dims, rows]: corrections of the products with y (gradient of x) and with x (gradient of y)."""
        launch(
            targets_kernel, (ceil_div(scores.rows, _BLOCK),), scores.x, grad.target, grad.at_target, grad.target_coef,
            *stats.arguments, self.grads, self.correction, buffers.bias, buffers.left, buffers.right, scores.rows,
            scores.columns, dims, small, BLOCK=_BLOCK, num_warps=4, **flags(scores),
            **stats.flags(buffers.bias is not None),
        )  # fmt: skip

    def write(self, grads: Tensor, first: int) -> None:
        """Overwrite the targets in ``grads``, [dims, rows, width], which holds the columns from ``first`` on."""
        dims, rows, width = grads.shape
        launch(
            write_kernel, (ceil_div(rows, _BLOCK),), self.target, self.grads, grads, rows, width, first, dims,
            BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip

    def add(self, levels: range, into_y: Tensor | None) -> None:
        """Add the corrections of these small dims to the gradients of x and y."""
        x, y, into_x, dims = self.scores.x, self.scores.y, self.buffers.x, self.scores.nesting.dims
        launch(
            correction_kernel, (ceil_div(self.scores.rows, _ROWS),), x, x.stride(0), y, y.stride(0), self.target,
            self.correction, device_ints(dims, x.device), device_ints(self.scores.starts, x.device),
            into_x, 0 if into_x is None else into_x.stride(0), into_y, 0 if into_y is None else into_y.stride(0),
            self.buffers.left, self.buffers.right, self.scores.rows, self.scores.columns, self.small,
            levels.start, levels.stop, ROWS=_ROWS, WIDE=padded_width(dims[levels.stop - 1]),
            SCALED=self.scores.left is not None, num_warps=4,
        )  # fmt: skip


@triton.jit
def _rounding_error(grad, TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """The part of a score gradient that the rounding of a matrix product drops."""
    return grad - as_operand(grad, PRECISION).to(TYPE).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "columns", "dims", "small"])
def targets_kernel(
    x, target, at_target, target_coef, left, right, bias, negative, row_offset, column_offset, share_coef, share,
    grads, correction, bias_sum, left_sum, right_sum, rows, columns, dims, small,
    BLOCK: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr, OVER_ROWS: tl.constexpr,
    SHARE: tl.constexpr, BIAS_SUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute stored values and corrections, from the largest dim down: stored values are suffix sums over the dims."""
    TYPE: tl.constexpr = x.dtype.element_ty
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(target + m, m < rows, -1)
    valid = n >= 0
    n = tl.where(valid, n, columns)   # an index beyond the last column
    total = tl.zeros((BLOCK,), tl.float32)
    for back in range(dims):
        level = dims - 1 - back
        at, sign = level * rows + m, sign_of(tl.load(negative + level))
        row = load_rows(level, m, rows, left, row_offset, share_coef, SCALED, SHARE)
        column = load_columns(level, n, columns, right, bias, column_offset, share,
                            SCALED, BIAS, SEPARATE, OVER_ROWS, SHARE)  # fmt: skip
        score, target_grad = tl.load(at_target + at, valid, 0.0), tl.load(target_coef + at, valid, 0.0)
        # at_target includes the scales and the bias.
        p = score_gradients(score, row, column, sign, False, False, False, OVER_ROWS, SHARE, False)
        if BIAS_SUM:
            tl.atomic_add(bias_sum + (level * columns if SEPARATE else 0) + n, -target_grad, valid, sem="relaxed")
        if level < small:
            if SCALED:
                a, b = p * column[1], p * row[1]
                of_x = (sign * _rounding_error(a, TYPE, PRECISION) - target_grad * column[1]) * row[1]
                of_y = (sign * _rounding_error(b, TYPE, PRECISION) - target_grad * row[1]) * column[1]
            else:
                of_x = sign * _rounding_error(p, TYPE, PRECISION) - target_grad
                of_y = of_x
            tl.store(correction + at, of_x, m < rows)
            tl.store(correction + small * rows + at, of_y, m < rows)
        else:
            p *= sign
            own_grad = p - target_grad
            if SCALED:
                if BIAS:
                    score -= column[2] / LOG2E
                scale_grad = p * score
                if tl.float32 != TYPE:   # _column_sums adds in bfloat16
                    scale_grad = scale_grad.to(tl.bfloat16).to(tl.float32)
                tl.atomic_add(left_sum + at, -target_grad * score, valid, sem="relaxed")
                tl.atomic_add(right_sum + level * columns + n, own_grad * score - scale_grad, valid, sem="relaxed")
                own_grad *= row[1] * column[1]
            total = own_grad if SEPARATE else total + own_grad
            tl.store(grads + at - small * rows, total, m < rows)


@triton.jit(do_not_specialize=["rows", "first", "dims"])
def write_kernel(target, target_grads, grads, rows, width, first, dims, BLOCK: tl.constexpr):
    """Store each row's values at its target column, if that is among these columns."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(target + m, m < rows, -1) - first
    ok = (n >= 0) & (n < width) & (m < rows)
    for level in range(dims):
        at = (level * rows + m).to(tl.int64)
        tl.store(grads + at * width + n, tl.load(target_grads + at, ok, 0.0).to(grads.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["rows", "columns", "small", "first", "last"])
def correction_kernel(
    x, x_stride, y, y_stride, target, correction, ends, starts, into_x, into_x_stride, into_y, into_y_stride,
    left_sum, right_sum, rows, columns, small, first, last,
    ROWS: tl.constexpr, WIDE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Add correction · y[target] to the gradient of x, and correction · x to the gradient of y[target]."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)[None, :]
    n = tl.load(target + m, m < rows, -1).to(tl.int64)
    valid, row = n >= 0, m.to(tl.int64)
    to_x, to_y = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    ok = valid[:, None] & (k < 0)
    for level in range(first, last):
        ok = valid[:, None] & (k < tl.load(ends + level))
        a = tl.load(x + row[:, None] * x_stride + k, ok, 0.0).to(tl.float32)
        b = tl.load(y + n[:, None] * y_stride + tl.load(starts + level) + k, ok, 0.0).to(tl.float32)
        of_x = tl.load(correction + level * rows + m, valid, 0.0)
        of_y = tl.load(correction + (small + level) * rows + m, valid, 0.0)
        to_x += of_x[:, None] * b
        to_y += of_y[:, None] * a
        if SCALED:   # as in small_kernel: the inner product of a row and its gradient
            scale_grad = tl.sum(a * b, 1)
            tl.atomic_add(left_sum + level * rows + m, of_x * scale_grad, valid, sem="relaxed")
            tl.atomic_add(right_sum + level * columns + n, of_y * scale_grad, valid, sem="relaxed")
    if into_x is not None:
        tl.atomic_add(into_x + row[:, None] * into_x_stride + k, to_x, ok, sem="relaxed")
    if into_y is not None:
        tl.atomic_add(into_y + n[:, None] * into_y_stride + k, to_y, ok, sem="relaxed")
