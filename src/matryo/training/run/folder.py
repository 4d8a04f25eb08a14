"""A training under way: what identifies it, how it is saved, resumed and finished."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo import results
from matryo.data import TextSplit
from matryo.data.content import content_of
from matryo.errors import DataError, RunError
from matryo.files import lock, replacing, storage, write_json
from matryo.training.model import save_shapes
from matryo.training.recipe.against_data import noun
from matryo.training.recipe.load import RECIPE, recipe_fields
from matryo.training.run.checkpoint import load_checkpoint, read_facts, save_checkpoint, save_weights
from matryo.training.run.paths import CHECKPOINT, RUN, SHAPES, TOKENIZER, WEIGHTS, RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from matryo.data import Dataset
    from matryo.training.distributed import Group
    from matryo.training.objectives.base import NestedModel
    from matryo.training.optim import Average
    from matryo.training.recipe.fields import Recipe

__all__ = ["Run", "check_same", "describe", "is_complete", "writing"]

_TEXTS, _IMAGES = 100_000, 256   # so many are looked at to know a dataset again
# Recipe fields that change no weight of a run that has come so far.
_FREE = {"log_every", "checkpoint_seconds", "workers", "damaged", "device", "test", "test_every"}


@dataclasses.dataclass
class Run:
    """A training under way: its parts, and how far it has come."""

    recipe: Recipe
    folder: Path
    facts: dict[str, Any]
    group: Group
    model: NestedModel
    optimizer: torch.optim.Optimizer
    average: Average | None
    done: int = 0
    """Steps taken, over all restarts."""
    spent: float = 0.0
    """Seconds trained before this start."""

    def __post_init__(self) -> None:
        self.started = self.saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has trained, over all restarts."""
        return self.spent + time.monotonic() - self.started

    @property
    def speed(self) -> float:
        """Items a second, over all processes and restarts."""
        return self.done * self.recipe.loop.batch * self.group.world / max(self.seconds, 1e-9)

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one; else write down what is being trained."""
        path = self.folder / CHECKPOINT
        if path.exists():
            stored = read_facts(path)
            check_same(stored, self.facts, self.folder)
            load_checkpoint(path, self.model, self.optimizer, self.average, self.group.device)
            self.done, self.spent = stored["step"], stored["seconds"]
        elif self.group.first:
            with replacing(self.folder / RECIPE) as file:
                file.write(self.recipe.to_toml().encode())
            save_shapes(self.model.encoder, self.folder / SHAPES)

    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough for another."""
        return time.monotonic() - self.saved >= self.recipe.loop.checkpoint_seconds

    def save(self) -> None:
        """Write a checkpoint."""
        if self.group.first:
            facts = {**self.facts, "step": self.done, "seconds": round(self.seconds, 3)}
            save_checkpoint(self.folder / CHECKPOINT, self.model, self.optimizer, self.average, facts)
        self.saved = time.monotonic()

    def weights(self) -> dict[str, Tensor]:
        """What the trained model is: the weights, or their average."""
        return self.average.state if self.average is not None else self.model.state_dict()

    def finish(self, dataset: Dataset, found: dict[str, dict[str, dict[int, float]]]) -> None:
        """Write the weights, and last of all run.json: a folder that has it is complete."""
        if not self.group.first:
            return
        save_weights(self.folder / WEIGHTS, self.weights())
        seconds = self.spent + self.saved - self.started   # up to the last checkpoint: training, not the test after it
        speed = self.done * self.recipe.loop.batch * self.group.world / max(seconds, 1e-9)
        split = dataset.split(self.recipe.data.train)
        items = noun(split, self.recipe.objective.kind)
        figures = {**found, "seconds": round(seconds, 1), f"{items}_per_second": round(speed, 1)}
        subject = f"{self.recipe.name} {self.recipe.variant}"
        row = results.stamp("train", subject, figures, seed=self.recipe.loop.seed, hardware=self._hardware())
        about = {
            "format": 1,
            "classes": dataset.classes,
            "superclasses": dataset.superclasses,
            "superclass_of": dataset.superclass_of,
            "dims": self.model.nesting.dims,
            "sides": [noun(side) for side in (split.queries, split.candidates)] if noun(split) == "pairs" else [],
            "row": dataclasses.asdict(row),
        }
        write_json(self.folder / RUN, {**self.facts, **about})

    def _hardware(self) -> str:
        device = self.group.device
        return f"{self.group.world} × {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""


