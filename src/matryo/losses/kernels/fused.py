"""The engine for GPUs: Triton computes log-sum-exps and pulls in one sweep a tile, matrix products do the rest.

Forward, one product of the full width gives the scores at every dim; each tile keeps a log-sum-exp a dim and row.
Backward, the scores are computed anew, for some columns at a time, and turned into pulls: for the gradient of block j,
the sum over dim j and all later ones. A product each then gives the gradients of x and y. Small dims go another way,
that of attention, where not even their pulls are written: most of what nesting would add to memory and traffic is
theirs, and least of the arithmetic.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from matryo.losses.kernels.fused_kernels import combine_kernel, lse_kernel, pull_kernel
from matryo.losses.kernels.fused_operands import Stats, Sweep, Tile, descriptor, flags, lying, pieces, readable
from matryo.losses.kernels.fused_products import Into, Products
from matryo.losses.kernels.fused_small import small_kernel
from matryo.losses.kernels.scores import Gradients, Pull, Scores
from matryo.nesting import Nesting

__all__ = ["gradients", "log_sum_exp"]

_PULLS = 0.9, 1 << 26   # bytes of pulls at a time: so many a score, but not less than these
_SMALL = 128   # dims up to this one are small
_PROGRAMS = 1024   # enough for every GPU there is

# As measured on an H200, for half precision. Scores with left and right need more registers.
_LSE = Tile(128, 128, 32, 64, warps=4, stages=3)
_PULL = {False: Tile(64, 128, 32, 64, warps=4, stages=4), True: Tile(64, 64, 32, 64, warps=4, stages=4)}
_SMALLS = {   # by the width of the vectors, and whether scores are scaled; rows are those of the tile that stays
    16: {False: Tile(128, 128, 0, 0, warps=4, stages=3), True: Tile(128, 64, 0, 0, warps=4, stages=3)},
    32: {False: Tile(128, 128, 0, 0, warps=4, stages=3), True: Tile(128, 64, 0, 0, warps=4, stages=3)},
    64: {False: Tile(64, 128, 0, 0, warps=4, stages=3), True: Tile(64, 128, 0, 0, warps=4, stages=3)},
    128: {False: Tile(64, 128, 0, 0, warps=4, stages=3), True: Tile(64, 64, 0, 0, warps=4, stages=3)},
}
_SMALL_Y = {128: Tile(64, 64, 0, 0, warps=4, stages=3)}   # where the gradient of y wants another
_SINGLE = Tile(64, 64, 16, 32, warps=4, stages=2)   # in full precision, which takes twice the room


def log_sum_exp(scores: Scores, over_rows: bool = False) -> tuple[Tensor, Tensor | None]:
    """See :mod:`matryo.losses.kernels.scores`."""
    scores, tile, dims = readable(scores), _tile(scores, _LSE), len(scores.nesting)
    down, across = pieces(scores.rows, tile.rows), pieces(scores.columns, tile.columns)
    by_row = scores.x.new_empty(dims, across, scores.rows, dtype=torch.float32)
    by_column = scores.x.new_empty(dims, down, scores.columns, dtype=torch.float32) if over_rows else None
    with _on(scores.x):
        lse_kernel[(down * across,)](
            *Sweep(scores, tile).arguments, scores.left, scores.right, scores.bias, by_row, by_column,
            MASKED=scores.columns % tile.columns != 0, OVER_ROWS=over_rows, **flags(scores), **tile.constants,
        )  # fmt: skip
        return _combined(by_row), None if by_column is None else _combined(by_column)


def _combined(logs: Tensor) -> Tensor:
    """The log-sum-exp of the tiles' own."""
    dims, parts, count = logs.shape
    out = logs.new_empty(dims, count)
    combine_kernel[(pieces(count, 128), dims)](logs, out, parts, count, BLOCK=128, num_warps=4)
    return out


def gradients(scores: Scores, pull: Pull, *, x: bool = True, y: bool = True, bias: bool = False) -> Gradients:
    """See :mod:`matryo.losses.kernels.scores`."""
    scores, new = readable(scores), scores.x.new_zeros
    dims, tied, small = len(scores.nesting), scores.tied, sum(dim <= _SMALL for dim in scores.nesting.dims)
    single: Any = {"dtype": torch.float32}
    into = Into(
        new(scores.x.shape, **single) if x else None,
        _unwritten(scores) if y else None,
        new(scores.columns, scores.nesting.dims[min(small, dims - 1)], **single) if y and small and tied else None,
        new(scores.columns if scores.tied else (dims, scores.columns), **single) if bias else None,
        None if scores.left is None else new(dims, scores.rows, **single),
        None if scores.left is None else new(dims, scores.columns, **single),
    )
    with _on(scores.x):
        stats = Stats.of(scores, pull)
        for level in range(small):
            _add_small(scores, stats, level, into)
        if small < dims:
            _add_large(*_from(scores, stats, into, small))
        if into.y is not None and into.y_shared is not None:
            into.y[:, : into.y_shared.shape[1]] = into.y_shared
    return Gradients(
        None if into.x is None else into.x.to(scores.x.dtype), into.y, into.bias, into.left, into.right
    )


