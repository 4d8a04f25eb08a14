"""The repr of a trained model says in two lines what it is."""

import pytest

pytest.importorskip("torch")

import torch

from matryo.inference.model import TrainedModel
from matryo.training.model import build_model
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override


def test_a_model_introduces_itself_in_two_lines():
    made = override(Recipe(name="pets"), {"encoder.dim": "16", "head.kind": "tied", "loop.seed": "3"})
    model = TrainedModel(build_model(made, 2), made, ("cat", "dog"), torch.device("cpu"), "0" * 64)
    assert repr(model) == (
        "TrainedModel('pets tied', encoder convnet, seed 3, on cpu)\n"
        "  reads images; dims 8, 16; 2 classes"
    )  # fmt: skip
