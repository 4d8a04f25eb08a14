"""Layers × dims: where a model is trained after fewer layers, and the model that stops there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from matryo.encoders import cut, depth_of, sharing
from matryo.errors import RecipeError
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe


@dataclass(frozen=True)
class Depth:
    """A number of layers after which the embedding is trained, and the dims that are trained there."""

    layers: int
    nesting: Nesting


def depths_of(recipe: Recipe, nesting: Nesting, encoder: nn.Module) -> tuple[Depth, ...]:
    """The depths of a recipe, whose whole encoder is trained at ``nesting``."""
    layers, dims = recipe.encoder.layers, recipe.head.layer_dims
    if not layers:
        return ()
    most = depth_of(encoder)
    if not most:
        raise RecipeError(
            "encoder.layers needs an encoder that can be cut after fewer layers",
            got=f"encoder.name {recipe.encoder.name}",
            cure="use a BERT (bert-mini, …, bert:FOLDER) or a ViT (vit-s4, …)",
        )
    if layers[-1] >= most:
        raise RecipeError(
            f"encoder.layers must be below the {most} layers of the encoder, which are always trained",
            got=layers,
            cure=f"use for example {max(1, most // 2)}",
        )
    if unknown := [dim for dim in dims if dim not in nesting.dims]:
        rule, cure = "head.layer_dims must be dims of the nesting", f"choose from {', '.join(map(str, nesting.dims))}"
        raise RecipeError(rule, got=unknown[0], cure=cure)
    share = recipe.head.layer_weight
    weights = {dim: share * weight for dim, weight in zip(nesting.dims, nesting.weights, strict=True)}
    chosen = [(dim,) for dim in dims] if dims else [nesting.dims] * len(layers)
    return tuple(
        Depth(count, Nesting(own, [weights[dim] for dim in own])) for count, own in zip(layers, chosen, strict=True)
    )


def after_layers(model: NestedModel, layers: int) -> NestedModel:
    """``model`` with only the first ``layers`` of its encoder; it shares the weights, and the head."""
    shallow = sharing(model, encoder=cut(model.encoder, layers))
    shallow.depths = ()
    return shallow