def _unwritten(scores: Scores) -> Tensor:
    """Room for the gradient of y: zero where no dim reaches, the rest will be written."""
    room, used = torch.empty_like(scores.y), scores.starts[-1] + scores.nesting.dim
    room[:, used:] = 0
    return room


def _add_small(scores: Scores, stats: Stats, level: int, into: Into) -> None:
    """The gradients at one small dim."""
    dim, start = scores.nesting.dims[level], scores.starts[level]
    wide = max(16, 1 << (dim - 1).bit_length())
    sides = scores.x[:, :dim], lying(scores.y[:, start : start + dim])
    for of_y in (False, True):
        # The pulls are summed for the bias, and for left and right, where the tile that stays is the one summed for.
        wanted = into.y if of_y else into.x
        if wanted is None and into.left is None and not (of_y and into.bias is not None):
            continue
        tile = _SMALLS[wide][scores.left is not None]
        tile = _tile(scores, _SMALL_Y.get(wide, tile) if of_y else tile)
        mine, others = sides[::-1] if of_y else sides
        down, across = pieces(mine.shape[0], tile.rows), pieces(others.shape[0], tile.columns)
        splits = min(across, max(1, _PROGRAMS // down))
        gradient = into.y_shared if of_y else into.x
        if gradient is None:
            gradient = scores.x.new_zeros(mine.shape[0], dim, dtype=torch.float32)
        small_kernel[(down, splits)](
            descriptor(mine, tile.rows, wide), descriptor(others, tile.columns, wide), level, dim, scores.rows,
            scores.columns, pieces(across, splits), *stats.arguments, gradient, gradient.stride(0), into.bias,
            into.left, into.right, BM=tile.rows, BN=tile.columns, D=wide, OF_Y=of_y, num_warps=tile.warps,
            num_stages=tile.stages, MASKED=scores.columns % (tile.rows if of_y else tile.columns) != 0,
            **flags(scores, stats, bias_sum=of_y and into.bias is not None),
        )  # fmt: skip
        if of_y and into.y is not None and not scores.tied:
            into.y[:, start : start + dim] = gradient.to(into.y.dtype)


def _add_large(scores: Scores, stats: Stats, into: Into) -> None:
    """The gradients at all other dims, some columns at a time."""
    tile, dims = _tile(scores, _PULL[scores.left is not None]), len(scores.nesting)
    sweep, products = Sweep(scores, tile), Products(scores, into)
    room = max(int(_PULLS[0] * scores.rows * scores.columns), _PULLS[1])
    most = max(1, room // (dims * scores.rows * scores.x.element_size() * tile.columns)) * tile.columns
    width = pieces(pieces(scores.columns, pieces(scores.columns, most)), tile.columns) * tile.columns   # all alike
    pulls = scores.x.new_empty(dims, scores.rows, width)
    constants: dict[str, Any] = {
        "MASKED": scores.columns % tile.columns != 0, "HELD": dims - 1 if scores.tied and dims <= 4 else 0,
        **flags(scores, stats, bias_sum=into.bias is not None), **tile.constants,
    }  # fmt: skip
    for first in range(0, scores.columns, width):
        count = min(width, scores.columns - first)
        tiles = pieces(count, tile.columns)
        pull_kernel[(pieces(scores.rows, tile.rows) * tiles,)](
            *sweep.arguments, *stats.arguments, pulls, into.bias, into.left, into.right, first, width, tiles, dims,
            **constants,
        )  # fmt: skip
        products.add(pulls[:, :, :count], first)


def _from(scores: Scores, stats: Stats, into: Into, level: int) -> tuple[Scores, Stats, Into]:
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
    return readable(fewer), less, onto


def _tile(scores: Scores, half: Tile) -> Tile:
    return _SINGLE if scores.x.dtype == torch.float32 else half


def _on(x: Tensor) -> Any:
    """Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
