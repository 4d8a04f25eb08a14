"""An adaptor learned with torch, on request: one rectified layer that corrects a rotation, as Matryoshka-Adaptor does.

Its output is ``z + max(0, z @ A + a) @ B`` for rotated vectors z, so it starts as PCA with B = 0. It is not orthogonal,
so it changes full-dim scores too; it serves single dims (:meth:`matryo.Retrofit.at`), never a whole index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from matryo.progress import trange
from matryo.retrofit.correction import Correction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Doubles, Floats

_STEPS, _BATCH, _RATE = 400, 256, 1e-3
_HIDDEN, _MOST_HIDDEN = 2, 1024   # features per column, and at most
_NEAREST = 10   # neighbours in a batch, whose similarities count once more
_RECONSTRUCTION = 0.1   # the weight of the distance to the rotated vector
_SHARPNESS = 10.0   # of the ranking loss


def learned_correction(
    sample: Floats, axes: Doubles, dims: Sequence[int], *, labelled: tuple[Floats, Array] | None = None,
    pairs: tuple[Floats, Floats] | None = None, seed: int = 0, progress: bool = True,
) -> Correction:  # fmt: skip
    """Return the correction of vectors rotated by ``axes``, by gradient steps on the losses of Matryoshka-Adaptor.

    At every dim, the similarities in a batch should be those by all columns: of all pairs, and again of the nearest.
    ``labelled`` are vectors with classes, ``pairs`` queries with a relevant row each: both add a ranking loss.
    """
    random = torch.Generator().manual_seed(seed)
    columns = len(axes)
    layer = _Adaptor(columns, min(_HIDDEN * columns, _MOST_HIDDEN), random)
    optimizer = torch.optim.Adam(layer.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    turn = axes.astype(np.float32)
    rows = torch.from_numpy(sample @ turn)
    signal = _signal(labelled, pairs, turn)
    for _ in trange(_STEPS, desc="retrofit: adapting", delay=2, disable=not progress):
        chosen = rows[torch.randperm(len(rows), generator=random)[:_BATCH]]
        adapted = layer(chosen)
        loss = _similarities(adapted, chosen, [*dims, columns])
        loss = loss + _RECONSTRUCTION * (adapted - chosen).abs().sum(1).mean() / columns**0.5
        if signal is not None:
            loss = loss + signal(layer, dims, random)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return Correction(layer.inner.weight.T.numpy().copy(), layer.inner.bias.numpy().copy(),
                          layer.outer.weight.T.numpy().copy())  # fmt: skip


class _Adaptor(nn.Module):
    def __init__(self, columns: int, hidden: int, random: torch.Generator) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(columns, hidden), nn.Linear(hidden, columns, bias=False)
        with torch.no_grad():
            self.inner.weight.normal_(0, columns**-0.5, generator=random)
            self.inner.bias.zero_()
            self.outer.weight.zero_()

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = rows + self.outer(torch.relu(self.inner(rows)))
        return out


def _similarities(adapted: Tensor, rows: Tensor, dims: Sequence[int]) -> Tensor:
    """The mean over dims of |similarity by a prefix − similarity by all columns|: of all pairs, and of the nearest."""
    whole = normalize(rows)
    truth = whole @ whole.T
    near = truth.fill_diagonal_(-2).topk(min(_NEAREST, len(rows) - 1), dim=1).indices
    truth = truth.fill_diagonal_(1)
    losses = []
    for m in dims:
        prefix = normalize(adapted[:, :m])
        apart = (prefix @ prefix.T - truth).abs()
        losses.append(apart.mean() + apart.gather(1, near).mean())
    return torch.stack(losses).mean()


def _signal(labelled: tuple[Floats, Array] | None, pairs: tuple[Floats, Floats] | None, turn: Floats) -> Any:
    """The ranking loss of labels or pairs, or None."""
    if pairs is None and labelled is None:
        return None
    if pairs is not None:
        left, right = (torch.from_numpy(side @ turn) for side in pairs)
        names = torch.arange(len(left))
    else:
        assert labelled is not None
        left = right = torch.from_numpy(labelled[0] @ turn)
        names = torch.from_numpy(np.asarray(labelled[1], np.int64))

    def ranking(layer: nn.Module, dims: Sequence[int], random: torch.Generator) -> Tensor:
        chosen = torch.randperm(len(left), generator=random)[:_BATCH]
        a = layer(left[chosen])
        b = a if pairs is None else layer(right[chosen])
        same = names[chosen][:, None] == names[chosen][None]
        right_one = same & ~torch.eye(len(chosen), dtype=torch.bool) if pairs is None else same
        losses = [_ranked(normalize(a[:, :m]) @ normalize(b[:, :m]).T, right_one, ~same) for m in dims]
        return torch.stack(losses).mean()

    return ranking


def _ranked(scores: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """The mean of log(1 + exp(wrong − right)) over each query's weakest right row and all of its wrong ones."""
    weakest = scores.masked_fill(~right, torch.inf).amin(1)
    has = torch.isfinite(weakest)
    apart = softplus(_SHARPNESS * (scores[has] - weakest[has, None])) / _SHARPNESS
    return (apart * wrong[has]).sum() / wrong[has].sum().clamp(min=1)
