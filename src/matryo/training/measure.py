"""The figures of a model on its test splits, at every dim: accuracy, hit rates, masked words or distillation loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from matryo.data.dataset import PairSplit
from matryo.nesting import truncate
from matryo.training.batches.masking import HELD_OUT, Masks, check_windows, to_windows
from matryo.training.batches.open import ordered_batches, ordered_inputs
from matryo.training.objectives.base import hits_by_dim
from matryo.training.objectives.classify import Classifier
from matryo.training.objectives.masked import MaskedModel
from matryo.training.objectives.pairs import DistilledModel, PairModel
from matryo.training.step import autocast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

    Figures = dict[str, dict[int, float]]

_BATCH = 256
_DEPTHS = (1, 10)


def measure(
    model: NestedModel, split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None,
    progress: str = "",
) -> Figures:  # fmt: skip
    """The figures of ``model`` on ``split``, one value per dim; empty if the split does not suit the objective.

    ``progress`` is the label of a progress bar; empty shows none.
    """
    model.eval()
    options = recipe, device, tokenizer, progress
    with torch.no_grad():
        if isinstance(split, PairSplit):
            return hit_rates(model, split, *options)
        if isinstance(model, PairModel):
            return label_hit_rates(model, split, *options)
        if isinstance(model, Classifier):
            return {"top1": head_accuracy(model, split, *options)}
        if isinstance(model, MaskedModel) and tokenizer is not None:
            return masked_words(model, split, recipe, device, tokenizer, progress)
        if isinstance(model, DistilledModel) and model.taught_by:
            return {"distil_loss": _divergence(model, split, *options)}
        return {}


@torch.no_grad()
def rehearse(
    model: NestedModel, split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None
) -> None:
    """Read and embed two items of ``split``, to raise before training the errors that :func:`measure` would raise."""
    model.eval()
    if isinstance(model, MaskedModel) and tokenizer is not None:
        check_windows(split, tokenizer, recipe.text.length)
        return
    for side in (split.queries, split.candidates) if isinstance(split, PairSplit) else (split,):
        for inputs in ordered_inputs(side, recipe, device, batch=2, workers=0, tokenizer=tokenizer):
            model.embed(inputs)
            break


@torch.no_grad()
def head_accuracy(
    model: Classifier, split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None = None,
    progress: str = "",
) -> dict[int, float]:  # fmt: skip
    """Top-1 accuracy of the head at every dim, on the items of ``split`` whose class is known."""
    correct = torch.zeros(len(model.nesting), dtype=torch.int64, device=device)
    model.eval()
    for inputs, labels in ordered_batches(split, recipe, device, tokenizer=tokenizer, progress=progress):
        with autocast(recipe, device):
            z = model.embed(inputs, flip=recipe.data.test_flip and isinstance(inputs, torch.Tensor))
        correct += (model.head.logits(z).argmax(-1) == labels.to(device)).sum(1)
    return _by_dim(model, correct, max(1, int((split.labels >= 0).sum())))


@torch.no_grad()
def masked_words(
    model: MaskedModel, split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer, progress: str = ""
) -> Figures:
    """The share of masked words predicted correctly, and the mean loss; the masks depend only on the tokenizer."""
    windows = torch.from_numpy(to_windows(split, tokenizer, recipe.text.length))
    masks = Masks(tokenizer, recipe.objective.mask, 0, device)
    correct, loss = torch.zeros(2, len(model.nesting), dtype=torch.float64, device=device).unbind()
    total = 0
    for low in tqdm(range(0, len(windows), _BATCH), desc=progress, unit="batch", delay=2, disable=not progress):
        ids = windows[low : low + _BATCH].to(device).long()
        inputs, target = masks(ids, torch.arange(low, low + len(ids), device=device), HELD_OUT)
        with autocast(recipe, device):
            z, losses = model(inputs, target)
        count = int((target >= 0).sum())
        correct += hits_by_dim(z, model.words, target.flatten(), model.nesting, model.bias)
        loss += losses.double() * count
        total += count
    return {"masked_top1": _by_dim(model, correct, max(1, total)), "masked_loss": _by_dim(model, loss, max(1, total))}


def _divergence(
    model: DistilledModel, split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None, progress: str
) -> dict[int, float]:
    """The mean distillation loss over the batches of the split, in order."""
    total, count = torch.zeros(len(model.nesting), dtype=torch.float64, device=device), 0
    for inputs, labels in ordered_batches(split, recipe, device, batch=_BATCH, tokenizer=tokenizer, progress=progress):
        if len(labels) > 1:
            with autocast(recipe, device):
                total += model(inputs, labels)[1].double() * len(labels)
            count += len(labels)
    return _by_dim(model, total, max(1, count))


def hit_rates(
    model: NestedModel, split: PairSplit, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None,
    progress: str = "",
) -> Figures:  # fmt: skip
    """hit@k: the share of queries with one of their candidates among the first k; and in reverse direction."""
    sides = [torch.cat(list(_embedded(model, side, recipe, device, tokenizer, progress))) for side in
             (split.queries, split.candidates)]  # fmt: skip
    pairs = torch.from_numpy(split.pairs[split.grades > 0]).to(device)
    figures: Figures = {}
    for direction, (a, b) in (("", (0, 1)), ("reverse ", (1, 0))):
        for dim in model.nesting.dims:
            shares = _hit_rates(truncate(sides[a], dim), truncate(sides[b], dim), pairs[:, [a, b]])
            for depth, share in zip(_DEPTHS, shares, strict=True):
                figures.setdefault(f"{direction}hit@{depth}", {})[dim] = share
    return figures


def label_hit_rates(
    model: NestedModel, split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None,
    progress: str = "",
) -> Figures:  # fmt: skip
    """hit@k of labelled items: the share of items with another item of their label among the first k.

    Each item is a query for all others, unless it is the only one of its class. Without labels there are no figures.
    """
    labels = torch.from_numpy(split.labels).to(device)
    _, index, counts = labels.unique(return_inverse=True, return_counts=True)
    queries = torch.nonzero((labels >= 0) & (counts[index] > 1)).flatten()
    if not len(queries):
        return {}
    whole = torch.cat(list(_embedded(model, split, recipe, device, tokenizer, progress)))
    figures: Figures = {}
    for dim in model.nesting.dims:
        vectors, hits = truncate(whole, dim), _no_hits(device)
        for rows in queries.split(_BATCH):
            cosines = vectors[rows] @ vectors.T
            cosines[torch.arange(len(rows)), rows] = -torch.inf   # the query itself
            nearest = cosines.topk(min(max(_DEPTHS), len(labels) - 1), 1).indices
            hits += _hits(labels[nearest] == labels[rows, None])
        for depth, count in zip(_DEPTHS, hits.tolist(), strict=True):
            figures.setdefault(f"hit@{depth}", {})[dim] = count / len(queries)
    return figures


def _hit_rates(queries: Tensor, candidates: Tensor, pairs: Tensor) -> list[float]:
    """By depth: the share of the queries with a pair that find one of their candidates at that depth."""
    asking = pairs[:, 0].unique()
    hits = _no_hits(queries.device)
    positives = pairs[:, 0] * len(candidates) + pairs[:, 1]
    for rows in asking.split(_BATCH):
        nearest = (queries[rows] @ candidates.T).topk(min(max(_DEPTHS), len(candidates)), 1).indices
        hits += _hits(torch.isin(rows[:, None] * len(candidates) + nearest, positives))
    return [count / max(1, len(asking)) for count in hits.tolist()]


def _no_hits(device: torch.device) -> Tensor:
    return torch.zeros(len(_DEPTHS), dtype=torch.int64, device=device)


def _hits(correct: Tensor) -> Tensor:
    """By depth: the number of rows with a correct item among the first."""
    return torch.stack([correct[:, :depth].any(1).sum() for depth in _DEPTHS])


def _embedded(
    model: NestedModel, split: Any, recipe: Recipe, device: torch.device, tokenizer: Tokenizer | None, progress: str
) -> Iterator[Tensor]:
    for inputs in ordered_inputs(split, recipe, device, batch=_BATCH, tokenizer=tokenizer, progress=progress):
        with autocast(recipe, device):
            yield model.embed(inputs, flip=recipe.data.test_flip and isinstance(inputs, torch.Tensor))


def _by_dim(model: NestedModel, sums: Tensor, count: int) -> dict[int, float]:
    return {dim: total / count for dim, total in zip(model.nesting.dims, sums.tolist(), strict=True)}
