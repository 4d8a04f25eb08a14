"""The engine for GPUs: Triton computes log-sum-exps and pulls in one sweep a tile, matrix products do the rest.

Forward, one product of the full width gives the scores at every dim; each tile keeps a log-sum-exp a dim and row.
Backward, the scores are computed anew, for some columns at a time, and turned into pulls: for the gradient of block j,
the sum over dim j and all later ones. A product each then gives the gradients of x and y. Small dims go another way,
that of attention, where not even their pulls are written: most of what nesting would add to memory and traffic is
theirs, and least of the arithmetic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from matryo.losses.engines.contract import Gradients, Pull, Scores
from matryo.losses.engines.triton.kernels import combine_kernel, lse_kernel, pull_kernel
from matryo.losses.engines.triton.launch import launch
from matryo.losses.engines.triton.operands import (
    Sweep,
    Tile,
    as_given,
    descriptor,
    flags,
    lying,
    pieces,
    readable,
    width_of,
)
from matryo.losses.engines.triton.products import Into, Products
from matryo.losses.engines.triton.rows import scores_at
from matryo.losses.engines.triton.small_dims import small_kernel
from matryo.losses.engines.triton.statistics import Stats
from matryo.losses.engines.triton.targets import Targets

__all__ = ["gradients", "reductions"]

_PULLS = 1.0, 1 << 26   # bytes of pulls at a time: so many a score, but not less than these
_SMALL = 128   # dims up to this one are small
_HELD = 4   # large dims whose pulls are in registers at the same time
_AGAIN = 1.1   # what a column costs that is swept again for other dims, which read the sums of later ones, too
_PROGRAMS = 1024   # enough for every GPU there is

# As measured on an H200, for half precision. Scores with left and right need more registers.
_LSE = Tile(128, 128, 32, 64, warps=4, stages=3)
_LSE_NEAR = Tile(128, 128, 32, 64, warps=4, stages=2, group=32, registers=168)   # three programs at a time
_PULL = {
    False: Tile(64, 128, 32, 64, warps=4, stages=4),
    True: Tile(64, 64, 32, 64, warps=4, stages=4, registers=168),
}
_SMALL_TILE = Tile(64, 128, 0, 0, warps=4, stages=3)   # rows are those of the tile that stays
_SMALL_NARROW = replace(_SMALL_TILE, registers=128)   # up to 32 columns: four programs at a time
_SMALL_WIDE = Tile(64, 64, 0, 0, warps=4, stages=3)   # for more than 64 columns, scaled or for the gradient of y
_SINGLE = Tile(64, 64, 16, 32, warps=4, stages=2)   # in full precision, which takes twice the room


def reductions(scores: Scores, target: Tensor, over_rows: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """See :mod:`matryo.losses.engines.contract`."""
    with torch.cuda.device_of(scores.x):   # Triton launches on the current device
        scores, dims = readable(scores), len(scores.nesting)
        full, tile = scores.x.dtype == torch.float32, _tile(scores, _LSE)
        down, across = pieces(scores.rows, tile.rows), pieces(scores.columns, tile.columns)
        parts = [scores.x.new_empty(dims, across, scores.rows, dtype=torch.float32)]
        if over_rows:
            parts.append(scores.x.new_empty(dims, down, scores.columns, dtype=torch.float32))
        found = [part.new_empty(dims, part.shape[2]) for part in parts]
        far, sweep = None if full else scores.x.new_zeros((), dtype=torch.int32), Sweep(scores, tile)
        for near, shape in ((True, tile if over_rows else _LSE_NEAR), (False, tile))[full:]:
            launch(
                lse_kernel, (down * across,), *sweep.arguments, scores.left, scores.right, scores.bias, parts[0],
                parts[1] if over_rows else None, far, MASKED=scores.columns % tile.columns != 0, OVER_ROWS=over_rows,
                NEAR=near, **flags(scores), **shape.constants,
            )  # fmt: skip
            for part, logs in zip(parts, found, strict=True):
                count = part.shape[2]
                launch(combine_kernel, (pieces(count, 32), dims), part, logs, far, part.shape[1], count, PARTS=16,
                       BLOCK=32, NEAR=near, num_warps=1)  # fmt: skip
        return found[0], scores_at(scores, target), found[1] if over_rows else None


def gradients(scores: Scores, pull: Pull, *, x: bool = True, y: bool = True, bias: bool = False) -> Gradients:
    """See :mod:`matryo.losses.engines.contract`."""
    with torch.cuda.device_of(scores.x):
        scores = readable(scores)
        into = _room(scores, x, y, bias)
        _add(scores, pull, into)
        return Gradients(
            None if into.x is None else into.x.to(scores.x.dtype),
            None if into.y is None else as_given(scores, into.y),
            into.bias, into.left, into.right,
        )  # fmt: skip


def _room(scores: Scores, x: bool, y: bool, bias: bool) -> Into:
    """For the gradients, none yet."""
    new, dims, small = scores.x.new_zeros, len(scores.nesting), _small(scores)
    single: Any = {"dtype": torch.float32}
    return Into(
        new(scores.x.shape, **single) if x else None,
        _unwritten(scores) if y else None,
        new(scores.columns, scores.nesting.dims[small - 1], **single) if y and small and scores.tied else None,
        new(scores.columns if scores.tied else (dims, scores.columns), **single) if bias else None,
        None if scores.left is None else new(dims, scores.rows, **single),
        None if scores.left is None else new(dims, scores.columns, **single),
    )


def _small(scores: Scores) -> int:
    """How many dims are small."""
    return sum(dim <= _SMALL for dim in scores.nesting.dims)


def _add(scores: Scores, pull: Pull, into: Into) -> None:
    """The gradients at all dims."""
    dims, small, stats = len(scores.nesting), _small(scores), Stats.of(scores, pull)
    targets = Targets(scores, pull, stats, into, small)
    for level in range(small):
        _add_small(scores, stats, targets, level, into)
    if small and scores.tied:
        targets.add(range(small), into.y_small)
    if small < dims:
        _add_large(scores, stats, targets, into, small)
    if into.y is not None and into.y_small is not None:
        first = into.y[:, : into.y_small.shape[1]]
        first.add_(into.y_small) if small < dims else first.copy_(into.y_small)


def _unwritten(scores: Scores) -> Tensor:
    """Room for the gradient of y: zero where no dim reaches, the rest will be written."""
    room, used = torch.empty_like(scores.y), scores.starts[-1] + scores.nesting.dim
    if used < room.shape[1]:
        room[:, used:] = 0
    return room


def _add_small(scores: Scores, stats: Stats, targets: Targets, level: int, into: Into) -> None:
    """The gradients at one small dim; where dims are tied, less what their targets take."""
    dim, start = scores.nesting.dims[level], scores.starts[level]
    wide, scaled, gradients = width_of(dim), scores.left is not None, [into.x, into.y_small]
    sides = scores.x[:, :dim], lying(scores.y[:, start : start + dim])
    for of_y in (False, True):
        # The pulls are summed for the bias, and for left and right, where the tile that stays is the one summed for.
        wanted = into.y if of_y else into.x
        if wanted is None and into.left is None and not (of_y and into.bias is not None):
            continue
        much, little = wide > 64 and (of_y or scaled), wide <= 32 and not (of_y and scaled)
        tile = _tile(scores, _SMALL_WIDE if much else _SMALL_NARROW if little else _SMALL_TILE)
        mine, others = sides[::-1] if of_y else sides
        down, across = pieces(mine.shape[0], tile.rows), pieces(others.shape[0], tile.columns)
        splits = min(across, max(1, _PROGRAMS // down))
        gradient = gradients[of_y]
        if gradient is None:
            gradient = gradients[of_y] = scores.x.new_zeros(mine.shape[0], dim, dtype=torch.float32)
        launch(
            small_kernel, (down, splits), descriptor(mine, tile.rows, wide), descriptor(others, tile.columns, wide),
            level, dim, scores.rows, scores.columns, pieces(across, splits), *stats.arguments, gradient,
            gradient.stride(0), into.bias, into.left, into.right, BM=tile.rows, BN=tile.columns, D=wide, OF_Y=of_y,
            MASKED=scores.columns % (tile.rows if of_y else tile.columns) != 0, num_warps=tile.warps,
            num_stages=tile.stages, maxnreg=tile.registers, **flags(scores),
            **stats.flags(of_y and into.bias is not None),
        )  # fmt: skip
    if not scores.tied:
        targets.add(range(level, level + 1), gradients[1])
        if into.y is not None and gradients[1] is not None:
            into.y[:, start : start + dim] = gradients[1]


def _add_large(scores: Scores, stats: Stats, targets: Targets, into: Into, lowest: int) -> None:
    """The gradients at the dims from the ``lowest`` on, some columns at a time."""
    tile, dims = _tile(scores, _PULL[scores.left is not None]), len(scores.nesting) - lowest
    room = max(int(_PULLS[0] * scores.rows * scores.columns), _PULLS[1])
    most = max(1, room // (dims * scores.rows * scores.x.element_size() * tile.columns)) * tile.columns
    width = pieces(pieces(scores.columns, pieces(scores.columns, most)), tile.columns) * tile.columns   # all alike
    pulls = scores.x.new_empty(dims, scores.rows, width)
    sweeps, products = _sweeps(scores, stats, into, lowest, tile, pulls), Products(scores, into, pulls, lowest)
    for number, first in enumerate(range(0, scores.columns, width)):
        tiles = pieces(min(width, scores.columns - first), tile.columns)
        for operands, (level, count), constants in sweeps:
            grid = (pieces(scores.rows, tile.rows) * tiles,)
            launch(pull_kernel, grid, *operands, first, width, tiles, level, count, **constants)
        targets.write(pulls, first)
        products.add(number)


def _sweeps(
    scores: Scores, stats: Stats, into: Into, lowest: int, tile: Tile, pulls: Tensor
) -> list[tuple[tuple[Any, ...], tuple[int, int], dict[str, Any]]]:
    """What the pulls of some columns are computed with, the largest dims first: operands, (lowest, dims), constants.

    Dims that share their columns are taken four at a time, as many as registers hold. A sweep for smaller ones goes
    no further than they reach, which for most nestings is a small part of the way. Where it is not, one sweep goes
    all the way up, and down again.
    """
    dims, reach = len(scores.nesting), scores.nesting.dims
    groups = [(max(lowest, end - _HELD), end) for end in range(dims, lowest, -_HELD)]
    again = _AGAIN * sum(reach[end - 1] for _, end in groups[1:])
    down = scores.tied and reach[-1] - reach[lowest] < again
    if down or not scores.tied:
        groups = [(lowest, dims)]
    constants: dict[str, Any] = {
        "MASKED": scores.columns % tile.columns != 0, **flags(scores), **stats.flags(into.bias is not None),
        **tile.constants,
    }  # fmt: skip
    sweeps = []
    for begin, end in groups:
        sweep = Sweep(scores, tile, slice(begin, end))
        operands = *sweep.arguments, *stats.arguments, pulls[begin - lowest :], into.bias, into.left, into.right
        held = 0 if down or not scores.tied else end - begin - 1
        kind = {"HELD": held, "LATER": end < dims, "DOWN": down}
        sweeps.append((operands, (begin, end - begin), {**constants, **kind}))
    return sweeps


def _tile(scores: Scores, half: Tile) -> Tile:
    return _SINGLE if scores.x.dtype == torch.float32 else half
