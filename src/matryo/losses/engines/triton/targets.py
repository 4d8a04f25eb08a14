"""What targets take from the pulls, apart from the sweeps: one score a row, of the many that a sweep meets.

Sweeps treat all columns alike, as to look for targets would cost them registers, and so time. The pulls of targets are
computed here, a few numbers a row, and take the place of those that sweeps wrote. Where no pull is written, the
gradients get what is missing: what a target pulls less what the product took, rounded as the product rounded it. So
it comes to the same, however near to 1 a probability is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from matryo.losses.engines.contract import Pull, Scores
from matryo.losses.engines.triton.launch import launch
from matryo.losses.engines.triton.operands import flags, numbers, pieces, width_of
from matryo.losses.engines.triton.products import Into
from matryo.losses.engines.triton.pulls import LOG2E, as_multiplied, of_columns, of_rows, pulls_of, turn_of
from matryo.losses.engines.triton.statistics import Stats

__all__ = ["Targets"]

_ROWS, _BLOCK = 16, 128   # of a program, with vectors and without


class Targets:
    """The pulls of targets at every dim; ``small`` dims have theirs written nowhere. Sums over pulls are set right."""

    def __init__(self, scores: Scores, pull: Pull, stats: Stats, into: Into, small: int) -> None:
        dims, new = len(scores.nesting), scores.x.new_empty
        self.scores, self.target, self.into, self.small = scores, pull.target, into, small
        self.pulls = new(dims - small, scores.rows, dtype=torch.float32)
        """What is to be written."""
        self.missing = new(2, small, scores.rows, dtype=torch.float32)
        """What the products with y lack, and those with x."""
        launch(
            targets_kernel, (pieces(scores.rows, _BLOCK),), scores.x, pull.target, pull.at_target, pull.hard,
            *stats.arguments, self.pulls, self.missing, into.bias, into.left, into.right, scores.rows, scores.columns,
            dims, small, BLOCK=_BLOCK, num_warps=4, **flags(scores), **stats.flags(into.bias is not None),
        )  # fmt: skip

    def write(self, pulls: Tensor, first: int) -> None:
        """Put them among the pulls of the columns from ``first`` on, [dims, rows, width]."""
        dims, rows, width = pulls.shape
        launch(
            write_kernel, (pieces(rows, _BLOCK),), self.target, self.pulls, pulls, rows, width, first, dims,
            BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip

    def add(self, levels: range, into_y: Tensor | None) -> None:
        """Add what is missing at these small dims to the gradients of x and y."""
        x, y, into_x, dims = self.scores.x, self.scores.y, self.into.x, self.scores.nesting.dims
        launch(
            missing_kernel, (pieces(self.scores.rows, _ROWS),), x, x.stride(0), y, y.stride(0), self.target,
            self.missing, numbers(dims, x.device), numbers(self.scores.starts, x.device),
            into_x, 0 if into_x is None else into_x.stride(0), into_y, 0 if into_y is None else into_y.stride(0),
            self.into.left, self.into.right, self.scores.rows, self.scores.columns, self.small,
            levels.start, levels.stop, ROWS=_ROWS, WIDE=width_of(dims[levels.stop - 1]),
            SCALED=self.scores.left is not None, num_warps=4,
        )  # fmt: skip


@triton.jit
def _lost(pull, TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """What a product of these pulls leaves out, by rounding them."""
    return pull - as_multiplied(pull, PRECISION).to(TYPE).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "columns", "dims", "small"])
def targets_kernel(
    x, target, at_target, hard, left, right, bias, negative, top, top_right, even, share,
    pulls, missing, bias_sum, left_sum, right_sum, rows, columns, dims, small,
    BLOCK: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr,
    EVEN: tl.constexpr, BIAS_SUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the last dim to the first, as what is written at a dim is the sum over it and all later ones."""
    TYPE: tl.constexpr = x.dtype.element_ty
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(target + m, m < rows, -1)
    there = n >= 0
    n = tl.where(there, n, columns)   # which no column is
    total = tl.zeros((BLOCK,), tl.float32)
    for turned in range(dims):
        level = dims - 1 - turned
        at, turn = level * rows + m, turn_of(tl.load(negative + level))
        row = of_rows(level, m, rows, left, top, even, SCALED, EVEN)
        column = of_columns(level, n, columns, right, bias, top_right, share,
                            SCALED, BIAS, RESTART, OVER_ROWS, EVEN)  # fmt: skip
        score, taken = tl.load(at_target + at, there, 0.0), tl.load(hard + at, there, 0.0)
        p = pulls_of(score, row, column, turn, False, False, False, OVER_ROWS, EVEN, False)   # the score has its scale
        if BIAS_SUM:
            tl.atomic_add(bias_sum + (level * columns if RESTART else 0) + n, -taken, there, sem="relaxed")
        if level < small:
            if SCALED:
                a, b = p * column[1], p * row[1]
                of_x = (turn * _lost(a, TYPE, PRECISION) - taken * column[1]) * row[1]
                of_y = (turn * _lost(b, TYPE, PRECISION) - taken * row[1]) * column[1]
            else:
                of_x = turn * _lost(p, TYPE, PRECISION) - taken
                of_y = of_x
            tl.store(missing + at, of_x, m < rows)
            tl.store(missing + small * rows + at, of_y, m < rows)
        else:
            p *= turn
            here = p - taken
            if SCALED:
                if BIAS:
                    score -= column[2] / LOG2E
                along = p * score
                if tl.float32 != TYPE:   # a sweep adds up those of a column in half precision
                    along = along.to(tl.bfloat16).to(tl.float32)
                tl.atomic_add(left_sum + at, -taken * score, there, sem="relaxed")
                tl.atomic_add(right_sum + level * columns + n, here * score - along, there, sem="relaxed")
                here *= row[1] * column[1]
            total = here if RESTART else total + here
            tl.store(pulls + at - small * rows, total, m < rows)


