"""The test splits of a run: rehearsed before training, measured during and after it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from matryo.errors import DataError
from matryo.training.measure import Measured, measure, rehearse
from matryo.training.unreadable import readable

if TYPE_CHECKING:
    from matryo.data import Dataset
    from matryo.data.texts.tokenizer import Tokenizer
    from matryo.training.distributed import Group
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe
    from matryo.training.run.folder import Run
    from matryo.training.run.log import Log

    Figures = dict[str, dict[str, dict[int, float]]]   # figure → test split → dim → value


class HeldOut:
    """The test splits of a recipe, without images that cannot be read."""

    def __init__(self, recipe: Recipe, dataset: Dataset, tokenizer: Tokenizer | None) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        self.splits: dict[str, Any] = {name: dataset.split(name) for name in recipe.data.test}
        self.unreadable: dict[str, int] = {}   # images that do not count, by split

    def rehearse(self, model: NestedModel, group: Group, *, read: bool, progress: bool) -> None:
        """Raise the errors that :meth:`measure` would raise; with ``read``, find images that cannot be read."""
        for name in self.splits:
            if read:
                self._exclude_unreadable(name, progress, sample=True)
            rehearse(Measured(model, self.recipe, group.device, self.tokenizer), self.splits[name])

    def measure(self, run: Run, log: Log) -> Figures:
        """Every figure on every test split at every dim, with the weights that the run would end with now."""
        if not run.group.first:
            return {}
        trained = {name: value.clone() for name, value in run.model.state_dict().items()}
        run.model.load_state_dict(run.weights())
        results: Figures = {}
        for name in self.splits:
            label = f"test {name}" if log.progress else ""
            measured = Measured(run.model, self.recipe, run.group.device, self.tokenizer, label)
            try:
                figures = measure(measured, self.splits[name])
            except DataError:   # an image that was not in the sample, or was damaged since
                if not self._exclude_unreadable(name, log.progress, sample=False):
                    raise
                figures = measure(measured, self.splits[name])
            excluded = {"unreadable": self.unreadable[name]} if name in self.unreadable else {}
            log.line(run.done, f"test-{name}", **figures, **excluded)
            for figure, by_dim in figures.items():
                results.setdefault(figure, {})[name] = by_dim
        run.model.load_state_dict(trained)
        return results if results or self.recipe.objective.kind != "classify" else {"top1": {}}

    def _exclude_unreadable(self, name: str, progress: bool, *, sample: bool) -> bool:
        """Exclude unreadable images from a split, with a warning; returns whether there were any.

        In the ``sample`` that is read before training, any is an error unless data.damaged is gray.
        """
        self.splits[name], errors = readable(self.splits[name], name, sample=sample, progress=progress)
        if not errors:
            return False
        count = f"{len(errors):,} image{'s' * (len(errors) != 1)}"
        if sample and self.recipe.data.damaged == "stop":
            raise DataError(
                f"every image of the test split {name!r} must be readable",
                got=f"{count} that cannot be read; the first: {errors[0]}",
                cure="remove or replace them, or exclude them from the figures: --data.damaged gray",
            )
        self.unreadable[name] = self.unreadable.get(name, 0) + len(errors)
        text = f"{count} of the test split {name!r} cannot be read and do not count in its figures"
        warnings.warn(f"{text}; the first: {errors[0]}", stacklevel=3)
        return True
