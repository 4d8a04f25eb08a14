"""The model of a complete run folder, rebuilt with its trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matryo.data.texts.tokenizer import Tokenizer
from matryo.training.model import build_model
from matryo.training.run.checkpoint import load_weights
from matryo.training.run.paths import SHAPES, RunFolder

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe


@dataclass(frozen=True)
class Trained:
    """A network with its trained weights, its recipe, classes and tokenizer."""

    network: NestedModel
    recipe: Recipe
    classes: tuple[str, ...]
    tokenizer: Tokenizer | None
    sides: tuple[str, ...]
    """The kinds (images or texts) of queries and candidates, for a model trained on pairs; else empty."""


def open_trained(path: Path) -> Trained:
    """Load the network of the run folder ``path`` on the CPU."""
    run = RunFolder(path)
    classes, recipe = run.classes, run.recipe   # in this order: classes need a complete run
    tokenizer = None if run.tokenizer is None else Tokenizer.open(run.tokenizer)
    vocabulary = 0 if tokenizer is None else tokenizer.vocabulary
    # The weights come from the run, never from a hub or the path that training started from.
    network = build_model(recipe, len(classes), vocabulary=vocabulary, shapes=path / SHAPES)
    network.load_state_dict(load_weights(run.weights))
    return Trained(network, recipe, classes, tokenizer, run.sides)
