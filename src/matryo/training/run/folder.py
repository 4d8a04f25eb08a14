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
from matryo.data.content import content_digest
from matryo.data.images.crops import reader
from matryo.data.texts.tokenizer import BUNDLE
from matryo.embeddings.manifest import FileRecord
from matryo.errors import DataError, RunError
from matryo.files import json_digest, lock, remove_temporaries, replacing, sha256, storage, write_json
from matryo.training.model import save_shapes
from matryo.training.recipe.against_data import noun, sides_of
from matryo.training.recipe.load import RECIPE, recipe_fields
from matryo.training.run.checkpoint import load_checkpoint, save_checkpoint, save_weights
from matryo.training.run.paths import CHECKPOINT, METRICS, RUN, SHAPES, TOKENIZER, WEIGHTS, RunFolder
from matryo.training.run.seal import read_facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor
    from torch.optim.swa_utils import AveragedModel

    from matryo.arrays import Array
    from matryo.data import Dataset
    from matryo.training.distributed import Group
    from matryo.training.held_out import Figures
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

_TEXTS, _IMAGES = 100_000, 256   # items that are hashed to recognise a dataset
_LENGTH = ("loop.epochs", "loop.steps")   # what `extend` may change
# Recipe fields that do not change the weights, so that a run may be resumed with other values.
_FREE = {"log_every", "checkpoint_seconds", "workers", "damaged", "device", "test", "test_every"}


@dataclasses.dataclass
class Run:
    """A training in progress: the model, its optimiser, and the steps taken."""

    recipe: Recipe
    folder: Path
    facts: dict[str, Any]
    group: Group
    model: NestedModel
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None
    done: int = 0
    """Steps taken, over all restarts."""
    spent: float = 0.0
    """Seconds trained before this start."""
    step_seconds: float = 0.0
    """Duration of the last step; 0 before the first."""

    def __post_init__(self) -> None:
        self.started = self.saved = self.stepped = time.monotonic()
        self.files = self._records(TOKENIZER, BUNDLE)   # what a model is built from, as it was written

    @property
    def seconds(self) -> float:
        """Seconds trained, over all restarts."""
        return self.spent + time.monotonic() - self.started

    def speed(self, seconds: float) -> float:
        """Items per second, over all processes and restarts, if the steps took ``seconds``."""
        return self.done * self.recipe.loop.batch * self.group.world / max(seconds, 1e-9)

    def restore(self, total: int, *, extend: bool = False) -> None:
        """Restore the checkpoint, or write the recipe if there is none.

        With ``extend``, a run of another length is continued to ``total`` steps and gets the new recipe.
        """
        path = self.folder / CHECKPOINT
        if path.exists():
            stored = read_facts(path)
            longer = check_same(stored, self.facts, self.folder, extend=extend)
            if longer and total <= stored["step"]:
                raise RunError(
                    "extending a run needs more steps than it has taken",
                    got=f"{total:,} steps, and {stored['step']:,} taken",
                    cure="use more --loop.epochs or --loop.steps",
                )
            load_checkpoint(path, self.model, self.optimizer, self.average)
            self.done, self.spent = stored["step"], stored["seconds"]
            self.group.wait()   # until every process has seen run.json
            if longer:
                self.save()   # with the new recipe, so that the extension can be resumed
            if self.group.first:
                (self.folder / RUN).unlink(missing_ok=True)
        if self.group.first:   # written again when a run is resumed, because these files may have been damaged since
            with replacing(self.folder / RECIPE) as file:
                file.write(self.recipe.to_toml().encode())
            save_shapes(self.model.encoder, self.folder / SHAPES)
            self.files |= self._records(RECIPE, f"{SHAPES}/**/*")

    def advance(self) -> None:
        """Count a step that has been taken."""
        now = time.monotonic()
        self.step_seconds, self.stepped = max(now - self.stepped, 1e-9), now
        self.done += 1

    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() - self.saved >= self.recipe.loop.checkpoint_seconds

    def save(self) -> None:
        """Write a checkpoint."""
        if self.group.first:
            files = {name: dataclasses.asdict(record) for name, record in self.files.items()}
            facts = {**self.facts, "files": files, "step": self.done, "seconds": round(self.seconds, 3)}
            save_checkpoint(self.folder / CHECKPOINT, self.model, self.optimizer, self.average, facts)
        self.saved = time.monotonic()

    def weights(self) -> dict[str, Tensor]:
        """The weights of the trained model: the moving average if there is one, else the current weights."""
        return (self.model if self.average is None else self.average.module).state_dict()

    def finish(self, dataset: Dataset, measured: Figures, unreadable: dict[str, int]) -> None:
        """Write the weights and then run.json, which marks the folder as complete."""
        if not self.group.first:
            return
        self.files[WEIGHTS] = save_weights(self.folder / WEIGHTS, self.weights())
        seconds = self.spent + self.saved - self.started   # up to the last checkpoint: without the test after it
        split = dataset.split(self.recipe.data.train)
        items = noun(split, self.recipe.objective.kind)
        figures = {**measured, "seconds": round(seconds, 1), f"{items}_per_second": round(self.speed(seconds), 1)}
        device, world = self.group.device, self.group.world
        hardware = f"{world} × {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
        subject = f"{self.recipe.name} {self.recipe.variant}"
        row = results.stamp("train", subject, figures, seed=self.recipe.loop.seed, hardware=hardware)
        about = {
            "format": 1,
            "classes": dataset.classes,
            "superclasses": dataset.superclasses,
            "superclass_of": dataset.superclass_of,
            "dims": self.model.nesting.dims,
            "sides": [noun(side) for side in sides_of(split)] if noun(split) == "pairs" else [],
            **({"reader": reader()} if any(noun(side) == "images" for side in sides_of(split)) else {}),
            **({"unreadable": unreadable} if unreadable else {}),   # images that do not count in the figures, by split
            "row": dataclasses.asdict(row),
            "files": {name: dataclasses.asdict(record) for name, record in self.files.items()},
        }
        facts = {**self.facts, **about}
        write_json(self.folder / RUN, {**facts, "sha256": json_digest(facts)})

    def _records(self, *patterns: str) -> dict[str, FileRecord]:
        paths = [path for pattern in patterns for path in sorted(self.folder.glob(pattern)) if path.is_file()]
        records = (FileRecord(path.stat().st_size, sha256(path)) for path in paths)
        return dict(zip((path.relative_to(self.folder).as_posix() for path in paths), records, strict=True))


