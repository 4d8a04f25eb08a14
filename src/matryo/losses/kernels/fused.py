"""The engine for GPUs: Triton computes log-sum-exps and pulls in one sweep a tile, matrix products do the rest.

Forward, one product of the full width gives the scores at every dim; each tile keeps a log-sum-exp a dim and row.
Backward, the scores are computed anew, for some columns at a time, and turned into pulls: for the gradient of block j,
the sum over dim j and all later ones. A product each then gives the gradients of x and y. Small dims go another way,
that of attention, where not even their pulls are written: most of what nesting would add to memory and traffic is
theirs, and least of the arithmetic.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from matryo.losses.kernels.fused_kernels import combine_kernel, lse_kernel, pull_kernel, small_kernel
from matryo.losses.kernels.scores import Gradients, Pull, Scores
from matryo.nesting import Nesting

__all__ = ["gradients", "log_sum_exp"]

_PULLS = 0.8, 1 << 26   # bytes of pulls at a time: so many a score, but not less than these
_SMALL = 128   # dims up to this one are small
_PROGRAMS = 1024   # enough for every GPU there is


@dataclass(frozen=True)
class _Tile:
    """The shape of a program's work."""

    rows: int
    columns: int
    ragged: int
    """Columns of a step in the ragged part,"""
    step: int
    """and in the even part."""
    warps: int
    stages: int
    group: int = 16

    @property
    def constants(self) -> dict[str, int]:
        """As the kernels call them."""
        shape = {"BM": self.rows, "BN": self.columns, "BR": self.ragged, "BK": self.step, "GROUP": self.group}
        return shape | {"num_warps": self.warps, "num_stages": self.stages}


# As measured on an H200, for half precision. Scores with left and right need more registers.
_LSE = _Tile(128, 128, 32, 64, warps=4, stages=3)
_PULL = {False: _Tile(64, 128, 32, 64, warps=4, stages=4), True: _Tile(128, 128, 32, 64, warps=8, stages=3)}
_SMALLS = {   # by the width of the vectors; rows are those of the tile that stays
    16: {False: _Tile(128, 128, 0, 0, warps=4, stages=3), True: _Tile(128, 64, 0, 0, warps=4, stages=3)},
    32: {False: _Tile(128, 128, 0, 0, warps=4, stages=3), True: _Tile(128, 64, 0, 0, warps=4, stages=3)},
    64: {False: _Tile(64, 128, 0, 0, warps=4, stages=3), True: _Tile(64, 128, 0, 0, warps=4, stages=3)},
    128: {False: _Tile(64, 128, 0, 0, warps=4, stages=3), True: _Tile(64, 64, 0, 0, warps=4, stages=3)},
}
_SINGLE = _Tile(64, 64, 16, 32, warps=4, stages=2)   # in full precision, which takes twice the room


@dataclass(frozen=True, eq=False)
class _Stats:
    """What rows and columns bring to their pulls: soft · exp(s − l) = sign · 2^(s·log₂e − top), one exponential."""

    left: Tensor | None
    right: Tensor | None
    bias: Tensor | None
    sign: Tensor
    top: Tensor
    hard: Tensor
    target: Tensor
    top_right: Tensor | None
    even: Tensor | None
    share: Tensor | None

    @classmethod
    def of(cls, scores: Scores, pull: Pull) -> _Stats:
        """In the units of the kernels."""
        low, right = pull.soft.amin(1, keepdim=True), None
        if pull.by_column is not None and pull.soft_right is not None:
            low = torch.minimum(low, pull.soft_right.amin(1, keepdim=True))
            right = _top(pull.by_column, pull.soft_right)
        sign = torch.where(low < 0, -1.0, 1.0)
        even = None if pull.even is None else pull.even * sign
        return cls(
            scores.left, scores.right, scores.bias, sign, _top(pull.by_row, pull.soft), pull.hard * sign,
            pull.target.int(), right, even, pull.share,
        )  # fmt: skip

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """In the order of the kernels' arguments."""
        return tuple(getattr(self, field.name) for field in fields(self))


def _top(logs: Tensor, soft: Tensor) -> Tensor:
    return logs * math.log2(math.e) - soft.abs().log2()