@contextlib.contextmanager
def writing(folder: Path, group: Group) -> Iterator[None]:
    """Two trainings in one folder would spoil each other: the second is told to wait."""
    if not group.first:
        yield
        return
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock(folder)
        there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    others = there - {TOKENIZER}   # which a start that failed may have left
    if others and not there & {RECIPE, CHECKPOINT, RUN}:
        os.close(handle)
        cure = "name an empty or a new folder: --out DIR"
        raise RunError("a run needs a folder of its own", got=f"{folder}, which holds {min(others)}", cure=cure)
    try:
        yield
    finally:
        os.close(handle)


def describe(recipe: Recipe, dataset: Dataset, group: Group) -> dict[str, Any]:
    """What a run is of: it goes on only with the same."""
    split = dataset.split(recipe.data.train)
    if missing := [name for name in recipe.data.test if name not in dataset.splits]:   # not when training is over
        raise DataError(
            f"data.test must name splits of {dataset.name!r}",
            got=", ".join(missing),
            cure=f'choose from {", ".join(sorted(dataset.splits))}, or test nothing: --data.test ""',
        )
    what, pairs = noun(split), noun(split) == "pairs"
    sides = (split.queries, split.candidates) if pairs else (split,)
    known = {
        what: len(split),
        "classes": len(dataset.classes),
        # The same folder may have moved; other classes or labels are another dataset, even of the same size.
        "names": hashlib.sha256("\0".join(dataset.classes).encode()).hexdigest()[:16],
        "labels": hashlib.sha256(_labels(split).tobytes()).hexdigest()[:16],
        # All of a large dataset would take longer to read than a run to start.
        "content": [content_of(side, _TEXTS if isinstance(side, TextSplit) else _IMAGES)[:16] for side in sides],
    }
    return {"recipe": dataclasses.asdict(recipe), "dataset": known, "processes": group.world}


def _labels(split: Any) -> np.ndarray[Any, Any]:
    """What belongs together: classes, or pairs with their grades and negatives."""
    if noun(split) != "pairs":
        return np.asarray(split.labels)
    return np.concatenate([split.pairs, split.grades[:, None], split.negatives], 1)


def is_complete(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether ``folder`` holds this run, finished; another one is an error."""
    if not RunFolder(folder).complete:
        return False
    stored = RunFolder(folder).facts
    check_same({**stored, "processes": facts["processes"]}, facts, folder)   # how many trained it matters no more
    return True


def check_same(stored: dict[str, Any], facts: dict[str, Any], folder: Path) -> None:
    """Raise unless ``stored`` and ``facts`` describe the same training."""
    now = json.loads(json.dumps(facts))
    # A run that is older than a field was trained with what is now its default.
    defaults = json.loads(json.dumps({item.name: item.default for item in recipe_fields()}))
    there = {**defaults, **_fields(stored)}
    for name, value in _fields(now).items():
        if there.get(name) != value:
            raise RunError(
                f"{folder} holds another run",
                got=f"{name}: {there.get(name)} there, {value} now",
                cure="choose another --out, or delete that folder",
            )


def _fields(facts: dict[str, Any]) -> dict[str, Any]:
    sections = {name: fields for name, fields in facts["recipe"].items() if isinstance(fields, dict)}
    found = {f"{s}.{key}": value for s, fields in sections.items() for key, value in fields.items() if key not in _FREE}
    found |= {f"dataset {key}": value for key, value in facts["dataset"].items()}
    return found | {"processes": facts["processes"]}
