"""The engine for any device: plain torch on one tile of rows × columns at a time, so the scores never exist at once.

Forward: the products of a tile are cumulative sums over blocks, and each tile updates the log-sum-exps of its rows.
Backward: a tile recomputes its scores and their gradients at every dim. Block j occurs in the scores of dim j and of
all larger dims, so after a suffix sum of the score gradients over the dims, each block needs one matrix product for x
and one for y.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from matryo.losses.engines import wide
from matryo.losses.engines.contract import Gradients, ScoreGradient, Scores, slices, spans
from matryo.losses.engines.targets import scores_at

_TILE = 1 << 22   # scores (rows × columns × dims) per tile: 16 MiB in float32
_ROWS = 1024   # maximum rows per tile


def reductions(scores: Scores, target: Tensor, over_rows: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """See :mod:`matryo.losses.engines.contract`."""
    dims, new, dtype = len(scores.nesting), scores.x.new_full, wide(scores.x.dtype)
    row_lse = new((dims, scores.rows), -math.inf, dtype=dtype)
    column_lse = new((dims, scores.columns), -math.inf, dtype=dtype) if over_rows else None
    down, across = _tile(scores)
    for columns in slices(scores.columns, across):
        for rows in slices(scores.rows, down):
            tile = _part(scores, rows, columns)
            for i, product in enumerate(_products(tile)):
                score = _with_bias(tile, product, i)
                row_lse[i, rows] = torch.logaddexp(row_lse[i, rows], score.logsumexp(1))
                if column_lse is not None:
                    column_lse[i, columns] = torch.logaddexp(column_lse[i, columns], score.logsumexp(0))
    return row_lse, scores_at(scores, target), column_lse


def teaching(scores: Scores, row_lse: Tensor, teachers: tuple[int, ...]) -> Tensor:
    """See :mod:`matryo.losses.engines.contract`."""
    means = row_lse.new_zeros(len(teachers), scores.rows)
    down, across = _tile(scores)
    for columns in slices(scores.columns, across):
        for rows in slices(scores.rows, down):
            tile = _part(scores, rows, columns)
            shown = torch.stack([_with_bias(tile, product, i).clone() for i, product in enumerate(_products(tile))])
            for i, teacher in enumerate(teachers):
                shares = (shown[teacher] - row_lse[teacher, rows, None]).exp_()
                means[i, rows] += (shares * shown[i]).sum(1)
    return means


def gradients(scores: Scores, grad: ScoreGradient, *, x: bool = True, y: bool = True, bias: bool = False) -> Gradients:
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
            grads = tile.x.new_empty(dims, tile.rows, tile.columns, dtype=dtype)
            products = []
            for i, product in enumerate(_products(tile)):
                score = _with_bias(tile, product, i)
                _score_gradient(grad, i, score, rows, columns, out=grads[i])
                _subtract_shares(grad, i, score, rows, grads)
                if into_left is not None:
                    products.append(product)   # scaled, and so a tensor of its own
            for i, product in enumerate(products):   # after all larger dims have taught the smaller ones
                assert into_left is not None and into_right is not None
                log_scale_grad = product.mul_(grads[i])
                into_left[i, rows] += log_scale_grad.sum(1)
                into_right[i, columns] += log_scale_grad.sum(0)
            if into_bias is not None:
                into_bias[..., columns] += grads.sum((0, 1) if scores.tied else 1)
            _multiply(tile, grads, None if into_x is None else into_x[rows], part_y)
        if into_y is not None and part_y is not None:
            into_y[columns] = part_y
    return Gradients(None if into_x is None else into_x.to(scores.x.dtype), into_y, into_bias, into_left, into_right)


def _tile(scores: Scores) -> tuple[int, int]:
    """The rows and columns per tile."""
    down = max(1, min(scores.rows, _ROWS))
    return down, _TILE // (down * len(scores.nesting))


def _part(scores: Scores, rows: slice, columns: slice) -> Scores:
    """The given rows and columns of ``scores``, converted so that products accumulate in float32 (float64)."""
    dtype = wide(scores.x.dtype)
    fast = scores.x.is_cuda and scores.x.dtype == torch.bfloat16   # torch.mm accumulates bfloat16 products in float32
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
    """Yield the scores minus the bias, [rows, columns] per dim. A yielded tensor is valid until the next one."""
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


def _score_gradient(grad: ScoreGradient, i: int, score: Tensor, rows: slice, columns: slice, *, out: Tensor) -> None:
    """Write the gradient of the loss with respect to a tile's scores at dim i to ``out``, [rows, columns]."""
    torch.sub(score, grad.row_lse[i, rows, None], out=out).exp_().mul_(grad.row_coef[i, rows, None])
    if grad.column_lse is not None and grad.column_coef is not None:
        out += (score - grad.column_lse[i, columns]).exp_().mul_(grad.column_coef[i, columns])
    target = grad.target[rows, None]
    inside = (target >= columns.start) & (target < columns.stop)
    # Rows whose target is in another tile add 0. Boolean indexing would force a GPU synchronisation.
    target_coef = grad.target_coef[i, rows, None].where(inside, 0)
    out.scatter_add_(1, (target - columns.start).where(inside, 0), -target_coef)
    if grad.share_coef is not None and grad.share is not None:
        out.addr_(grad.share_coef[i, rows], grad.share[columns], alpha=-1)


def _subtract_shares(grad: ScoreGradient, i: int, score: Tensor, rows: slice, grads: Tensor) -> None:
    """Subtract the softmax of dim i from the score gradients of the smaller dims that it teaches."""
    if grad.teacher_coef is None or i not in grad.teachers:
        return
    shares = (score - grad.row_lse[i, rows, None]).exp_()
    for pupil, teacher in enumerate(grad.teachers):
        if teacher == i:
            grads[pupil].addcmul_(shares, grad.teacher_coef[pupil, rows, None], value=-1)


def _multiply(tile: Scores, grads: Tensor, into_x: Tensor | None, into_y: Tensor | None) -> None:
    """Add the products of a tile's score gradients with y and x to the gradients; ``grads`` is overwritten."""
    if tile.left is not None and tile.right is not None:
        grads.mul_(tile.left[:, :, None]).mul_(tile.right[:, None])
    if tile.tied:
        for i in reversed(range(len(grads) - 1)):
            grads[i] += grads[i + 1]
    for block_grad, (of_x, of_y) in zip(grads, spans(tile), strict=True):
        if into_x is not None:
            _add_product(into_x[:, of_x], block_grad, tile.y[:, of_y])
        if into_y is not None:
            _add_product(into_y[:, of_y], block_grad.T, tile.x[:, of_x])


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b, accumulated in the dtype of ``into``."""
    if b.dtype == into.dtype:
        into.addmm_(a, b)
    else:
        into += torch.mm(a.to(b.dtype), b, out_dtype=into.dtype)
