"""From a recipe to a run folder, and from a run folder to embeddings. Loads torch on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from matryo.errors import MissingExtra

if TYPE_CHECKING:
    from matryo.training.encode import encode_pairs, encode_split
    from matryo.training.loop import train
    from matryo.training.recipe import Recipe
    from matryo.training.recipes import load_recipe
    from matryo.training.trained import TrainedModel, load

__all__ = ["Recipe", "TrainedModel", "encode_pairs", "encode_split", "load", "load_recipe", "train"]

_HOMES = {
    "Recipe": "recipe",
    "TrainedModel": "trained",
    "encode_pairs": "encode",
    "encode_split": "encode",
    "load": "trained",
    "load_recipe": "recipes",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'matryo.training' has no attribute {name!r}")
    with MissingExtra.unless_installed("PyTorch", "train", module="torch"):
        module = import_module(f"matryo.training.{_HOMES[name]}")
    return getattr(module, name)
