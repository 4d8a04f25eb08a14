"""After training: an affine map of z that keeps every logit but improves cosines, and heads averaged over dims.

A lower-triangular matrix T maps the first m columns of z to the first m columns, for every m. If the head W at dim m
becomes W T⁻¹, no logit changes. Cosines do, because a head ignores where the origin of z is and how long its axes are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from matryo.encoders import Projected, sharing
from matryo.training.measure import Measured
from matryo.training.objectives.classify import Classifier
from matryo.training.unreadable import readable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.recipe.fields import Recipe
    from matryo.training.run.folder import Run

_SHRINK = 0.5   # chosen on a tenth of the training images of Tiny-ImageNet; 0.1 to 0.9 differ by less than 0.5 points
_ITEMS = 100_000   # items that are encoded, evenly spread over the split: 49 per dimension of a ResNet50


@dataclass(frozen=True)
class Moments:
    """The mean of vectors, and their covariance within classes, in float64."""

    mean: Tensor
    within: Tensor

    @classmethod
    def of(cls, batches: Iterable[tuple[Tensor, Tensor]], classes: int) -> Moments:
        """The moments of (vectors [n, d], labels [n])."""
        sums, squares = torch.zeros(0), torch.zeros(0)
        for vectors, labels in batches:
            z, own = vectors.double(), labels.to(vectors.device)
            if not len(sums):
                sums, counts = z.new_zeros(classes, z.shape[1]), z.new_zeros(classes)
                squares = z.new_zeros(z.shape[1], z.shape[1])
            sums.index_add_(0, own, z)
            counts += torch.bincount(own, minlength=classes)
            squares += z.T @ z
        means = sums / counts.clamp(min=1)[:, None]
        return cls(sums.sum(0) / counts.sum(), (squares - (means * counts[:, None]).T @ means) / counts.sum())

    def map(self, kind: str, shrink: float = _SHRINK) -> tuple[Tensor, Tensor]:
        """The lower-triangular weight [d, d] and the bias [d] of a map; ``centre`` only subtracts the mean.

        ``within`` also makes (1 − shrink) · covariance within classes + shrink · mean variance · I the identity.
        """
        size = len(self.mean)
        weight = torch.eye(size, dtype=self.mean.dtype, device=self.mean.device)
        variance = self.within.diagonal().mean()
        if kind == "within" and variance > 0:
            shrunk = (1 - shrink) * self.within + shrink * variance * weight
            weight = torch.linalg.solve_triangular(torch.linalg.cholesky(shrunk), weight, upper=False)
        return weight, -weight @ self.mean


@torch.no_grad()
def whitened(model: Classifier, weight: Tensor, bias: Tensor) -> Classifier:
    """``model`` with the map weight [m, m], bias [m] after its encoder, and a head that undoes it."""
    encoder, head = Projected.mapped(model.encoder, weight, bias), copy.deepcopy(model.head)
    for dim in head.nesting.dims:
        own, start = head.weight_at(dim), head.bias_at(dim)
        assert start is not None   # a rule for recipes
        own.copy_(torch.linalg.solve_triangular(weight[:dim, :dim], own.to(weight), upper=False, left=False))
        start -= (own.to(bias) @ bias[:dim]).to(start)
    return sharing(model, encoder=encoder, head=head)


@torch.no_grad()
def blended(model: Classifier, share: float) -> Classifier:
    """``model`` with each head replaced: (1 − share) · its own + share · the mean of those at its dim and below."""
    old, head = model.head, copy.deepcopy(model.head)
    for number, dim in enumerate(dims := old.nesting.dims):
        smaller = dims[: number + 1]
        mean = sum((_padded(old.weight_at(m), dim) for m in smaller), torch.zeros(())) / len(smaller)
        head.weight_at(dim).lerp_(mean, share)
        if old.bias is not None:
            head.bias_at(dim).lerp_(old.bias[: number + 1].mean(0), share)   # type: ignore[union-attr]
    return sharing(model, head=head)


@torch.no_grad()
def finish_model(run: Run, split: Any, tokenizer: Tokenizer | None, *, progress: bool) -> None:
    """Replace the model of ``run``, trained and saved in its checkpoint, by the one that the recipe finishes with."""
    recipe, model = run.recipe, run.model
    if not run.group.first or not isinstance(model, Classifier) or not finishes(recipe):
        return
    model.load_state_dict(run.weights())
    run.average = None
    if recipe.head.blend:
        model = blended(model, recipe.head.blend)
    if recipe.encoder.whiten != "none":
        rows = np.linspace(0, len(split) - 1, min(len(split), _ITEMS)).astype(np.int64)
        some, _ = readable(split.subset(rows), recipe.data.train, sample=False, progress=progress)
        label = "whiten" if progress else ""
        measured = Measured(model.eval(), recipe, run.group.device, tokenizer, label)
        moments = Moments.of(measured.embedded(some, batch=512), model.head.classes)
        model = whitened(model, *moments.map(recipe.encoder.whiten))
    run.model = model


def finishes(recipe: Recipe) -> bool:
    """Whether the recipe changes the model after training."""
    return recipe.encoder.whiten != "none" or recipe.head.blend > 0


def _padded(weight: Tensor, dim: int) -> Tensor:
    return torch.nn.functional.pad(weight, (0, dim - weight.shape[1]))