class _Sweep:
    """The operands of a sweep over the columns, as the kernels read them."""

    def __init__(self, scores: Scores, tile: _Tile) -> None:
        self.scores, self.tile = scores, tile
        dims, widths = scores.nesting.dims, [high - low for low, high in scores.nesting.blocks]
        even = len(dims)   # the first dim of the even part
        while scores.tied and even and widths[even - 1] % tile.step == 0:
            even -= 1
        if even and dims[even - 1] * scores.x.element_size() % 16:   # the hardware's copies would not begin there
            even = len(dims)
        self.start = dims[even - 1] if even else 0
        if scores.tied:
            ranges = [(low, high, low, high) for low, high in scores.nesting.blocks[:even]]
        else:
            ranges = [(0, dim, start, start + dim) for dim, start in zip(dims, scores.starts, strict=True)]
        steps = [triton.cdiv(high - low, tile.ragged) for low, high, _, _ in ranges]
        self.ragged_steps = sum(steps)
        steps += [width // tile.step for width in widths[even:]]
        self.even_steps = sum(steps) - self.ragged_steps
        self.ends = _ends(tuple(steps), scores.x.device)
        self.x_ragged = _padded(scores.x, [(low, high) for low, high, _, _ in ranges], tile.ragged)
        self.y_ragged = _padded(scores.y, [(low, high) for _, _, low, high in ranges], tile.ragged)

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """What both sweeping kernels begin with."""
        tile, scores = self.tile, self.scores
        return (
            _descriptor(self.x_ragged, tile.rows, tile.ragged), _descriptor(self.y_ragged, tile.columns, tile.ragged),
            _descriptor(scores.x, tile.rows, tile.step), _descriptor(scores.y, tile.columns, tile.step),
            self.ends, self.ragged_steps, self.even_steps, self.start, scores.rows, scores.columns,
        )  # fmt: skip


@lru_cache(maxsize=256)   # a recorded CUDA graph must find it on the device, not copy it from memory long gone
def _ends(steps: tuple[int, ...], device: torch.device) -> Tensor:
    """After how many steps each dim ends; −1 for never."""
    return torch.tensor([*accumulate(steps), -1], dtype=torch.int32, device=device)


def log_sum_exp(scores: Scores, over_rows: bool = False) -> tuple[Tensor, Tensor | None]:
    """See :mod:`matryo.losses.kernels.scores`."""
    scores, tile, dims = _readable(scores), _tile(scores, _LSE), len(scores.nesting)
    down, across = triton.cdiv(scores.rows, tile.rows), triton.cdiv(scores.columns, tile.columns)
    by_row = scores.x.new_empty(dims, across, scores.rows, dtype=torch.float32)
    by_column = scores.x.new_empty(dims, down, scores.columns, dtype=torch.float32) if over_rows else None
    with _on(scores.x):
        lse_kernel[(down * across,)](
            *_Sweep(scores, tile).arguments, scores.left, scores.right, scores.bias, by_row, by_column,
            MASKED=scores.columns % tile.columns != 0, OVER_ROWS=over_rows, **_flags(scores), **tile.constants,
        )  # fmt: skip
        return _combined(by_row), None if by_column is None else _combined(by_column)


def _combined(logs: Tensor) -> Tensor:
    """The log-sum-exp of the tiles' own."""
    dims, parts, count = logs.shape
    out = logs.new_empty(dims, count)
    combine_kernel[(triton.cdiv(count, 128), dims)](logs, out, parts, count, BLOCK=128, num_warps=4)
    return out


def gradients(scores: Scores, pull: Pull, *, x: bool = True, y: bool = True, bias: bool = False) -> Gradients:
    """See :mod:`matryo.losses.kernels.scores`."""
    scores, new = _readable(scores), scores.x.new_zeros
    dims, tied, small = len(scores.nesting), scores.tied, sum(dim <= _SMALL for dim in scores.nesting.dims)
    single: Any = {"dtype": torch.float32}
    into = _Into(
        new(scores.x.shape, **single) if x else None,
        torch.zeros_like(scores.y) if y else None,
        new(scores.columns, scores.nesting.dims[min(small, dims - 1)], **single) if y and small and tied else None,
        new(scores.columns if scores.tied else (dims, scores.columns), **single) if bias else None,
        None if scores.left is None else new(dims, scores.rows, **single),
        None if scores.left is None else new(dims, scores.columns, **single),
    )
    with _on(scores.x):
        stats = _Stats.of(scores, pull)
        for level in range(small):
            _add_small(scores, stats, level, into)
        if small < dims:
            _add_large(*_from(scores, stats, into, small))
        if into.y is not None and into.y_shared is not None:
            into.y[:, : into.y_shared.shape[1]] = into.y_shared
    return Gradients(
        None if into.x is None else into.x.to(scores.x.dtype), into.y, into.bias, into.left, into.right
    )


@dataclass(frozen=True, eq=False)
class _Into:
    """Where gradients are added up."""

    x: Tensor | None
    """In float32."""
    y: Tensor | None
    """In the dtype of y: each of its numbers is written once,"""
    y_shared: Tensor | None
    """but its first columns, which small dims share with a larger one, are added up here, in float32."""
    bias: Tensor | None
    left: Tensor | None
    right: Tensor | None


def _add_small(scores: Scores, stats: _Stats, level: int, into: _Into) -> None:
    """The gradients at one small dim."""
    dim, start = scores.nesting.dims[level], scores.starts[level]
    wide = max(16, triton.next_power_of_2(dim))
    tile = _tile(scores, _SMALLS[wide][scores.left is not None])
    sides = scores.x[:, :dim], _lying(scores.y[:, start : start + dim])
    for of_y in (False, True):
        # The pulls are summed for the bias, and for left and right, where the tile that stays is the one summed for.
        wanted = into.y if of_y else into.x
        if wanted is None and into.left is None and not (of_y and into.bias is not None):
            continue
        mine, others = sides[::-1] if of_y else sides
        down, across = triton.cdiv(mine.shape[0], tile.rows), triton.cdiv(others.shape[0], tile.columns)
        splits = min(across, max(1, _PROGRAMS // down))
        gradient = into.y_shared if of_y else into.x
        if gradient is None:
            gradient = scores.x.new_zeros(mine.shape[0], dim, dtype=torch.float32)
        small_kernel[(down, splits)](
            _descriptor(mine, tile.rows, wide), _descriptor(others, tile.columns, wide), level, dim, scores.rows,
            scores.columns, triton.cdiv(across, splits), *stats.tensors, gradient, gradient.stride(0), into.bias,
            into.left, into.right, BM=tile.rows, BN=tile.columns, D=wide, OF_Y=of_y, num_warps=tile.warps,
            num_stages=tile.stages, MASKED=scores.columns % (tile.rows if of_y else tile.columns) != 0,
            **_flags(scores, stats, bias_sum=of_y and into.bias is not None),
        )  # fmt: skip
        if of_y and into.y is not None and not scores.tied:
            into.y[:, start : start + dim] = gradient.to(into.y.dtype)


def _add_large(scores: Scores, stats: _Stats, into: _Into) -> None:
    """The gradients at all other dims, some columns at a time."""
    tile, dims = _tile(scores, _PULL[scores.left is not None]), len(scores.nesting)
    sweep = _Sweep(scores, tile)
    room = max(int(_PULLS[0] * scores.rows * scores.columns), _PULLS[1])
    width = max(1, room // (dims * scores.rows * scores.x.element_size() * tile.columns)) * tile.columns
    width = min(width, triton.cdiv(scores.columns, tile.columns) * tile.columns)
    pulls = scores.x.new_empty(dims, scores.rows, width)
    for first in range(0, scores.columns, width):
        count = min(width, scores.columns - first)
        tiles = triton.cdiv(count, tile.columns)
        pull_kernel[(triton.cdiv(scores.rows, tile.rows) * tiles,)](
            *sweep.arguments, *stats.tensors, pulls, into.bias, into.left, into.right, first, width, tiles, dims,
            MASKED=scores.columns % tile.columns != 0, **_flags(scores, stats, bias_sum=into.bias is not None),
            **tile.constants,
        )  # fmt: skip
        _multiply(scores, pulls[:, :, :count], slice(first, first + count), into)


def _multiply(scores: Scores, pulls: Tensor, some: slice, into: _Into) -> None:
    """Add what the pulls of some columns give to the gradients."""
    y = scores.y[some]
    into_y = None if into.y is None else into.y[some]
    begin = 0
    for pull, dim, start in zip(pulls, scores.nesting.dims, scores.starts, strict=True):
        if into.x is not None:
            _add_product(into.x[:, begin:dim], pull, y[:, start + begin : start + dim])
        if begin == 0 and into.y_shared is not None:
            _add_product(into.y_shared[some], pull.T, scores.x[:, :dim])
        elif into_y is not None:
            torch.mm(pull.T, scores.x[:, begin:dim], out=into_y[:, start + begin : start + dim])
        begin = dim if scores.tied else 0


def _from(scores: Scores, stats: _Stats, into: _Into, level: int) -> tuple[Scores, _Stats, _Into]:
    """The same without the dims before one."""
    if not level:
        return scores, stats, into

    def later(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[level:]

    start, bias = scores.starts[level], scores.bias if scores.tied else later(scores.bias)
    fewer = replace(
        scores, y=scores.y[:, start:], nesting=Nesting(scores.nesting.dims[level:]), bias=bias,
        left=later(scores.left), right=later(scores.right),
    )  # fmt: skip
    less = replace(
        stats, left=fewer.left, right=fewer.right, bias=bias, sign=stats.sign[level:], top=stats.top[level:],
        hard=stats.hard[level:], top_right=later(stats.top_right), even=later(stats.even),
    )  # fmt: skip
    onto = replace(
        into, y=None if into.y is None else into.y[:, start:], bias=into.bias if scores.tied else later(into.bias),
        left=later(into.left), right=later(into.right),
    )  # fmt: skip
    return _readable(fewer), less, onto


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b, summed in float32 whatever a and b are."""
    if a.dtype == torch.float32:
        into.addmm_(a, b)
    elif a.is_cuda:
        torch.ops.aten.addmm.dtype_out(into, a, b, torch.float32, out=into)
    else:
        into.addmm_(a.float(), b.float())


def _padded(tensor: Tensor, ranges: list[tuple[int, int]], step: int) -> Tensor:
    """Ranges of columns side by side, each padded with zeros to whole steps; never without columns."""
    widths = [triton.cdiv(high - low, step) * step for low, high in ranges]
    padded = tensor.new_zeros(tensor.shape[0], max(sum(widths), step))
    at = 0
    for (low, high), width in zip(ranges, widths, strict=True):
        padded[:, at : at + high - low] = tensor[:, low:high]
        at += width
    return padded


def _readable(scores: Scores) -> Scores:
    """The same with x and y lying as the hardware's copies of tiles want them: rows begin at multiples of 16 bytes."""

    return replace(scores, x=_lying(scores.x), y=_lying(scores.y))


def _lying(tensor: Tensor) -> Tensor:
    whole = 16 // tensor.element_size()
    own = tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]   # rows that share no memory
    if own and tensor.stride(0) % whole == 0 and tensor.data_ptr() % 16 == 0:
        return tensor
    room = tensor.new_empty(tensor.shape[0], triton.cdiv(tensor.shape[1], whole) * whole)
    return room[:, : tensor.shape[1]].copy_(tensor)


def _descriptor(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns])


def _flags(scores: Scores, stats: _Stats | None = None, bias_sum: bool = False) -> dict[str, Any]:
    precision = "ieee"
    if scores.x.dtype == torch.float32:   # by tensor cores as torch would, or three times over for full precision
        precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
    flags: dict[str, Any] = {
        "SCALED": scores.left is not None, "BIAS": scores.bias is not None, "RESTART": not scores.tied,
        "PRECISION": precision,
    }  # fmt: skip
    if stats is not None:
        flags |= {"OVER_ROWS": stats.top_right is not None, "EVEN": stats.even is not None, "BIAS_SUM": bias_sum}
    return flags


def _tile(scores: Scores, half: _Tile) -> _Tile:
    return _SINGLE if scores.x.dtype == torch.float32 else half


def _on(x: Tensor) -> Any:
    """Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
