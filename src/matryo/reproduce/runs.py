"""The trainings that tables need, each found by a digest of its resolved recipe, so that tables share them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data import open_dataset
from matryo.embeddings import EmbeddingSet
from matryo.files import json_digest
from matryo.reproduce.splits import divided, hidden_classes
from matryo.training.recipe.load import load_recipe
from matryo.training.run.paths import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matryo.data import Dataset
    from matryo.reproduce.scales import Scale
    from matryo.training.recipe.fields import Recipe

OTHER = "4k-"
"""The start of the names of splits that lie in imagenet-4k/."""
_FREE = ("device", "workers", "checkpoint_seconds", "log_every", "test_every", "seed")   # what is no other training


@dataclass(frozen=True)
class Model:
    """A model of a table: a recipe with changed fields."""

    name: str
    """As the columns of tables have it: MRL, MRL-E, FF-8, …."""
    recipe: str
    changes: tuple[tuple[str, str], ...]
    hides: int = 0
    """How many classes it is not shown."""
    start: Model | None = None
    """The model whose encoder it starts from."""

    def resolved(self, seed: int, start: Path | None = None) -> Recipe:
        """Return its recipe for one seed."""
        begin = {} if start is None else {"finetune.start": str(start)}
        return load_recipe(self.recipe, {**dict(self.changes), "loop.seed": str(seed), **begin})

    @cached_property
    def digest(self) -> str:
        """The identity of the training but for its seed: the resolved recipe, the hidden classes, and its start."""
        table = dataclasses.asdict(self.resolved(0))
        loop = {name: value for name, value in table["loop"].items() if name not in _FREE}
        start = "" if self.start is None else self.start.digest
        return json_digest([{**table, "name": "", "loop": loop}, self.hides, start])[:10]


@dataclass(eq=False)
class Workshop:
    """Trains and encodes what is missing below one folder, and opens what is there."""

    scale: Scale
    runs: Path
    data: Path | None = None
    progress: bool = True
    say: Callable[[str], object] = print

    def __post_init__(self) -> None:
        self._datasets: dict[tuple[str, int], Dataset] = {}
        self._seconds: list[float] = []

    def image_model(self, name: str, changes: dict[str, str], **extra: Any) -> Model:
        """Return a model of the scale's own recipe with ``changes``."""
        return Model(name, self.scale.recipe, tuple(sorted({**self.scale.changes, **changes}.items())), **extra)

    def folder(self, model: Model, seed: int) -> Path:
        """Where the run is kept: a table that calls it by another name finds it too."""
        there = sorted(self.runs.glob(f"*-{model.digest}"))
        return (there[0] if there else self.runs / f"{plain(model.name)}-{model.digest}") / f"seed{seed}"

    def missing(self, models: Sequence[Model], seeds: Sequence[int]) -> list[tuple[Model, int]]:
        """Return the runs that have yet to be trained, those that others start from first."""
        wanted: dict[str, tuple[Model, int]] = {}
        for seed in seeds:
            for model in models:
                for one in (model.start, model):
                    if one is not None and not RunFolder(self.folder(one, seed)).complete:
                        wanted.setdefault(f"{one.digest} {seed}", (one, seed))
        return list(wanted.values())

    def train(self, models: Sequence[Model], seeds: Sequence[int]) -> None:
        """Train what is missing. An interrupted run continues from its checkpoint."""
        from matryo.training import train

        missing = self.missing(models, seeds)
        for number, (model, seed) in enumerate(missing, 1):
            left = len(missing) - number + 1
            typical = sum(self._seconds) / len(self._seconds) if self._seconds else 0.0
            times = f"; about {lasting(typical)} each, {lasting(typical * left)} for those left"
            about = times if self._seconds else ""
            self.say(f"training {number} of {len(missing)}: {model.name}, seed {seed}{about}")
            out = self.folder(model, seed)
            start = None if model.start is None else self.folder(model.start, seed)
            recipe = model.resolved(seed, start)
            train(recipe, self.dataset(recipe.data.source, model.hides), out, progress=self.progress)
            self._seconds.append(float(RunFolder(out).row.figures["seconds"]))

    def embeddings(self, model: Model, seed: int, split: str) -> EmbeddingSet:
        """Return the embeddings of a split; they are made once."""
        from matryo.inference import encode_split, load

        folder = self.folder(model, seed)
        out = folder / "embeddings" / split
        if not (out / "manifest.json").is_file():
            run = load(folder)
            other = split.startswith(OTHER)   # images of other classes than those of training
            data = self._unseen() if other else self.dataset(run.recipe.data.source, model.hides)
            dtype = "float16" if self.data else "float32"
            encode_split(run, data, split.removeprefix(OTHER), out, dtype=dtype, progress=self.progress)
        return EmbeddingSet.open(out)

    def sides(self, model: Model, seed: int, split: str) -> tuple[EmbeddingSet, EmbeddingSet, Path]:
        """Return the embeddings of both sides of pairs, and the file of their relevance."""
        from matryo.embeddings.place import RELEVANCE
        from matryo.inference import encode_pairs, load

        folder = self.folder(model, seed)
        out = folder / "embeddings" / split
        if not (out / RELEVANCE).is_file():
            run = load(folder)
            encode_pairs(run, self.dataset(run.recipe.data.source, 0), split, out, progress=self.progress)
        return EmbeddingSet.open(out / "queries"), EmbeddingSet.open(out / "candidates"), out / RELEVANCE

    def dataset(self, source: str, hides: int) -> Dataset:
        """Return the data, opened once."""
        key = (source, hides)
        if key not in self._datasets:
            root = None if self.data is None else self.data / "imagenet"
            dataset = open_dataset(source, root)
            if hides:
                shown = np.unique(dataset.split("train").labels)
                dataset = divided(dataset, hidden_classes(shown, hides))
            elif self.data is not None:
                dataset = self._with_shifted(dataset)
            self._datasets[key] = dataset
        return self._datasets[key]

    def _unseen(self) -> Dataset:
        assert self.data is not None
        return open_dataset("folder", self.data / "imagenet-4k")

    def _with_shifted(self, dataset: Dataset) -> Dataset:
        """Return ImageNet with the shifted test sets that lie beside it."""
        assert self.data is not None
        root = self.data / "shifted"
        if not root.is_dir():
            return dataset
        return dataclasses.replace(dataset, splits={**open_dataset("folder", root, dataset.classes).splits,
                                                    **dataset.splits})  # fmt: skip


def plain(name: str) -> str:
    """Return the name of a model as the name of a folder.

    >>> plain("4.2 conv3, fc"), plain("MRL-8+16boost")
    ('4.2-conv3-fc', 'mrl-8-16boost')
    """
    kept = "".join(sign if sign.isalnum() or sign == "." else " " for sign in name.lower())
    return "-".join(kept.split())


def lasting(seconds: float) -> str:
    """Return a duration in words.

    >>> lasting(40), lasting(130), lasting(9000)
    ('40 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
