"""Train a model by a recipe into a run folder. Loads torch on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from matryo.errors import MissingExtra

if TYPE_CHECKING:
    from matryo.training.loop import train
    from matryo.training.recipe.fields import Recipe
    from matryo.training.recipe.load import load_recipe

__all__ = ["Recipe", "load_recipe", "train"]

_HOMES = {"Recipe": "recipe.fields", "load_recipe": "recipe.load", "train": "loop"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'matryo.training' has no attribute {name!r}")
    with MissingExtra.unless_installed("PyTorch", "train", module="torch"):
        module = import_module(f"matryo.training.{_HOMES[name]}")
    return getattr(module, name)
