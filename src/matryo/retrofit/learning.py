"""A rotation learned with torch, on request: every prefix should order the rows as all columns do, or as labels say.

The map is the PCA rotation followed by a learned orthogonal matrix of the first columns, those up to the largest dim
that is served. It stays orthogonal at each step (``torch.nn.utils.parametrizations.orthogonal``), and starts as the
identity, so the rung starts where PCA ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, normalize, softmax
from torch.nn.utils.parametrizations import orthogonal

from matryo.progress import trange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Doubles, Floats
    from matryo.retrofit.held_out import Metric

_STEPS, _BATCH, _RATE = 150, 384, 0.01
_TEMPERATURE, _TINY = 0.05, 1e-30
_MOST_COLUMNS = 128   # of the learned matrix: beyond, little is left to gain over PCA


def learned_axes(
    sample: Floats, axes: Doubles, dims: Sequence[int], *, labelled: tuple[Floats, Array] | None = None,
    pairs: tuple[Floats, Floats] | None = None, metric: Metric = "cosine", seed: int = 0, progress: bool = True,
) -> Doubles:  # fmt: skip
    """Return ``axes`` with their first columns rotated among themselves, by gradient steps on prefix losses.

    Without labels and pairs, the loss at a dim is the divergence of the similarities of a batch from those by all
    columns. ``labelled`` are vectors with classes (a contrastive loss), ``pairs`` queries with a relevant row each (a
    ranking loss); the loss without labels is added, as a prior.
    """
    learned = [m for m in dims if m <= _MOST_COLUMNS]
    if not learned:
        return axes
    width = learned[-1]
    random = torch.Generator().manual_seed(seed)
    layer = nn.Linear(width, width, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(width))
    orthogonal(layer, "weight", orthogonal_map="cayley")
    optimizer = torch.optim.Adam(layer.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    start = axes[:, :width].astype(np.float32)
    whole = torch.from_numpy(np.ascontiguousarray(sample))
    unit = 1.0 if metric == "cosine" else max(float(whole.var(0).sum()), _TINY)   # of a difference of two scores
    first = torch.from_numpy(sample @ start)
    signal = _signal(labelled, pairs, start)
    for _ in trange(_STEPS, desc="retrofit: learning", delay=2, disable=not progress):
        chosen = torch.randperm(len(first), generator=random)[:_BATCH]
        loss = _similarities(layer(first[chosen]), whole[chosen], learned, metric, unit)
        if signal is not None:
            loss = loss + signal(layer, learned, random)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    turn = layer.weight.detach().numpy().astype(np.float64)
    left, _, right = np.linalg.svd(turn)   # exactly orthogonal in float64
    made = axes.copy()
    made[:, :width] = axes[:, :width] @ (left @ right).T
    return made


def _similarities(turned: Tensor, whole: Tensor, dims: Sequence[int], metric: Metric, unit: float) -> Tensor:
    """The mean over dims of the divergence of neighbour probabilities by a prefix from those by all columns."""
    alone = torch.eye(len(whole), dtype=torch.bool)
    truth = softmax((_scores(whole, metric) / (_TEMPERATURE * unit)).masked_fill(alone, -1e4), 1)
    losses = []
    for m in dims:
        scores = _scores(turned[:, :m], metric) / (_TEMPERATURE * unit)
        losses.append(kl_div(log_softmax(scores.masked_fill(alone, -1e4), 1), truth, reduction="batchmean"))
    return torch.stack(losses).mean()


def _scores(rows: Tensor, metric: Metric) -> Tensor:
    """The scores of rows as queries, in which constants of a query do not count."""
    if metric == "cosine":
        rows = normalize(rows)
    products = rows @ rows.T
    return products - rows.square().sum(1) / 2 if metric == "l2" else products


def _signal(labelled: tuple[Floats, Array] | None, pairs: tuple[Floats, Floats] | None, start: Floats) -> Any:
    """The loss of labels or pairs, or None."""
    if pairs is not None:
        left, right = (torch.from_numpy(side @ start) for side in pairs)

        def ranking(layer: nn.Module, dims: Sequence[int], random: torch.Generator) -> Tensor:
            chosen = torch.randperm(len(left), generator=random)[:_BATCH]
            a, b, right_one = layer(left[chosen]), layer(right[chosen]), torch.arange(len(chosen))
            scores = (normalize(a[:, :m]) @ normalize(b[:, :m]).T for m in dims)
            return torch.stack([cross_entropy(each / _TEMPERATURE, right_one) for each in scores]).mean()

        return ranking
    if labelled is not None:
        vectors, labels = torch.from_numpy(labelled[0] @ start), torch.from_numpy(np.asarray(labelled[1], np.int64))

        def contrastive(layer: nn.Module, dims: Sequence[int], random: torch.Generator) -> Tensor:
            chosen = torch.randperm(len(vectors), generator=random)[:_BATCH]
            turned, own = layer(vectors[chosen]), labels[chosen]
            alone = torch.eye(len(own), dtype=torch.bool)
            same = (own[:, None] == own[None]) & ~alone
            counts = same.sum(1).clamp(min=1)
            losses = []
            for m in dims:
                prefix = normalize(turned[:, :m])
                found = log_softmax((prefix @ prefix.T / _TEMPERATURE).masked_fill(alone, -1e4), 1)
                losses.append(-(found * same).sum(1).div(counts).mean())
            return torch.stack(losses).mean()

        return contrastive
    return None
