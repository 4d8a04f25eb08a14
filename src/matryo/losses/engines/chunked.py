"""The engine for any device: plain torch, a tile of rows × columns at a time, so that no array of all scores exists.

Forward, the products of a tile are running sums over the blocks, and each tile adds to the log-sum-exps of its rows.
Backward, a tile is computed anew and keeps its pulls at every dim. Block j is pulled by dim j and by all later ones:
with the suffix sums of the pulls, it takes one product a block for x and one for y.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from matryo.losses.engines import wide
from matryo.losses.engines.contract import Gradients, slices, spans
from matryo.losses.engines.targets import scores_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.losses.engines.contract import Pull, Scores

__all__ = ["gradients", "reductions"]

_TILE = 1 << 22   # scores × dims at a time: 16 MiB in float32
_ROWS = 1024   # of a tile, at most


def reductions(scores: Scores, target: Tensor, over_rows: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """See :mod:`matryo.losses.engines.contract`."""
    dims, new, dtype = len(scores.nesting), scores.x.new_full, wide(scores.x.dtype)
    by_row = new((dims, scores.rows), -math.inf, dtype=dtype)
    by_column = new((dims, scores.columns), -math.inf, dtype=dtype) if over_rows else None
    down, across = _tile(scores)
    for columns in slices(scores.columns, across):
        for rows in slices(scores.rows, down):
            tile = _part(scores, rows, columns)
            for i, product in enumerate(_products(tile)):
                score = _with_bias(tile, product, i)
                by_row[i, rows] = torch.logaddexp(by_row[i, rows], score.logsumexp(1))
                if by_column is not None:
                    by_column[i, columns] = torch.logaddexp(by_column[i, columns], score.logsumexp(0))
    return by_row, scores_at(scores, target), by_column


def gradients(scores: Scores, pull: Pull, *, x: bool = True, y: bool = True, bias: bool = False) -> Gradients:
    """See :mod:`matryo.losses.engines.contract`."""
    dims, new, dtype = len(scores.nesting), scores.x.new_zeros, wide(scores.x.dtype)
    into_x = new(scores.x.shape, dtype=dtype) if x else None
    into_y = torch.zeros_like(scores.y) if y else None
    into_bias = new(scores.columns if scores.tied else (dims, scores.columns), dtype=dtype) if bias else None
    into_left = new(dims, scores.rows, dtype=dtype) if scores.left is not None else None
    into_right = new(dims, scores.columns, dtype=dtype) if scores.left is not None else None
    down, across = _tile(scores)
    for columns in slices(scores.columns, across):
        part_y = new(scores.y[columns].shape, dtype=dtype) if y else None
        for rows in slices(scores.rows, down):
            tile = _part(scores, rows, columns)
            pulls = tile.x.new_empty(dims, tile.rows, tile.columns, dtype=dtype)
            for i, product in enumerate(_products(tile)):
                _pull_at(pull, i, _with_bias(tile, product, i), rows, columns, out=pulls[i])
                if into_bias is not None:
                    into_bias[(columns,) if scores.tied else (i, columns)] += pulls[i].sum(0)
                if into_left is not None and into_right is not None:
                    by_logarithm = pulls[i] * product
                    into_left[i, rows] += by_logarithm.sum(1)
                    into_right[i, columns] += by_logarithm.sum(0)
            _multiply(tile, pulls, None if into_x is None else into_x[rows], part_y)
        if into_y is not None and part_y is not None:
            into_y[columns] = part_y
    return Gradients(None if into_x is None else into_x.to(scores.x.dtype), into_y, into_bias, into_left, into_right)


def _tile(scores: Scores) -> tuple[int, int]:
    """Rows and columns at a time."""
    down = max(1, min(scores.rows, _ROWS))
    return down, _TILE // (down * len(scores.nesting))


def _part(scores: Scores, rows: slice, columns: slice) -> Scores:
    """The scores of some rows and columns, in a dtype whose products are summed without loss."""
    dtype = wide(scores.x.dtype)
    fast = scores.x.is_cuda and scores.x.dtype == torch.bfloat16   # its products can be summed in float32
    x, y = scores.x[rows], scores.y[columns]
    return replace(
        scores,
        x=x if fast else x.to(dtype),
        y=y if fast else y.to(dtype),
        bias=None if scores.bias is None else scores.bias[..., columns].to(dtype),
        left=None if scores.left is None else scores.left[:, rows],
        right=None if scores.right is None else scores.right[:, columns],
    )


def _products(tile: Scores) -> Iterator[Tensor]:
    """The scores less the bias, dim after dim; the next one may overwrite the last."""
    total = tile.x.new_zeros(tile.rows, tile.columns, dtype=wide(tile.x.dtype))
    for i, (of_x, of_y) in enumerate(spans(tile)):
        if not tile.tied:
            total.zero_()
        _add_product(total, tile.x[:, of_x], tile.y[:, of_y].T)
        if tile.left is None or tile.right is None:
            yield total
        else:
            yield total * tile.left[i, :, None] * tile.right[i]


def _with_bias(tile: Scores, product: Tensor, i: int) -> Tensor:
    if tile.bias is None:
        return product
    return product + (tile.bias if tile.tied else tile.bias[i])


def _pull_at(pull: Pull, i: int, score: Tensor, rows: slice, columns: slice, *, out: Tensor) -> None:
    """How much each score of a tile pulls at dim i."""
    torch.sub(score, pull.by_row[i, rows, None], out=out).exp_().mul_(pull.soft[i, rows, None])
    if pull.by_column is not None and pull.soft_right is not None:
        out += (score - pull.by_column[i, columns]).exp_().mul_(pull.soft_right[i, columns])
    target = pull.target[rows, None]
    inside = (target >= columns.start) & (target < columns.stop)
    # The target of another tile takes nothing from any column here. No mask picks rows: a GPU would have to wait.
    hard = pull.hard[i, rows, None].where(inside, 0)
    out.scatter_add_(1, (target - columns.start).where(inside, 0), -hard)
    if pull.even is not None and pull.share is not None:
        out.addr_(pull.even[i, rows], pull.share[columns], alpha=-1)


def _multiply(tile: Scores, pulls: Tensor, into_x: Tensor | None, into_y: Tensor | None) -> None:
    """Add what the pulls of a tile give to the gradients; the pulls are overwritten."""
    if tile.left is not None and tile.right is not None:
        pulls.mul_(tile.left[:, :, None]).mul_(tile.right[:, None])
    if tile.tied:
        for i in reversed(range(len(pulls) - 1)):
            pulls[i] += pulls[i + 1]
    for pulled, (of_x, of_y) in zip(pulls, spans(tile), strict=True):
        if into_x is not None:
            _add_product(into_x[:, of_x], pulled, tile.y[:, of_y])
        if into_y is not None:
            _add_product(into_y[:, of_y], pulled.T, tile.x[:, of_x])


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b, summed in the dtype of ``into``."""
    if b.dtype == into.dtype:
        into.addmm_(a, b)
    else:
        into += torch.mm(a.to(b.dtype), b, out_dtype=into.dtype)
