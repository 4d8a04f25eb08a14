"""What a row has at each dim without looking at the others, in Triton: norms, and the score of its target.

The vectors are read once, whatever the dims.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from matryo.losses.engines.contract import Scores
from matryo.losses.engines.triton.launch import launch
from matryo.losses.engines.triton.operands import flags, numbers, pieces
from matryo.losses.engines.triton.pulls import as_multiplied

__all__ = ["inverse_norms", "inverse_norms_backward", "scores_at"]

_ROWS, _STEP = 16, 128   # of a program; columns at a time


def scores_at(scores: Scores, target: Tensor) -> Tensor:
    """s[i, b, target[b]], [dims, rows] in float32; 0 where the target is −1. A wrong target is an error of the GPU."""
    x, y, dims = scores.x, scores.y, scores.nesting.dims
    found, wrong = x.new_empty(len(dims), scores.rows, dtype=torch.float32), x.new_zeros((), dtype=torch.int32)
    grid = (pieces(scores.rows, _ROWS),)
    launch(
        target_kernel, grid, x, *x.stride(), y, *y.stride(), target, numbers(dims, x.device),
        numbers(scores.starts, x.device), scores.left, scores.right, scores.bias, found, wrong, scores.rows,
        scores.columns, len(dims), ROWS=_ROWS, STEP=_STEP, num_warps=4, **flags(scores),
    )  # fmt: skip
    torch._assert_async(wrong == 0, f"targets must lie in 0 … {scores.columns - 1}")
    return found


@triton.jit(do_not_specialize=["rows", "columns", "dims"])
def target_kernel(
    x, x_stride, x_step, y, y_stride, y_step, target, ends, starts, left, right, bias, found, wrong, rows, columns,
    dims, ROWS: tl.constexpr, STEP: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add up products, and write the score where a dim ends: the one that the log-sum-exp of its row has met."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)[None, :]
    n = tl.load(target + m, m < rows, -1)
    there = (n >= 0) & (n < columns)
    tl.store(wrong + n * 0, 1, (n < -1) | (n >= columns))
    row, other = x + m.to(tl.int64)[:, None] * x_stride, y + n[:, None] * y_stride
    total = tl.zeros((ROWS,), tl.float32)
    low = 0
    for level in range(dims):
        high = tl.load(ends + level)
        own = other + tl.load(starts + level) * y_step
        for start in range(low, high, STEP):
            at = start + k
            ok = there[:, None] & (at < high)
            a, b = tl.load(row + at.to(tl.int64) * x_step, ok, 0.0), tl.load(own + at.to(tl.int64) * y_step, ok, 0.0)
            a, b = as_multiplied(a.to(tl.float32), PRECISION), as_multiplied(b.to(tl.float32), PRECISION)
            total += tl.sum(a * b, 1)
        score = total
        if SCALED:
            score *= tl.load(left + level * rows + m, there, 0.0) * tl.load(right + level * columns + n, there, 0.0)
        if BIAS:
            score += tl.load(bias + (level * columns if RESTART else 0) + n, there, 0.0)
        tl.store(found + level * rows + m, score, m < rows)
        if RESTART:
            total = tl.zeros((ROWS,), tl.float32)
        else:
            low = high


def inverse_norms(z: Tensor, dims: tuple[int, ...]) -> Tensor:
    """[dims, rows] in float32; 0 for a prefix of zeros."""
    found = z.new_empty(len(dims), len(z), dtype=torch.float32)
    if len(z):
        with torch.cuda.device_of(z):   # Triton launches on the current device
            launch(norms_kernel, (pieces(len(z), _ROWS),), z, *z.stride(), _ends(dims, z), found, len(z), len(dims),
                   **_constants(dims))  # fmt: skip
    return found


def inverse_norms_backward(z: Tensor, inverse: Tensor, given: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The gradient of z: −z · Σ over the dims that reach a column of given / norm³."""
    gradient = z.new_empty(z.shape)
    if len(z):
        with torch.cuda.device_of(z):
            launch(norms_backward_kernel, (pieces(len(z), _ROWS),), z, *z.stride(), _ends(dims, z), inverse,
                   given.contiguous(), gradient, z.shape[1], len(z), len(dims), **_constants(dims))  # fmt: skip
    return gradient


def _whole(dims: tuple[int, ...]) -> int:
    """What all dims are multiples of: so many numbers, up to 16 bytes of them, are read at once."""
    return gcd(8, *dims)


def _ends(dims: tuple[int, ...], z: Tensor) -> Tensor:
    return numbers(tuple(dim // _whole(dims) for dim in dims), z.device)


def _constants(dims: tuple[int, ...]) -> dict[str, Any]:
    return {"ROWS": _ROWS, "STEP": _STEP, "WHOLE": _whole(dims), "num_warps": 4}


@triton.jit(do_not_specialize=["rows", "dims"])
def norms_kernel(
    z, stride, step, ends, inverse, rows, dims, ROWS: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr
):
    """Add up squares, and write what they come to where a dim ends."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)[None, :]
    row = z + m.to(tl.int64)[:, None] * stride
    squares = tl.zeros((ROWS, STEP), tl.float32)
    low = 0
    for level in range(dims):
        high = tl.load(ends + level) * WHOLE
        for start in range(low, high, STEP):
            at = start + k
            part = tl.load(row + at.to(tl.int64) * step, (m < rows)[:, None] & (at < high), 0.0).to(tl.float32)
            squares += part * part
        total = tl.sum(squares, 1)
        some = total > 0
        tl.store(inverse + level * rows + m, tl.where(some, tl.rsqrt(tl.where(some, total, 1.0)), 0.0), m < rows)
        low = high


@triton.jit(do_not_specialize=["rows", "dims"])
def norms_backward_kernel(
    z, stride, step, ends, inverse, given, gradient, width, rows, dims,
    ROWS: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """From the last dim to the first, as a column is in the norm of its own dim and of all later ones."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)[None, :]
    row, into = z + m.to(tl.int64)[:, None] * stride, gradient + m.to(tl.int64)[:, None] * width
    pull = tl.zeros((ROWS,), tl.float32)
    high = width   # no dim reaches the columns from the last one on
    for turn in range(dims + 1):
        level = dims - 1 - turn
        low = 0
        if level >= 0:
            low = tl.load(ends + level) * WHOLE
        for start in range(low, high, STEP):
            at = start + k
            ok = (m < rows)[:, None] & (at < high)
            part = tl.load(row + at.to(tl.int64) * step, ok, 0.0).to(tl.float32)
            tl.store(into + at, -part * pull[:, None], ok)
        if level >= 0:
            one = tl.load(inverse + level * rows + m, m < rows, 0.0)
            pull += tl.load(given + level * rows + m, m < rows, 0.0) * one * one * one
        high = low
