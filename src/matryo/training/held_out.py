"""The test splits of a run: rehearsed before training, measured during and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.errors import DataError
from matryo.training.measure import measure, rehearse
from matryo.training.unreadable import check_readable, exclude_unreadable

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
        self.splits = {name: dataset.split(name) for name in recipe.data.test}
        self.unreadable: dict[str, int] = {}   # images that do not count, by split

    def rehearse(self, model: NestedModel, group: Group, *, read: bool, progress: bool) -> None:
        """Raise the errors that :meth:`measure` would raise; with ``read``, find images that cannot be read."""
        for name, split in self.splits.items():
            if read:
                self._keep(name, *check_readable(split, name, self.recipe.data.damaged, progress=progress))
            rehearse(model, self.splits[name], self.recipe, group.device, self.tokenizer)

    def measure(self, run: Run, log: Log) -> Figures:
        """Every figure on every test split at every dim, with the weights that the run would end with now."""
        if not run.group.first:
            return {}
        trained = {name: value.clone() for name, value in run.model.state_dict().items()}
        run.model.load_state_dict(run.weights())
        results: Figures = {}
        for name in self.splits:
            figures = self._measure(run, log, name)
            excluded = {"unreadable": self.unreadable[name]} if name in self.unreadable else {}
            log.line(run.done, f"test-{name}", **figures, **excluded)
            for figure, by_dim in figures.items():
                results.setdefault(figure, {})[name] = by_dim
        run.model.load_state_dict(trained)
        return results if results or self.recipe.objective.kind != "classify" else {"top1": {}}

    def _measure(self, run: Run, log: Log, name: str) -> dict[str, dict[int, float]]:
        label = f"test {name}" if log.progress else ""
        options = self.recipe, run.group.device, self.tokenizer, label
        try:
            return measure(run.model, self.splits[name], *options)
        except DataError as error:   # an image that was not in the sample, or was damaged since
            self._keep(name, *exclude_unreadable(self.splits[name], name, error, progress=log.progress))
            return measure(run.model, self.splits[name], *options)

    def _keep(self, name: str, readable: Any, unreadable: int) -> None:
        self.splits[name] = readable
        if unreadable:
            self.unreadable[name] = self.unreadable.get(name, 0) + unreadable
