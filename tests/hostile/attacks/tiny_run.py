"""A tiny training on texts that the attacks on run folders share: every kind of file, a few milliseconds per step."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from matryo.data import text_dataset
from matryo.inference import load
from matryo.training import loop
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override

torch.set_num_threads(1)   # before anything forks
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.modules["torch.utils.tensorboard"] = None   # type: ignore[assignment]   # a view of metrics.jsonl, slow to import
_WORDS = ("cat", "dog", "purr", "bark", "fish", "swim", "bird", "fly", "tree", "leaf", "stone", "river", "sun", "moon")
_CHANGES = {
    "encoder.name": "bert-tiny", "encoder.dim": "16", "encoder.dropout": "0.1", "text.length": "16",
    "head.dims": "8,16", "text.vocabulary": "100", "optim.name": "adamw", "optim.ema": "0.9", "loop.batch": "8",
    "loop.steps": "6", "loop.log_every": "1", "loop.device": "cpu", "loop.checkpoint_seconds": "0", "data.test": "test",
}  # fmt: skip
RECIPE = override(Recipe(name="tiny"), _CHANGES)


def dataset() -> Any:
    """Sentences of chance words in two classes."""
    chance = np.random.default_rng(0)
    texts = [" ".join(chance.choice(_WORDS, 5)) for _ in range(24)]
    labels = np.arange(24) % 2
    return text_dataset({"train": (texts, labels), "test": (texts[:8], labels[:8])}, ["odd", "even"])


def train(out: Path) -> None:
    """Train into ``out``, or resume the training there."""
    loop.train(RECIPE, dataset(), out, progress=False)


def train_half(out: Path) -> None:
    """Train into ``out`` and stop after three steps, as by Ctrl-C."""

    class Interrupted(loop.Log):
        def line(self, step: int, kind: str, **figures: Any) -> None:
            super().line(step, kind, **figures)
            if step == 3:
                signal.raise_signal(signal.SIGINT)

    usual, loop.Log = loop.Log, Interrupted   # type: ignore[misc]
    try:
        train(out)
    except KeyboardInterrupt:
        pass
    finally:
        loop.Log = usual   # type: ignore[misc]


def model_digest(out: Path) -> str:
    """A digest of everything that decides what the model of a complete run computes."""
    model = load(out, device="cpu")
    assert model.tokenizer is not None
    digest = hashlib.sha256(repr((model.recipe, model.classes)).encode())
    digest.update(model.tokenizer.encode([" ".join(_WORDS), "unknown"], 16)[0].tobytes())
    for name, value in sorted(model.network.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()
