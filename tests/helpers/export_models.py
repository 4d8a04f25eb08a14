"""Models to export, whose weights all matter; nothing is trained."""

import contextlib
import re

import torch
from torch import nn

from matryo.data.texts.tokenizer import Tokenizer
from matryo.inference.model import TrainedModel
from matryo.training.model import build_model
from matryo.training.recipe.fields import Data, Encoder, Head, Loop, Objective, Recipe, Text

TEXTS = [
    "a cat sleeps on the mat",
    "the dog barks at a cat, and at every other animal that comes near its house",
    "rain",
    "a very long text " * 20,
    "Zebra, naïve café",
]


def tokenizer():
    return Tokenizer.train(TEXTS, vocabulary=120)


def trained(recipe, *, tokenizer=None, classes=(), sides=(), seed=0):
    """A model of that recipe."""
    torch.manual_seed(seed)
    vocabulary = 0 if tokenizer is None else tokenizer.vocabulary
    network = build_model(recipe, len(classes), vocabulary=vocabulary)
    return alive(TrainedModel(network, recipe, tuple(classes), torch.device("cpu"), "0" * 64, 1.0, tokenizer, sides))


def alive(model):
    """Weights and running statistics as training leaves them, instead of as they are drawn."""
    for name, value in [*model.network.named_parameters(), *model.network.named_buffers()]:
        if name.endswith("running_var"):
            value.data.uniform_(0.5, 2.0)
        elif name.endswith("running_mean") or (isinstance(value, nn.Parameter) and "logit_scale" not in name):
            nn.init.normal_(value.data, std=0.2 if value.ndim < 4 else 0.05)
    model.network.eval()
    return model


def run_card(folder, **known):
    """What the Python of a card leaves behind, run where the folder lies; a card names it alone."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    with contextlib.chdir(folder.parent), torch.no_grad():
        exec(code, known)
    return known


def text_model(name="bert-tiny", *, dim=0, dims=(8, 32, 128), kind="pairs", pooling="", length=24, words=None):
    """A model of texts."""
    words = words or tokenizer()
    recipe = Recipe(
        name="texts",
        data=Data(source="corpus" if kind == "masked" else "texts" if kind == "classify" else "pairs"),
        encoder=Encoder(name=name, dim=dim, pooling=pooling),
        head=Head(kind="tied", dims=dims),
        text=Text(length=length),
        objective=Objective(kind=kind),
        loop=Loop(precision="fp32"),
    )
    sides = ("texts", "texts") if kind == "pairs" else ()
    return trained(recipe, tokenizer=words, classes=("a", "b") if kind == "classify" else (), sides=sides)


def image_model(name="resnet18", *, size=32, dims=(8, 64), dim=0, flip=False, **options):
    """A model of images."""
    recipe = Recipe(
        name="pictures",
        data=Data(size=size, test_flip=flip),
        encoder=Encoder(name=name, dim=dim, **options),
        head=Head(kind="separate", dims=dims),
        loop=Loop(precision="fp32"),
    )
    return trained(recipe, classes=("a", "b", "c"))


def dual_model(*, dims=(8, 16)):
    """A model of images and texts."""
    recipe = Recipe(
        name="both",
        data=Data(source="captions"),
        encoder=Encoder(name="convnet", dim=16),
        head=Head(dims=dims),
        text=Text(length=24, encoder="bert-tiny"),
        objective=Objective(kind="pairs"),
        loop=Loop(precision="fp32"),
    )
    return trained(recipe, tokenizer=tokenizer(), sides=("images", "texts"))
