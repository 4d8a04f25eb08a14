"""The model of a complete run folder, rebuilt with its trained weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.data.texts.tokenizer import Tokenizer
from matryo.errors import RunError
from matryo.training.model import build_model
from matryo.training.run.checkpoint import load_weights
from matryo.training.run.paths import SHAPES, RunFolder

if TYPE_CHECKING:
    from matryo.training.objectives.base import NestedModel


def open_trained(run: RunFolder) -> tuple[NestedModel, Tokenizer | None]:
    """Load the network of a run on the CPU, and its tokenizer; None for a model that reads images only."""
    classes, recipe = run.classes, run.recipe   # in this order: classes need a complete run
    run.digest   # noqa: B018 - raises if a file is damaged
    tokenizer = None if run.tokenizer is None else Tokenizer.open(run.tokenizer)
    vocabulary = 0 if tokenizer is None else tokenizer.vocabulary
    # The weights come from the run, never from a hub or the path that training started from.
    network = build_model(recipe, len(classes), vocabulary=vocabulary, shapes=run.path / SHAPES, finished=True)
    try:
        network.load_state_dict(load_weights(run.weights))
    except RuntimeError as error:   # torch lists every weight that differs, on many lines
        cure = "restore the run from a backup, or train it again"
        raise RunError(f"{run.weights} must hold the weights of this run", got="other weights", cure=cure) from error
    return network, tokenizer
