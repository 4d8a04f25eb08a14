"""RunFolder: what a run folder on disk holds, read without torch.

::

    runs/demo/
      recipe.toml              the resolved recipe: `matryo train runs/demo/recipe.toml` repeats the run
      checkpoint.safetensors   everything needed to resume after an interruption
      metrics.jsonl            loss and accuracy at every dim; also under tensorboard/
      model.safetensors        the trained weights (their moving average, if the recipe sets optim.ema)
      tokenizer.json           the tokenizer, for models that read texts
      tokenizer_files.json     the other tokenizer files of a pretrained encoder, for exports
      encoder/                 the configuration of a pretrained encoder, without its weights
      embeddings/              what `matryo encode` writes, one folder per split
      run.json                 classes, nesting, figures and provenance; written last, so present when complete

run.json holds the size and SHA-256 of every file that a model is built from, and a digest of itself. A checkpoint holds
its own checksum. Folders written before there were checksums have neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.embeddings.manifest import FileRecord
from matryo.errors import RunError
from matryo.files import is_plain_name, json_digest, parse_json, sha256
from matryo.results import Row
from matryo.training.recipe.load import RECIPE, load_recipe, recipe_from_dict
from matryo.training.run.seal import check_seal, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from matryo.training.recipe.fields import Recipe

CHECKPOINT, WEIGHTS, RUN = "checkpoint.safetensors", "model.safetensors", "run.json"
TOKENIZER, SHAPES, EMBEDDINGS, METRICS = "tokenizer.json", "encoder", "embeddings", "metrics.jsonl"

_OTHER = "other bytes than were written"
_RESUME = "run the same `matryo train` command again"
_AGAIN = f"restore it from a backup, or delete it and {_RESUME}"
_RESTORE = "restore it from a backup, or train again: delete the run folder and run its `matryo train` command"


@dataclass(frozen=True)
class RunFolder:
    """A run folder, complete or not; attributes that need a complete run raise RunError if it is not.

    >>> RunFolder(Path("nowhere")).exists
    False
    """

    path: Path

    @property
    def complete(self) -> bool:
        """Whether the training has finished."""
        return (self.path / RUN).is_file()

    @property
    def unfinished(self) -> bool:
        """Whether a training was interrupted here and can be resumed."""
        return not self.complete and (self.path / CHECKPOINT).is_file()

    @property
    def exists(self) -> bool:
        """Whether this is a run folder at all."""
        return any((self.path / name).is_file() for name in (RUN, CHECKPOINT, RECIPE))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The contents of run.json."""
        if not self.complete:
            state = "is unfinished" if self.unfinished else "holds no run"
            raise RunError(
                "a run folder must hold a complete run",
                got=f"{self.path}, which {state}",
                cure="run its `matryo train` command again to finish it" if self.unfinished
                else "give the --out of a `matryo train`",
            )  # fmt: skip
        path = self.path / RUN
        try:
            facts: dict[str, Any] = dict(parse_json(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise _damaged(path, error, _AGAIN) from error
        digest = facts.pop("sha256", None)
        if (digest is not None or "files" in facts) and digest != json_digest(facts):
            raise _damaged(path, "other contents than were written", _AGAIN)
        return facts

    @cached_property
    def files(self) -> dict[str, FileRecord]:
        """The size and checksum of each file that a model is built from; empty if written before checksums existed."""
        source = RUN if self.complete else CHECKPOINT
        facts = self.facts if self.complete else read_facts(self.path / CHECKPOINT) if self.unfinished else {}
        try:
            return {name: FileRecord(**record) for name, record in facts.get("files", {}).items()}
        except (TypeError, AttributeError) as error:
            raise _damaged(self.path / source, error, _AGAIN) from error

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run; of an unfinished one, from recipe.toml."""
        if not self.complete:
            return load_recipe(self.path / RECIPE)
        stored = dict(self._stored("recipe"))
        name = str(stored.get("name", ""))
        if not is_plain_name(name):   # recipes could once be named like a path
            stored["name"] = Path(name).name or "custom"
        return recipe_from_dict(stored)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the head's outputs."""
        return tuple(self._stored("classes"))

    @property
    def sides(self) -> tuple[str, ...]:
        """The kinds (images or texts) of queries and candidates, for a model trained on pairs; else empty."""
        return tuple(self.facts.get("sides", ()))   # older runs lack the key

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims of the nesting."""
        return tuple(self._stored("dims"))

    @property
    def row(self) -> Row:
        """The result row: figures of the test splits, speed and provenance."""
        return Row(**self._stored("row"))

    @property
    def weights(self) -> Path:
        """The file of the trained weights."""
        return self.path / WEIGHTS

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the trained weights, which identifies the model; raises if the model's files are damaged."""
        self.check_files(self.files.keys() - {RECIPE, WEIGHTS})
        if not self.weights.is_file():
            raise self._damaged(self.weights, "no such file")
        found = sha256(self.weights)
        if WEIGHTS in self.files and found != self.files[WEIGHTS].sha256:
            raise self._damaged(self.weights, _OTHER)
        return found

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file, or None for a model that reads no texts."""
        path = self.path / TOKENIZER
        return path if path.is_file() else None

    @property
    def embeddings(self) -> Path:
        """The folder that `matryo encode` writes to by default, one folder per split in it."""
        return self.path / EMBEDDINGS

    def check_files(self, names: Collection[str], progress: Callable[[int], object] = int) -> None:
        """Raise if one of the files ``names`` differs from its record; files without a record are not checked."""
        for name, record in self.files.items():
            path = self.path / name
            if name not in names:
                continue
            size = path.stat().st_size if path.is_file() else None
            if size != record.size:
                raise self._damaged(path, "no such file" if size is None else f"{size} bytes instead of {record.size}")
            if sha256(path) != record.sha256:
                raise self._damaged(path, _OTHER)
            progress(record.size)

    def verify(self, progress: Callable[[int], object] = int) -> bool:
        """Read every byte that a model is built from or a training resumed from, and raise if one is damaged.

        Returns False if the run was written before there were checksums: only sizes and structure are checked then.
        ``progress`` is called with numbers of bytes read.
        """
        has_checksums = bool(self.files) if self.complete else self.unfinished
        if (self.path / CHECKPOINT).is_file():
            has_checksums &= check_seal(self.path / CHECKPOINT, progress)
        self.check_files(self.files, progress)
        if self.complete and WEIGHTS not in self.files:
            try:
                read_facts(self.weights)
            except RunError as error:
                raise self._damaged(self.weights, error.__cause__) from error
        return has_checksums and bool(self.recipe)

    def _stored(self, name: str) -> Any:
        if name not in self.facts:
            raise _damaged(self.path / RUN, f"no {name!r}", _AGAIN)
        return self.facts[name]

    def _damaged(self, path: Path, got: object) -> RunError:
        if not self.complete:
            return _damaged(path, got, f"delete it and {_RESUME}, which writes it again")
        try:
            intact = check_seal(self.path / CHECKPOINT)
        except RunError:
            intact = False
        cure = f"delete it and {RUN}, and {_RESUME}: {CHECKPOINT} is intact"
        return _damaged(path, got, cure if intact else _RESTORE)


def _damaged(path: Path, got: object, cure: str) -> RunError:
    return RunError(f"{path} is damaged", got=got, cure=cure)