@contextlib.contextmanager
def writing(folder: Path, group: Group) -> Iterator[None]:
    """Lock ``folder`` against a second training, and refuse a folder that holds anything but a run."""
    if not group.first:
        yield
        return
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock(folder)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    others = names - {TOKENIZER, BUNDLE}   # a start that failed may have left its tokenizer
    if others and not names & {RECIPE, CHECKPOINT, RUN}:
        os.close(handle)
        cure = "choose an empty or a new folder: --out DIR"
        raise RunError("a run needs a folder of its own", got=f"{folder}, which holds {min(others)}", cure=cure)
    try:
        with storage(folder):
            remove_temporaries(folder, (RECIPE, CHECKPOINT, WEIGHTS, RUN, TOKENIZER, METRICS))
        yield
    finally:
        os.close(handle)


def describe(recipe: Recipe, dataset: Dataset, group: Group) -> dict[str, Any]:
    """The facts that identify a run: recipe, dataset and number of processes. Only the same run may be resumed."""
    split = dataset.split(recipe.data.train)
    if missing := [name for name in recipe.data.test if name not in dataset.splits]:   # found before training
        raise DataError(
            f"data.test must name splits of {dataset.name!r}",
            got=", ".join(missing),
            cure=f'choose from {", ".join(sorted(dataset.splits))}, or test nothing: --data.test ""',
        )
    content = {
        noun(split): len(split),
        "classes": len(dataset.classes),
        # The folder may have moved; other classes or labels mean another dataset, even of the same size.
        "names": hashlib.sha256("\0".join(dataset.classes).encode()).hexdigest()[:16],
        "labels": hashlib.sha256(_labels(split).tobytes()).hexdigest()[:16],
        # A sample: reading all of a large dataset would take too long.
        "content": [content_digest(side, _TEXTS if isinstance(side, TextSplit) else _IMAGES)[:16]
                    for side in sides_of(split)],
    }
    return {"recipe": dataclasses.asdict(recipe), "dataset": content, "processes": group.world}


def _labels(split: Any) -> Array:
    """The class of each item, or the pairs with their grades and negatives."""
    if noun(split) != "pairs":
        return np.asarray(split.labels)
    return np.concatenate([split.pairs, split.grades[:, None], split.negatives], 1)


def is_complete(folder: Path, facts: dict[str, Any], *, extend: bool = False) -> bool:
    """Whether ``folder`` holds this run, finished. Another run is an error, unless ``extend`` continues it."""
    run = RunFolder(folder)
    if extend and (not (folder / CHECKPOINT).is_file() or facts["recipe"]["head"]["join"]):
        join = facts["recipe"]["head"]["join"]
        raise RunError(
            "only a run with a checkpoint and without head.join can be extended",
            got=f"head.join {join:g}" if join else f"{folder}, which has no {CHECKPOINT}",
            cure="train a new run with more --loop.epochs in another --out, without --extend",
        )
    if not run.complete:
        return False
    # The number of processes does not matter for a finished run; `restore` compares it where training continues.
    return not check_same({**run.facts, "processes": facts["processes"]}, facts, folder, extend=extend)


def check_same(stored: dict[str, Any], facts: dict[str, Any], folder: Path, *, extend: bool = False) -> bool:
    """Raise unless ``stored`` and ``facts`` describe the same training.

    Returns whether they differ in length, which only ``extend`` allows.
    """
    now = _fields(json.loads(json.dumps(facts)))
    # A run that is older than a field was trained with the value that is now its default.
    defaults = json.loads(json.dumps({item.name: item.default for item in recipe_fields()}))
    then = {**defaults, **_fields(stored)}
    different = sorted((name for name in now if then.get(name) != now[name]), key=lambda name: name in _LENGTH)
    if not different or (extend and different[0] in _LENGTH):
        return bool(different)
    name = different[0]
    longer = name in _LENGTH
    raise RunError(
        f"{folder} holds a run of another length" if longer else f"{folder} holds another run",
        got=f"{name}: {then.get(name)} there, {now[name]} now",
        cure=("add --extend (extend=True) to continue it to the new length, or " if longer else "")
        + "choose another --out" + ("" if longer else ", or delete that folder"),
    )  # fmt: skip


def _fields(facts: dict[str, Any]) -> dict[str, Any]:
    """The values that must be equal for a run to be resumed, by name."""
    sections = {name: fields for name, fields in facts["recipe"].items() if isinstance(fields, dict)}
    fields = {f"{s}.{key}": value for s, part in sections.items() for key, value in part.items() if key not in _FREE}
    fields |= {f"dataset {key}": value for key, value in facts["dataset"].items()}
    return fields | {"processes": facts["processes"]}
