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
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.errors import RunError
from matryo.files import parse_json
from matryo.results import Row
from matryo.training.recipe.load import RECIPE, load_recipe, recipe_from_dict

if TYPE_CHECKING:
    from matryo.training.recipe.fields import Recipe

CHECKPOINT, WEIGHTS, RUN = "checkpoint.safetensors", "model.safetensors", "run.json"
TOKENIZER, SHAPES, EMBEDDINGS, METRICS = "tokenizer.json", "encoder", "embeddings", "metrics.jsonl"


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
        try:
            facts: dict[str, Any] = parse_json((self.path / RUN).read_text(encoding="utf-8"))
        except ValueError as error:
            cure = "restore it, or delete it and run the same command again"
            raise RunError(f"{self.path / RUN} is damaged", got=error, cure=cure) from error
        return facts

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run; of an unfinished one, from recipe.toml."""
        return recipe_from_dict(self.facts["recipe"]) if self.complete else load_recipe(self.path / RECIPE)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the head's outputs."""
        return tuple(self.facts["classes"])

    @property
    def sides(self) -> tuple[str, ...]:
        """The kinds (images or texts) of queries and candidates, for a model trained on pairs; else empty."""
        return tuple(self.facts.get("sides", ()))   # older runs lack the key

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims of the nesting."""
        return tuple(self.facts["dims"])

    @property
    def row(self) -> Row:
        """The result row: figures of the test splits, speed and provenance."""
        return Row(**self.facts["row"])

    @property
    def weights(self) -> Path:
        """The file of the trained weights."""
        return self.path / WEIGHTS

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file, or None for a model that reads no texts."""
        path = self.path / TOKENIZER
        return path if path.is_file() else None

    @property
    def embeddings(self) -> Path:
        """The folder that `matryo encode` writes to by default, one folder per split in it."""
        return self.path / EMBEDDINGS
