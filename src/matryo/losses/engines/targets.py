"""Scores computed directly in [dims, rows]: the score of each row's target, and weighted sums over the columns."""

from __future__ import annotations

import torch
from torch import Tensor

from matryo.losses.engines import wide
from matryo.losses.engines.contract import Scores, slices, spans

_NUMBERS = 1 << 24   # vector elements processed at a time


def scores_at(scores: Scores, target: Tensor) -> Tensor:
    """Return s[i, b, target[b]], [dims, rows]; 0 where the target is −1."""
    counted, target = target >= 0, target.clamp_min(0)
    out = scores.x.new_empty(len(scores.nesting), scores.rows, dtype=wide(scores.x.dtype))
    if not scores.columns:
        return out.zero_()
    for rows in slices(scores.rows, _NUMBERS // scores.y.shape[1]):
        out[:, rows] = _dots(scores, scores.x[rows], scores.y[target[rows]])
    if scores.left is not None and scores.right is not None:
        out.mul_(scores.left).mul_(scores.right[:, target])
    if scores.bias is not None:
        out.add_(scores.bias[..., target])
    return out.mul_(counted)


def scores_shared(scores: Scores, share: Tensor) -> Tensor:
    """Return Σ_v share[v] · s[i, b, v], [dims, rows], for scores without ``left`` and ``right``."""
    dtype, width = wide(scores.x.dtype), scores.y.shape[1]
    weighted = scores.y.new_zeros(1, width, dtype=dtype)
    for columns in slices(scores.columns, _NUMBERS // width):
        weighted += share[columns] @ scores.y[columns].to(dtype)
    out = scores.x.new_empty(len(scores.nesting), scores.rows, dtype=dtype)
    for rows in slices(scores.rows, _NUMBERS // width):
        out[:, rows] = _dots(scores, scores.x[rows], weighted)
    if scores.bias is not None:
        out.add_((scores.bias.to(dtype) @ share).view(-1, 1))
    return out


def _dots(scores: Scores, x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each row of x with its row of y at every dim, [dims, rows]."""
    dims, dtype = scores.nesting.dims, wide(x.dtype)
    if scores.tied:   # one cumulative sum covers all dims with few kernel launches
        sums = (x[:, : dims[-1]].to(dtype) * y[:, : dims[-1]]).cumsum(1)
        return torch.stack([sums[:, dim - 1] for dim in dims])
    return torch.stack([(x[:, of_x].to(dtype) * y[:, of_y]).sum(1) for of_x, of_y in spans(scores)])
