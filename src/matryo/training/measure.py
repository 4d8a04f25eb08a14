"""The figures of a model on its test splits, at every dim: accuracy, hit rates, masked words or distillation loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from matryo.data.dataset import PairSplit
from matryo.nesting import truncate
from matryo.progress import tqdm
from matryo.training.batches.masking import HELD_OUT, Masks, check_windows, to_windows
from matryo.training.batches.open import ordered_batches
from matryo.training.objectives.base import hits_by_dim
from matryo.training.objectives.classify import Classifier
from matryo.training.objectives.depths import after_layers
from matryo.training.objectives.masked import MaskedModel
from matryo.training.objectives.pairs import DistilledModel, PairModel
from matryo.training.recipe.against_data import sides_of
from matryo.training.step import autocast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

    Figures = dict[str, dict[int, float]]

_BATCH = 256
_DEPTHS = (1, 10)


@dataclass(frozen=True)
class Measured:
    """A model, and what is needed to read its test splits."""

    model: NestedModel
    recipe: Recipe
    device: torch.device
    tokenizer: Tokenizer | None
    progress: str = ""
    """The label of a progress bar; empty shows none."""

    def batches(self, split: Any, batch: int = _BATCH) -> Iterator[tuple[Any, Tensor]]:
        """Iterate over (inputs, labels) of ``split``."""
        read = partial(ordered_batches, tokenizer=self.tokenizer, progress=self.progress)
        return read(split, self.recipe, self.device, batch=batch)

    def embedded(self, split: Any, batch: int = _BATCH) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (vectors, labels) of ``split``."""
        for inputs, labels in self.batches(split, batch):
            with autocast(self.recipe, self.device):
                z = self.model.embed(inputs, flip=self.recipe.data.test_flip)
            yield z, labels

    def vectors(self, split: Any) -> Tensor:
        """All vectors of ``split``, [n, d]."""
        return torch.cat([z for z, _ in self.embedded(split)])

    def sums(self) -> Tensor:
        """A zero per dim, float64, to add to."""
        return torch.zeros(len(self.model.nesting), dtype=torch.float64, device=self.device)

    def by_dim(self, sums: Tensor, count: int) -> dict[int, float]:
        """The mean at each dim."""
        return {dim: total / max(1, count) for dim, total in zip(self.model.nesting.dims, sums.tolist(), strict=True)}


@torch.no_grad()
def measure(measured: Measured, split: Any) -> Figures:
    """The figures of a model on ``split``, one value per dim; empty if the split does not suit the objective.

    Those after fewer layers follow, as "top1 after layer 2".
    """
    figures = _measure(measured, split)
    for depth in measured.model.depths:
        shallow = replace(measured, model=after_layers(measured.model, depth.layers))
        for name, by_dim in _measure(shallow, split).items():
            kept = {dim: value for dim, value in by_dim.items() if dim in depth.nesting.dims}
            figures[f"{name} after layer {depth.layers}"] = kept
    return figures


def _measure(measured: Measured, split: Any) -> Figures:
    model = measured.model.eval()
    if isinstance(split, PairSplit):
        return _hit_rates(measured, split)
    if isinstance(model, PairModel):
        return _label_hit_rates(measured, split)
    if isinstance(model, Classifier):
        return {"top1": _head_accuracy(measured, model, split)}
    if isinstance(model, MaskedModel):
        return _masked_words(measured, model, split)
    if isinstance(model, DistilledModel) and model.taught_by:
        return {"distil_loss": _divergence(measured, split)}
    return {}


@torch.no_grad()
def rehearse(measured: Measured, split: Any) -> None:
    """Read and embed two items of ``split``, to raise before training the errors that :func:`measure` would raise."""
    model = measured.model.eval()
    if isinstance(model, MaskedModel) and measured.tokenizer is not None:
        check_windows(split, measured.tokenizer, measured.recipe.text.length)
        return
    for side in sides_of(split):
        for inputs, _ in measured.batches(side, batch=2):
            model.embed(inputs)
            break


def _head_accuracy(measured: Measured, model: Classifier, split: Any) -> dict[int, float]:
    """Top-1 accuracy of the head at every dim, on the items of ``split`` whose class is known."""
    correct = measured.sums()
    for z, labels in measured.embedded(split, batch=512):
        correct += (model.head.logits(z).argmax(-1) == labels.to(measured.device)).sum(1)
    return measured.by_dim(correct, int((split.labels >= 0).sum()))


