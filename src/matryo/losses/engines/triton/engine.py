"""The GPU engine: Triton kernels compute log-sum-exps and score gradients, matrix products compute the rest.

Forward: one product over all columns yields the scores at every dim; each tile writes one log-sum-exp per dim and row.
Backward: the scores are recomputed for a piece of the columns at a time and turned into score gradients. Block j needs
their sum over dim j and all larger dims. One product per block then gives the gradient of x, and one that of y. Small
dims use a fused kernel as in FlashAttention that never writes score gradients: small dims add most of the memory
traffic and least of the arithmetic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from matryo.losses.engines.contract import Gradients, ScoreGradient, Scores
from matryo.losses.engines.triton.kernels import combine_kernel, gradient_kernel, lse_kernel
from matryo.losses.engines.triton.launch import launch
from matryo.losses.engines.triton.operands import (
    PrefixOperands,
    Tile,
    aligned,
    aligned_rows,
    ceil_div,
    descriptor,
    flags,
    padded_width,
    unaligned,
)
from matryo.losses.engines.triton.products import Buffers, Products
from matryo.losses.engines.triton.rows import scores_at
from matryo.losses.engines.triton.small_dims import small_kernel
from matryo.losses.engines.triton.statistics import Stats
from matryo.losses.engines.triton.targets import Targets

_GRAD_BYTES = 1.0, 1 << 26   # bytes of score gradients at a time: per score, and the minimum
_SMALL_DIM = 128   # dims up to this one use small_kernel
_HELD_DIMS = 4   # large dims whose score gradients fit in registers together
_RECOMPUTE_COST = 1.1   # relative cost of a recomputed column, which also reads the suffix sums
_PROGRAMS = 1024   # enough to fill any current GPU

# Tuned on an H200 for half precision. Scores with left and right need more registers.
_LSE = Tile(128, 128, 32, 64, warps=4, stages=3)
_LSE_UNSHIFTED = Tile(128, 128, 32, 64, warps=4, stages=2, group=32, registers=168)   # 3 programs per SM
_GRADIENT = {
    False: Tile(64, 128, 32, 64, warps=4, stages=4),
    True: Tile(64, 64, 32, 64, warps=4, stages=4, registers=168),
}
_SMALL_TILE = Tile(64, 128, 0, 0, warps=4, stages=3)   # rows of the resident tile
_SMALL_NARROW = replace(_SMALL_TILE, registers=128)   # up to 32 columns: 4 programs per SM
_SMALL_WIDE = Tile(64, 64, 0, 0, warps=4, stages=3)   # over 64 columns, if scaled or for the gradient of y
_SINGLE = Tile(64, 64, 16, 32, warps=4, stages=2)   # float32 takes twice the shared memory


def reductions(scores: Scores, target: Tensor, over_rows: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """See :mod:`matryo.losses.engines.contract`."""
    with torch.cuda.device_of(scores.x):   # Triton launches on the current device
        scores, dims = aligned(scores), len(scores.nesting)
        single, tile = scores.x.dtype == torch.float32, _tile(scores, _LSE)
        down, across = ceil_div(scores.rows, tile.rows), ceil_div(scores.columns, tile.columns)
        parts = [scores.x.new_empty(dims, across, scores.rows, dtype=torch.float32)]
        if over_rows:
            parts.append(scores.x.new_empty(dims, down, scores.columns, dtype=torch.float32))
        lse = [part.new_empty(dims, part.shape[2]) for part in parts]
        out_of_range = None if single else scores.x.new_zeros((), dtype=torch.int32)
        prefix = PrefixOperands(scores, tile)
        for unshifted, shape in ((True, tile if over_rows else _LSE_UNSHIFTED), (False, tile))[single:]:
            launch(
                lse_kernel, (down * across,), *prefix.arguments, scores.left, scores.right, scores.bias, parts[0],
                parts[1] if over_rows else None, out_of_range, MASKED=scores.columns % tile.columns != 0,
                OVER_ROWS=over_rows, UNSHIFTED=unshifted, **flags(scores), **shape.constants,
            )  # fmt: skip
            for part, out in zip(parts, lse, strict=True):
                count = part.shape[2]
                launch(combine_kernel, (ceil_div(count, 32), dims), part, out, out_of_range, part.shape[1], count,
                       PARTS=16, BLOCK=32, UNSHIFTED=unshifted, num_warps=1)  # fmt: skip
        return lse[0], scores_at(scores, target), lse[1] if over_rows else None


def gradients(scores: Scores, grad: ScoreGradient, *, x: bool = True, y: bool = True, bias: bool = False) -> Gradients:
    """See :mod:`matryo.losses.engines.contract`."""
    with torch.cuda.device_of(scores.x):
        scores = aligned(scores)
        buffers = _allocate(scores, x, y, bias)
        _accumulate(scores, grad, buffers)
        return Gradients(
            None if buffers.x is None else buffers.x.to(scores.x.dtype),
            None if buffers.y is None else unaligned(scores, buffers.y),
            buffers.bias, buffers.left, buffers.right,
        )  # fmt: skip


def _allocate(scores: Scores, x: bool, y: bool, bias: bool) -> Buffers:
    """Allocate the gradients."""
    new, dims, small = scores.x.new_zeros, len(scores.nesting), _small(scores)
    as_float32: Any = {"dtype": torch.float32}
    return Buffers(
        new(scores.x.shape, **as_float32) if x else None,
        _empty_y_gradient(scores) if y else None,
        new(scores.columns, scores.nesting.dims[small - 1], **as_float32) if y and small and scores.tied else None,
        new(scores.columns if scores.tied else (dims, scores.columns), **as_float32) if bias else None,
        None if scores.left is None else new(dims, scores.rows, **as_float32),
        None if scores.left is None else new(dims, scores.columns, **as_float32),
    )


def _small(scores: Scores) -> int:
    """The number of small dims."""
    return sum(dim <= _SMALL_DIM for dim in scores.nesting.dims)


def _accumulate(scores: Scores, grad: ScoreGradient, buffers: Buffers) -> None:
    """Add the gradients of all dims to ``buffers``."""
    dims, small, stats = len(scores.nesting), _small(scores), Stats.of(scores, grad)
    targets = Targets(scores, grad, stats, buffers, small)
    for level in range(small):
        _accumulate_small(scores, stats, targets, level, buffers)
    if small and scores.tied:
        targets.add(range(small), buffers.y_small)
    if small < dims:
        _accumulate_large(scores, stats, targets, buffers, small)
    if buffers.y is not None and buffers.y_small is not None:
        first = buffers.y[:, : buffers.y_small.shape[1]]
        first.add_(buffers.y_small) if small < dims else first.copy_(buffers.y_small)


def _empty_y_gradient(scores: Scores) -> Tensor:
    """Allocate the gradient of y, with zeros in the columns that no dim uses; the others are overwritten later."""
    room, used = torch.empty_like(scores.y), scores.starts[-1] + scores.nesting.dim
    if used < room.shape[1]:
        room[:, used:] = 0
    return room


def _accumulate_small(scores: Scores, stats: Stats, targets: Targets, level: int, buffers: Buffers) -> None:
    """Add the gradients at one small dim; for tied dims, without the corrections at the targets."""
    dim, start = scores.nesting.dims[level], scores.starts[level]
    padded, scaled, gradients = padded_width(dim), scores.left is not None, [buffers.x, buffers.y_small]
    sides = scores.x[:, :dim], aligned_rows(scores.y[:, start : start + dim])
    for of_y in (False, True):
        # The bias and the scales get their gradients from the pass whose resident side they belong to.
        wanted = buffers.y if of_y else buffers.x
        if wanted is None and buffers.left is None and not (of_y and buffers.bias is not None):
            continue
        large_tile, narrow = padded > 64 and (of_y or scaled), padded <= 32 and not (of_y and scaled)
        tile = _tile(scores, _SMALL_WIDE if large_tile else _SMALL_NARROW if narrow else _SMALL_TILE)
        resident, streamed = sides[::-1] if of_y else sides
        down, across = ceil_div(resident.shape[0], tile.rows), ceil_div(streamed.shape[0], tile.columns)
        splits = min(across, max(1, _PROGRAMS // down))
        gradient = gradients[of_y]
        if gradient is None:
            gradient = gradients[of_y] = scores.x.new_zeros(resident.shape[0], dim, dtype=torch.float32)
        launch(
            small_kernel, (down, splits),
            descriptor(resident, tile.rows, padded), descriptor(streamed, tile.columns, padded),
            level, dim, scores.rows, scores.columns, ceil_div(across, splits), *stats.arguments, gradient,
            gradient.stride(0), buffers.bias, buffers.left, buffers.right,
            BM=tile.rows, BN=tile.columns, D=padded, OF_Y=of_y,
            MASKED=scores.columns % (tile.rows if of_y else tile.columns) != 0, num_warps=tile.warps,
            num_stages=tile.stages, maxnreg=tile.registers, **flags(scores),
            **stats.flags(of_y and buffers.bias is not None),
        )  # fmt: skip
    if not scores.tied:
        targets.add(range(level, level + 1), gradients[1])
        if buffers.y is not None and gradients[1] is not None:
            buffers.y[:, start : start + dim] = gradients[1]


def _accumulate_large(scores: Scores, stats: Stats, targets: Targets, buffers: Buffers, lowest: int) -> None:
    """Add the gradients at the dims from index ``lowest`` on, one piece of columns at a time."""
    tile, dims = _tile(scores, _GRADIENT[scores.left is not None]), len(scores.nesting) - lowest
    budget = max(int(_GRAD_BYTES[0] * scores.rows * scores.columns), _GRAD_BYTES[1])
    widest = max(1, budget // (dims * scores.rows * scores.x.element_size() * tile.columns)) * tile.columns
    pieces = ceil_div(scores.columns, widest)
    width = ceil_div(ceil_div(scores.columns, pieces), tile.columns) * tile.columns   # pieces of equal width
    grads = scores.x.new_empty(dims, scores.rows, width)
    passes, products = _passes(scores, stats, buffers, lowest, tile, grads), Products(scores, buffers, grads, lowest)
    for number, first in enumerate(range(0, scores.columns, width)):
        tiles = ceil_div(min(width, scores.columns - first), tile.columns)
        for operands, (level, count), constants in passes:
            grid = (ceil_div(scores.rows, tile.rows) * tiles,)
            launch(gradient_kernel, grid, *operands, first, width, tiles, level, count, **constants)
        targets.write(grads, first)
        products.add(number)


def _passes(
    scores: Scores, stats: Stats, buffers: Buffers, lowest: int, tile: Tile, grads: Tensor
) -> list[tuple[tuple[Any, ...], tuple[int, int], dict[str, Any]]]:
    """The launches for the score gradients of a piece, largest dims first: (operands, (lowest, dims), constants).

    Tied dims are processed in groups of at most four, because the registers hold no more. The pass of a group ends at
    the group's largest dim, which is a small part of all columns in most nestings. If the recomputed columns would
    cost more than one backward loop, a single pass with DOWN is used instead. Separate dims need one pass.
    """
    dims, reach = len(scores.nesting), scores.nesting.dims
    groups = [(max(lowest, end - _HELD_DIMS), end) for end in range(dims, lowest, -_HELD_DIMS)]
    recompute = _RECOMPUTE_COST * sum(reach[end - 1] for _, end in groups[1:])
    down = scores.tied and reach[-1] - reach[lowest] < recompute
    if down or not scores.tied:
        groups = [(lowest, dims)]
    constants: dict[str, Any] = {
        "MASKED": scores.columns % tile.columns != 0, **flags(scores), **stats.flags(buffers.bias is not None),
        **tile.constants,
    }  # fmt: skip
    passes = []
    for begin, end in groups:
        prefix = PrefixOperands(scores, tile, slice(begin, end))
        sums = buffers.bias, buffers.left, buffers.right
        operands = *prefix.arguments, *stats.arguments, grads[begin - lowest :], *sums
        held = 0 if down or not scores.tied else end - begin - 1
        kind = {"HELD": held, "LATER": end < dims, "DOWN": down}
        passes.append((operands, (begin, end - begin), {**constants, **kind}))
    return passes


def _tile(scores: Scores, half: Tile) -> Tile:
    return _SINGLE if scores.x.dtype == torch.float32 else half
