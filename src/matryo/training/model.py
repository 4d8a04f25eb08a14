"""NestedModel: an encoder with its nested head, as a recipe describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from matryo.encoders import build_encoder
from matryo.errors import RecipeError
from matryo.heads import NestedLinear

if TYPE_CHECKING:
    from matryo.training.recipe import Recipe

__all__ = ["NestedModel", "build_model", "freeze_before"]


class NestedModel(nn.Module):
    """Images to embeddings, and to the loss at every dim."""

    def __init__(self, encoder: nn.Module, head: NestedLinear, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.label_smoothing = encoder, head, label_smoothing

    def forward(self, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings [batch, d] and the unweighted loss at each dim [dims]."""
        z = self.encoder(images)
        return z, self.head.losses(z, target, label_smoothing=self.label_smoothing)

    def embed(self, images: Tensor, *, flip: bool = False) -> Tensor:
        """The columns of z that the nesting trains; with ``flip``, averaged with the mirror image's.

        The average, not the sum: summing would sharpen every softmax on top of it.
        """
        z: Tensor = self.encoder(images)
        if flip:
            z = (z + self.encoder(images.flip(-1))) / 2
        return z[:, : self.head.nesting.dim].float()


def build_model(recipe: Recipe, classes: int) -> NestedModel:
    """A freshly initialised model; the seed decides the weights and nothing else is disturbed."""
    options = recipe.encoder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.loop.seed)
        encoder = build_encoder(
            options.name,
            dim=options.dim,
            stem=options.stem,
            blurpool=options.blurpool,
            norm=options.norm,
            pretrained=options.pretrained,
        )
        nesting = recipe.nesting(int(encoder.dim))   # type: ignore[arg-type]
        head = NestedLinear(nesting, classes, tied=recipe.head.kind == "tied", bias=recipe.head.bias)
    return NestedModel(encoder, head, recipe.optim.label_smoothing)


def freeze_before(encoder: nn.Module, name: str) -> list[nn.Module]:
    """Freeze what comes before the module ``name`` in the encoder; returns the modules to keep in eval mode.

    An empty name freezes nothing, ``none`` freezes the whole encoder.
    """
    if not name:
        return []
    modules = dict(encoder.named_modules())
    if name != "none" and (name not in modules or not list(modules[name].parameters())):
        layers = [key for key, module in modules.items() if key and list(module.parameters(recurse=False))]
        raise RecipeError(
            "finetune.unfreeze must name a module of the encoder",
            got=repr(name),
            cure=f"use none, or one such as {', '.join(layers[-4:])}",
        )
    # Registration order is the order of computation in every encoder here.
    thawed = set() if name == "none" else {id(p) for p in modules[name].parameters()}
    seen, trained = False, set()
    for parameter in encoder.parameters():
        seen = seen or id(parameter) in thawed
        parameter.requires_grad_(seen)
        if seen:
            trained.add(id(parameter))
    # Frozen normalisation layers must not drift either: they stay in eval mode.
    return [
        module
        for module in modules.values()
        if (own := list(module.parameters(recurse=False))) and not any(id(p) in trained for p in own)
    ]