def _masked_words(measured: Measured, model: MaskedModel, split: Any) -> Figures:
    """The share of masked words predicted correctly, and the mean loss; the masks depend only on the tokenizer."""
    recipe, device, tokenizer, progress = measured.recipe, measured.device, measured.tokenizer, measured.progress
    assert tokenizer is not None
    windows = torch.from_numpy(to_windows(split, tokenizer, recipe.text.length))
    masks = Masks(tokenizer, recipe.objective.mask, 0, device)
    correct, loss, total = measured.sums(), measured.sums(), 0
    for low in tqdm(range(0, len(windows), _BATCH), desc=progress, unit="batch", delay=2, disable=not progress):
        ids = windows[low : low + _BATCH].to(device).long()
        inputs, target = masks(ids, torch.arange(low, low + len(ids), device=device), HELD_OUT)
        with autocast(recipe, device):
            z, losses = model(inputs, target)
        count = int((target >= 0).sum())
        correct += hits_by_dim(z, model.words, target.flatten(), model.nesting, model.bias)
        loss += losses.double() * count
        total += count
    return {"masked_top1": measured.by_dim(correct, total), "masked_loss": measured.by_dim(loss, total)}


def _divergence(measured: Measured, split: Any) -> dict[int, float]:
    """The mean distillation loss over the batches of the split, in order."""
    total, count = measured.sums(), 0
    for inputs, labels in measured.batches(split):
        if len(labels) > 1:
            with autocast(measured.recipe, measured.device):
                total += measured.model(inputs, labels)[1].double() * len(labels)
            count += len(labels)
    return measured.by_dim(total, count)


def _hit_rates(measured: Measured, split: PairSplit) -> Figures:
    """hit@k: the share of queries with one of their candidates among the first k; and in reverse direction."""
    sides = [measured.vectors(side) for side in sides_of(split)]
    pairs = torch.from_numpy(split.pairs[split.grades > 0]).to(measured.device)
    figures: Figures = {}
    for direction, (a, b) in (("", (0, 1)), ("reverse ", (1, 0))):
        queries = pairs[:, a].unique()
        positives = pairs[:, a] * len(sides[b]) + pairs[:, b]
        for dim in measured.model.nesting.dims:
            found = _nearest(truncate(sides[a], dim), truncate(sides[b], dim), queries)
            matches = (torch.isin(rows[:, None] * len(sides[b]) + nearest, positives) for rows, nearest in found)
            _add_shares(figures, direction, dim, matches, len(queries))
    return figures


def _label_hit_rates(measured: Measured, split: Any) -> Figures:
    """hit@k of labelled items: the share of items with another item of their label among the first k.

    Each item is a query for all others, unless it is the only one of its class. Without labels there are no figures.
    """
    labels = torch.from_numpy(split.labels).to(measured.device)
    _, index, counts = labels.unique(return_inverse=True, return_counts=True)
    queries = torch.nonzero((labels >= 0) & (counts[index] > 1)).flatten()
    figures: Figures = {}
    if len(queries):
        whole = measured.vectors(split)
        for dim in measured.model.nesting.dims:
            vectors = truncate(whole, dim)
            found = _nearest(vectors, None, queries)
            matches = (labels[nearest] == labels[rows, None] for rows, nearest in found)
            _add_shares(figures, "", dim, matches, len(queries))
    return figures


def _nearest(vectors: Tensor, candidates: Tensor | None, queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of ``queries`` (rows of ``vectors``) with their nearest candidates; None: all vectors but the query's."""
    among = vectors if candidates is None else candidates
    depth = min(max(_DEPTHS), len(among) - (candidates is None))
    for rows in queries.split(_BATCH):
        cosines = vectors[rows] @ among.T
        if candidates is None:
            cosines[torch.arange(len(rows)), rows] = -torch.inf
        yield rows, cosines.topk(depth, 1).indices


def _add_shares(figures: Figures, direction: str, dim: int, matches: Iterable[Tensor], queries: int) -> None:
    """Add hit@k at ``dim`` for every depth k; ``matches`` [rows, nearest] come in batches of the ``queries``."""
    batches = list(matches)
    for depth in _DEPTHS:
        hits = sum(int(match[:, :depth].any(1).sum()) for match in batches)
        figures.setdefault(f"{direction}hit@{depth}", {})[dim] = hits / max(1, queries)
