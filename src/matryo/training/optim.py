"""How the weights move: parameter groups, the learning rate at each step, and the average of the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from matryo.errors import RecipeError
from matryo.training.muon import Muon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.training.recipe.fields import Recipe

__all__ = ["Average", "learning_rate", "make_optimizer"]

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_MATRICES = ("weight", "proj", "projection")   # how the names of matrices end, in libraries as here


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser; normalisation layers get no weight decay, nor what else the recipe spares.

    A group's ``share`` is what the learning rate is multiplied by for it; those that are ``turned`` are Muon's.
    """
    options = recipe.optim
    spared = _spared(model, options.decay)
    trained = [p for p in model.parameters() if p.requires_grad]
    encoder = set() if options.encoder_share == 1 else {id(p) for p in model.encoder.parameters()}   # type: ignore[union-attr]
    turned = _turned(model, trained) if options.name == "muon" and not recipe.as_it_is else set()
    kinds: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for p in trained:
        kinds.setdefault((id(p) in encoder, id(p) in spared, id(p) in turned), []).append(p)
    groups = [
        {
            "params": kinds[inside, still, turns],
            "weight_decay": 0.0 if still else options.weight_decay,
            "share": options.encoder_share if inside else 1.0,
            "turned": turns,
        }
        for inside, still, turns in sorted(kinds)
    ]
    if options.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=options.lr)
    if options.name == "muon":
        return Muon(groups, lr=options.lr, betas=(options.momentum, options.beta2))
    if options.name == "adamw":
        return torch.optim.AdamW(groups, lr=options.lr, betas=(options.momentum, options.beta2), fused=True)
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov, fused=True)


def _spared(model: nn.Module, decay: str) -> set[int]:
    """The parameters that have no weight decay: those of norms, or all but the matrices of layers."""
    if decay == "matrices":
        return {id(p) for p in model.parameters()} - {id(p) for p in _matrices(model)}
    return {id(p) for module in model.modules() if isinstance(module, _NORMS) for p in module.parameters(recurse=False)}


def _turned(model: nn.Module, trained: list[nn.Parameter]) -> set[int]:
    """The matrices that Muon turns: those of layers, but no embeddings and no classifier, whose rows stand alone."""
    moving, head = {id(p) for p in trained}, {id(p) for p in getattr(model, "head", nn.Module()).parameters()}
    turned = {id(p) for p in _matrices(model) if p.dim() == 2 and id(p) in moving - head}
    if not turned:
        raise RecipeError(
            "optim.name = muon turns the matrices of layers",
            got="an encoder that trains none",
            cure="use --optim.name adamw, or train a transformer, more of it than finetune.unfreeze says",
        )
    return turned


def _matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of layers: no biases, norms and embeddings, nor a layer that is tied to an embedding."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    embeddings = {id(value) for table in tables for value in table.parameters(recurse=False)}
    for module in model.modules():
        if not isinstance(module, _NORMS):
            for name, value in module.named_parameters(recurse=False):
                if name.endswith(_MATRICES) and value.dim() > 1 and id(value) not in embeddings:
                    yield value


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int, batch: int) -> float:
    """The learning rate of global step ``step``: up to the peak in a line, then down to zero."""
    options = recipe.optim
    top = options.lr * (batch / options.lr_batch if options.lr_batch else 1)
    total = recipe.loop.steps or recipe.loop.epochs * steps_per_epoch
    peak = options.warmup or options.peak * steps_per_epoch
    if step < peak:
        return top * (step + 1) / (peak + 1)
    left = (total - step) / max(1, total - peak)
    return top * (left if options.schedule == "triangular" else 0.5 - 0.5 * math.cos(math.pi * left))


class Average:
    """An exponential moving average of a model's weights and statistics, kept beside it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move a little towards ``model``; young averages move faster, so that they forget the start."""
        decay = min(self.decay, (1 + step) / (10 + step))
        kept: list[Tensor] = []
        fresh: list[Tensor] = []
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                kept.append(self.state[name])
                fresh.append(value)
            else:
                self.state[name].copy_(value)
        torch._foreach_lerp_(kept, fresh, 1 - decay)