@triton.jit(do_not_specialize=["rows", "first", "dims"])
def write_kernel(target, given, pulls, rows, width, first, dims, BLOCK: tl.constexpr):
    """Each where its column is, if it is among these."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(target + m, m < rows, -1) - first
    ok = (n >= 0) & (n < width) & (m < rows)
    for level in range(dims):
        at = (level * rows + m).to(tl.int64)
        tl.store(pulls + at * width + n, tl.load(given + at, ok, 0.0).to(pulls.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["rows", "columns", "small", "first", "last"])
def missing_kernel(
    x, x_stride, y, y_stride, target, missing, ends, starts, into_x, into_x_stride, into_y, into_y_stride,
    left_sum, right_sum, rows, columns, small, first, last,
    ROWS: tl.constexpr, WIDE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The row of y a target is, and the row of x it is wanted by, times what is missing."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)[None, :]
    n = tl.load(target + m, m < rows, -1).to(tl.int64)
    there, row = n >= 0, m.to(tl.int64)
    to_x, to_y = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    ok = there[:, None] & (k < 0)
    for level in range(first, last):
        ok = there[:, None] & (k < tl.load(ends + level))
        a = tl.load(x + row[:, None] * x_stride + k, ok, 0.0).to(tl.float32)
        b = tl.load(y + n[:, None] * y_stride + tl.load(starts + level) + k, ok, 0.0).to(tl.float32)
        of_x = tl.load(missing + level * rows + m, there, 0.0)
        of_y = tl.load(missing + (small + level) * rows + m, there, 0.0)
        to_x += of_x[:, None] * b
        to_y += of_y[:, None] * a
        if SCALED:   # as a small dim's own kernel has it: the gradient along the row
            along = tl.sum(a * b, 1)
            tl.atomic_add(left_sum + level * rows + m, of_x * along, there, sem="relaxed")
            tl.atomic_add(right_sum + level * columns + n, of_y * along, there, sem="relaxed")
    if into_x is not None:
        tl.atomic_add(into_x + row[:, None] * into_x_stride + k, to_x, ok, sem="relaxed")
    if into_y is not None:
        tl.atomic_add(into_y + n[:, None] * into_y_stride + k, to_y, ok, sem="relaxed")
