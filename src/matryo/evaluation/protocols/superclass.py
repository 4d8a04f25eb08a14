"""Superclass accuracy: is the predicted class at least of the right kind?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError
from matryo.results import Result

if TYPE_CHECKING:
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.predictions import Predictions

    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Superclasses", "superclass_accuracy"]


@dataclass(frozen=True)
class Superclasses(Result):
    """Accuracy among superclasses by dim, over the examples that have one."""

    kind: ClassVar[str] = "superclass"
    model: str
    dataset: str
    split: str
    by: str
    dims: tuple[int, ...]
    names: tuple[str, ...]
    """The superclasses that have examples."""
    counts: tuple[int, ...]
    accuracy: tuple[float, ...]
    """[dims], over all examples."""
    fine: tuple[float, ...]
    """[dims]: accuracy of the class itself on the same examples."""
    rejected: tuple[float, ...]
    """[dims]: how often the predicted class has no superclass (the reject class); such a prediction is wrong."""
    each: tuple[tuple[float, ...], ...]
    """[superclasses][dims]."""


def superclass_accuracy(embeddings: EmbeddingSet, predictions: Predictions) -> Superclasses:
    """Grade ``predictions`` of ``embeddings`` by superclass, as the paper's 31-way table does.

    Examples of a class without superclass are left out. A prediction of such a class is the reject class of that
    table: no example has it, so it is always wrong.
    """
    predictions.check_of(embeddings)
    about = embeddings.manifest
    if not about.superclasses:
        raise EmbeddingsError(
            "the embeddings must have superclasses",
            got=f"{embeddings.path} without any",
            cure="write them again with classes=…, superclasses=… and superclass_of=…",
        )
    truth = _superclass_of(predictions.labels, about.superclass_of)
    graded = truth != UNKNOWN
    if not graded.any():
        raise EmbeddingsError(
            "some examples must be of a class that has a superclass",
            got=f"{len(truth)} examples, none of them",
            cure="check superclass_of: −1 means that a class has none",
        )
    truth, said = truth[graded], _superclass_of(predictions.predicted[:, graded], about.superclass_of)
    right, present = said == truth, np.unique(truth)
    return Superclasses(
        about.title, about.dataset, about.split, predictions.by, predictions.dims,
        names=tuple(about.superclasses[one] for one in present),
        counts=tuple(int((truth == one).sum()) for one in present),
        accuracy=tuple(right.mean(axis=1).tolist()),
        fine=tuple(predictions.correct[:, graded].mean(axis=1).tolist()),
        rejected=tuple((said == UNKNOWN).mean(axis=1).tolist()),
        each=tuple(tuple(right[:, truth == one].mean(axis=1).tolist()) for one in present),
    )   # fmt: skip


def _superclass_of(labels: Integers, superclass_of: tuple[int, ...]) -> Integers:
    # One entry more, for what a neighbour of unknown class says: it would read the last class's.
    return np.asarray((*superclass_of, UNKNOWN))[np.where(labels < len(superclass_of), labels, UNKNOWN)]
