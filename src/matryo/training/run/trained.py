"""The model of a complete run folder, rebuilt with its trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matryo.data.texts.tokenizer import Tokenizer
from matryo.errors import RunError
from matryo.training.batches.texts import TOKENIZER
from matryo.training.model import SHAPES, build_model
from matryo.training.recipe.load import recipe_from_dict
from matryo.training.run.checkpoint import load_weights
from matryo.training.run.folder import CHECKPOINT, RUN, WEIGHTS, read_run

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

__all__ = ["Trained", "open_trained"]


@dataclass(frozen=True)
class Trained:
    """A network with its weights, and what its run says of it."""

    network: NestedModel
    recipe: Recipe
    classes: tuple[str, ...]
    tokenizer: Tokenizer | None
    sides: tuple[str, ...]
    """What the queries and the candidates of its pairs were: images or texts; empty without pairs."""


def open_trained(path: Path) -> Trained:
    """The network of the run folder ``path``, on the CPU."""
    if not (path / RUN).is_file():
        begun = (path / CHECKPOINT).exists()
        raise RunError(
            "a run folder must hold a complete run",
            got=f"{path}, {'which is unfinished' if begun else 'which holds none'}",
            cure="run its `matryo train` command again to finish it" if begun else "give the --out of a `matryo train`",
        )
    facts = read_run(path)
    recipe = recipe_from_dict(facts["recipe"])
    tokenizer = Tokenizer.open(path / TOKENIZER) if (path / TOKENIZER).is_file() else None
    vocabulary = 0 if tokenizer is None else tokenizer.vocabulary
    # The weights come from the run, never from a hub or from where training found them.
    network = build_model(recipe, len(facts["classes"]), vocabulary=vocabulary, shapes=path / SHAPES)
    network.load_state_dict(load_weights(path / WEIGHTS))
    sides = tuple(facts.get("sides", ()))   # which runs older than pairs do not have
    return Trained(network, recipe, tuple(facts["classes"]), tokenizer, sides)
