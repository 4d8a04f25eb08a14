"""The optimiser and its parameter groups, the learning-rate schedule, and the moving average of the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from matryo.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from matryo.training.recipe.fields import Recipe

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_MATRICES = ("weight", "proj", "projection")   # how parameter names of matrices end, here and in other libraries


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser. Normalisation layers get no weight decay; optim.decay may exclude more parameters.

    The learning rate of a group is multiplied by its ``share``. Groups with ``muon`` set are updated by Muon.
    """
    options = recipe.optim
    undecayed = _without_decay(model, options.decay)
    trained = [p for p in model.parameters() if p.requires_grad]
    encoder = set() if options.encoder_share == 1 else {id(p) for p in model.encoder.parameters()}   # type: ignore[union-attr]
    by_muon = _muon_matrices(model, trained) if options.name == "muon" and recipe.trains else set()
    kinds: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for p in trained:
        kinds.setdefault((id(p) in encoder, id(p) in undecayed, id(p) in by_muon), []).append(p)
    groups = [
        {
            "params": kinds[in_encoder, no_decay, muon],
            "weight_decay": 0.0 if no_decay else options.weight_decay,
            "share": options.encoder_share if in_encoder else 1.0,
            "muon": muon,
        }
        for in_encoder, no_decay, muon in sorted(kinds)
    ]
    if options.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=options.lr)
    if options.name == "muon":
        return MuonAdamW(groups, lr=options.lr, betas=(options.momentum, options.beta2))
    if options.name == "adamw":
        return torch.optim.AdamW(groups, lr=options.lr, betas=(options.momentum, options.beta2), fused=True)
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov, fused=True)


class MuonAdamW(torch.optim.Optimizer):
    """torch's Muon for the parameter groups with ``muon`` set and AdamW for the others, with one state dict.

    Muon's step is scaled to the length of AdamW's (Liu et al., 2025), so that one learning rate suits both.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "muon": False})
        self._parts: dict[bool, torch.optim.Optimizer] = {}
        if matrices := self._groups(muon=True):
            self._parts[True] = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw")
        if others := self._groups(muon=False):
            self._parts[False] = torch.optim.AdamW(others, lr=lr, betas=betas, fused=True)
        self._share_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict()`` returned."""
        super().load_state_dict(state_dict)
        self._share_state()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts.values():
            part.step()
        return loss

    def _groups(self, *, muon: bool) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group["muon"] is muon]

    def _share_state(self) -> None:
        for muon, part in self._parts.items():
            part.param_groups, part.state = self._groups(muon=muon), self.state


def _without_decay(model: nn.Module, decay: str) -> set[int]:
    """The ids of the parameters without weight decay: those of norms, or all but the matrices of layers."""
    if decay == "matrices":
        return {id(p) for p in model.parameters()} - {id(p) for p in _matrices(model)}
    return {id(p) for module in model.modules() if isinstance(module, _NORMS) for p in module.parameters(recurse=False)}


def _muon_matrices(model: nn.Module, trained: list[nn.Parameter]) -> set[int]:
    """The ids of the layers' matrices; embeddings and classifiers are excluded, as their rows are independent."""
    trained_ids, head = {id(p) for p in trained}, {id(p) for p in getattr(model, "head", nn.Module()).parameters()}
    chosen = {id(p) for p in _matrices(model) if p.dim() == 2 and id(p) in trained_ids - head}
    if not chosen:
        raise RecipeError(
            "optim.name = muon needs layers with weight matrices to train",
            got="an encoder that trains none",
            cure="use --optim.name adamw, or train a transformer with more layers unfrozen (finetune.unfreeze)",
        )
    return chosen


def _matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of layers: no biases, norms, embeddings, or layers tied to an embedding."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    embeddings = {id(value) for table in tables for value in table.parameters(recurse=False)}
    for module in model.modules():
        if not isinstance(module, _NORMS):
            for name, value in module.named_parameters(recurse=False):
                if name.endswith(_MATRICES) and value.dim() > 1 and id(value) not in embeddings:
                    yield value


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int, batch: int) -> float:
    """The learning rate at global step ``step``: linear warm-up to the peak, then down to zero."""
    options = recipe.optim
    top = options.lr * (batch / options.lr_batch if options.lr_batch else 1)
    total = recipe.loop.steps or recipe.loop.epochs * steps_per_epoch
    peak = options.warmup or options.peak * steps_per_epoch
    if step < peak:
        return top * (step + 1) / (peak + 1)
    left = (total - step) / max(1, total - peak)
    return top * (left if options.schedule == "triangular" else 0.5 - 0.5 * math.cos(math.pi * left))


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average (EMA) of the parameters and buffers of ``model``.

    The decay of update n = 1, 2, … is min(decay, n / (n + 9)), so that the average forgets the initial weights.
    """

    def update(averaged: Any, current: Any, _: Any) -> None:
        if averaged[0].is_floating_point():
            count = int(average.n_averaged)   # on the CPU: reading it does not wait for the GPU
            torch._foreach_lerp_(averaged, current, 1 - min(decay, count / (9 + count)))
        else:   # counters, such as the batches that a norm has seen
            torch._foreach_copy_(averaged, current)

    average = AveragedModel(model, multi_avg_fn=update, use_buffers=True)
    average.n_averaged.fill_(1)   # the copy of the initial weights; from 0, torch would copy again at the first update
    return average
