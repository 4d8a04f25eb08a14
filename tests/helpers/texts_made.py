"""Tiny texts, pairs and recipes that the tests of training on text share."""

import json

import numpy as np

from matryo.data import Tokenizer, array_dataset, pair_dataset, text_dataset
from matryo.data.dataset import Dataset
from matryo.data.pairs.pairs import Pairs
from matryo.data.texts.rows import TextRows
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override

WORDS = [
    "cat", "dog", "purr", "bark", "fish", "swim", "bird", "fly", "tree", "leaf", "stone", "river", "sun", "moon",
    "star", "night", "day", "rain", "snow", "wind",
]  # fmt: skip
SMALL = {
    "data.test": "test", "encoder.name": "bert-tiny", "encoder.dropout": "0.1", "text.length": "16",
    "text.vocabulary": "120", "head.dims": "8,32,128", "optim.name": "adamw", "optim.lr": "0.003", "optim.peak": "0.2",
    "loop.batch": "8", "loop.epochs": "2", "loop.log_every": "1", "loop.device": "cpu", "data.size": "16",
    "augment.pad": "2",
}  # fmt: skip


def recipe(**changes):
    fields = {name.replace("__", "."): str(value) for name, value in changes.items()}
    return override(Recipe(name="small"), {**SMALL, **fields})


def sentences(count, words=6, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, words + 1))) for _ in range(count)]


def labelled(count=48, seed=0):
    """The class is told by the last words."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    ends = ("cat purr", "dog bark", "fish swim")
    texts = [f"{text} {ends[label]}" for text, label in zip(sentences(count, seed=seed), labels, strict=True)]
    return text_dataset({"train": (texts, labels), "test": (texts[:16], labels[:16])}, ["cat", "dog", "fish"])


def corpus(count=40):
    return text_dataset({"train": sentences(count, 30), "test": sentences(8, 30, seed=1)})


def pairs(count=32, negatives=0):
    """A text and its words in the other order."""
    rows = [(text, " ".join(reversed(text.split())) + " end", *sentences(negatives, seed=i))
            for i, text in enumerate(dict.fromkeys(sentences(2 * count, 5)))]  # fmt: skip
    return pair_dataset({"train": rows[:count], "test": [row[:2] for row in rows[count : count + 10]]})


def pictures(count=24, known=True):
    """Noise, of two classes or of none."""
    images = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(count) % 2 if known else np.full(count, -1)
    return array_dataset({"train": (images, labels), "test": (images, labels)}, ["a", "b"])


def captions(count=24, per_image=2):
    """Coloured squares, each with texts that name it."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    queries = array_dataset({"train": (images, np.zeros(count, np.int64))}).split("train")
    texts = TextRows(sentences(count * per_image), source="captions")
    rows = np.stack([np.repeat(np.arange(count), per_image), np.arange(count * per_image)], 1)
    split = Pairs(queries, texts, rows)
    return Dataset("captions", (), {"train": split, "test": split})


def tokenizer(vocabulary=120):
    return Tokenizer.train(WORDS, vocabulary)


def figures(run):
    return json.loads((run / "run.json").read_text())["row"]["figures"]
