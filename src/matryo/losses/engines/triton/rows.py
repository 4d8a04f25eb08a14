"""Triton kernels that work row by row: inverse prefix norms, and the score of each row's target.

Each vector is read once for all dims.
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
from matryo.losses.engines.triton.operands import ceil_div, device_ints, flags
from matryo.losses.engines.triton.score_gradient import as_operand

_ROWS, _STEP = 16, 128   # rows per program; columns per step


def scores_at(scores: Scores, target: Tensor) -> Tensor:
    """Return s[i, b, target[b]], [dims, rows] in float32; 0 where the target is −1.

    A target out of range fails a device-side assertion.
    """
    x, y, dims = scores.x, scores.y, scores.nesting.dims
    out, bad_target = x.new_empty(len(dims), scores.rows, dtype=torch.float32), x.new_zeros((), dtype=torch.int32)
    grid = (ceil_div(scores.rows, _ROWS),)
    launch(
        target_kernel, grid, x, *x.stride(), y, *y.stride(), target, device_ints(dims, x.device),
        device_ints(scores.starts, x.device), scores.left, scores.right, scores.bias, out, bad_target, scores.rows,
        scores.columns, len(dims), ROWS=_ROWS, STEP=_STEP, num_warps=4, **flags(scores),
    )  # fmt: skip
    torch._assert_async(bad_target == 0, f"targets must be between 0 and {scores.columns - 1}")
    return out


@triton.jit(do_not_specialize=["rows", "columns", "dims"])
def target_kernel(
    x, x_stride, x_step, y, y_stride, y_step, target, ends, starts, left, right, bias, out, bad_target, rows, columns,
    dims, ROWS: tl.constexpr, STEP: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Accumulate products and write the score at the end of each dim, rounded as in the log-sum-exp of the row."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)[None, :]
    n = tl.load(target + m, m < rows, -1)
    valid = (n >= 0) & (n < columns)
    tl.store(bad_target + n * 0, 1, (n < -1) | (n >= columns))
    row, other = x + m.to(tl.int64)[:, None] * x_stride, y + n[:, None] * y_stride
    total = tl.zeros((ROWS,), tl.float32)
    low = 0
    for level in range(dims):
        high = tl.load(ends + level)
        own = other + tl.load(starts + level) * y_step
        for start in range(low, high, STEP):
            at = start + k
            ok = valid[:, None] & (at < high)
            a, b = tl.load(row + at.to(tl.int64) * x_step, ok, 0.0), tl.load(own + at.to(tl.int64) * y_step, ok, 0.0)
            a, b = as_operand(a.to(tl.float32), PRECISION), as_operand(b.to(tl.float32), PRECISION)
            total += tl.sum(a * b, 1)
        score = total
        if SCALED:
            score *= tl.load(left + level * rows + m, valid, 0.0) * tl.load(right + level * columns + n, valid, 0.0)
        if BIAS:
            score += tl.load(bias + (level * columns if SEPARATE else 0) + n, valid, 0.0)
        tl.store(out + level * rows + m, score, m < rows)
        if SEPARATE:
            total = tl.zeros((ROWS,), tl.float32)
        else:
            low = high


def inverse_norms(z: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return one over the norm of each prefix, [dims, rows] in float32; 0 for an all-zero prefix."""
    out = z.new_empty(len(dims), len(z), dtype=torch.float32)
    if len(z):
        with torch.cuda.device_of(z):   # Triton launches on the current device
            launch(norms_kernel, (ceil_div(len(z), _ROWS),), z, *z.stride(), _ends(dims, z), out, len(z), len(dims),
                   **_constants(dims))  # fmt: skip
    return out


def inverse_norms_backward(z: Tensor, inverse: Tensor, upstream: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the gradient of z: in each column, −z · Σ upstream / norm³ over the dims that contain the column."""
    gradient = z.new_empty(z.shape)
    if len(z):
        with torch.cuda.device_of(z):
            launch(norms_backward_kernel, (ceil_div(len(z), _ROWS),), z, *z.stride(), _ends(dims, z), inverse,
                   upstream.contiguous(), gradient, z.shape[1], len(z), len(dims), **_constants(dims))  # fmt: skip
    return gradient


def _vector_width(dims: tuple[int, ...]) -> int:
    """The largest power of two up to 8 that divides all dims, which lets the compiler vectorise loads."""
    return gcd(8, *dims)


def _ends(dims: tuple[int, ...], z: Tensor) -> Tensor:
    return device_ints(tuple(dim // _vector_width(dims) for dim in dims), z.device)


def _constants(dims: tuple[int, ...]) -> dict[str, Any]:
    return {"ROWS": _ROWS, "STEP": _STEP, "VECTOR": _vector_width(dims), "num_warps": 4}


@triton.jit(do_not_specialize=["rows", "dims"])
def norms_kernel(
    z, stride, step, ends, inverse, rows, dims, ROWS: tl.constexpr, STEP: tl.constexpr, VECTOR: tl.constexpr
):
    """Accumulate squares and write the inverse norm at the end of each dim."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)[None, :]
    row = z + m.to(tl.int64)[:, None] * stride
    squares = tl.zeros((ROWS, STEP), tl.float32)
    low = 0
    for level in range(dims):
        high = tl.load(ends + level) * VECTOR
        for start in range(low, high, STEP):
            at = start + k
            part = tl.load(row + at.to(tl.int64) * step, (m < rows)[:, None] & (at < high), 0.0).to(tl.float32)
            squares += part * part
        total = tl.sum(squares, 1)
        nonzero = total > 0
        tl.store(inverse + level * rows + m, tl.where(nonzero, tl.rsqrt(tl.where(nonzero, total, 1.0)), 0.0), m < rows)
        low = high


@triton.jit(do_not_specialize=["rows", "dims"])
def norms_backward_kernel(
    z, stride, step, ends, inverse, upstream, gradient, width, rows, dims,
    ROWS: tl.constexpr, STEP: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the gradient from the largest dim down: a column is part of the norm of its own dim and all larger ones."""
    m, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)[None, :]
    row, into = z + m.to(tl.int64)[:, None] * stride, gradient + m.to(tl.int64)[:, None] * width
    factor = tl.zeros((ROWS,), tl.float32)
    high = width   # the columns beyond the largest dim have gradient 0
    for back in range(dims + 1):
        level = dims - 1 - back
        low = 0
        if level >= 0:
            low = tl.load(ends + level) * VECTOR
        for start in range(low, high, STEP):
            at = start + k
            ok = (m < rows)[:, None] & (at < high)
            part = tl.load(row + at.to(tl.int64) * step, ok, 0.0).to(tl.float32)
            tl.store(into + at, -part * factor[:, None], ok)
        if level >= 0:
            inverse_norm = tl.load(inverse + level * rows + m, m < rows, 0.0)
            factor += tl.load(upstream + level * rows + m, m < rows, 0.0) * inverse_norm * inverse_norm * inverse_norm
        high = low
