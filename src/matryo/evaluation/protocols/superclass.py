"""Superclass accuracy: whether the predicted class belongs to the right superclass."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError
from matryo.evaluation.protocol import Protocol
from matryo.results import SplitResult

if TYPE_CHECKING:
    from matryo.arrays import Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.predictions import Predictions


@dataclass(frozen=True)
class Superclasses(SplitResult):
    """Superclass accuracy by dim, over the examples whose class has a superclass."""

    kind: ClassVar[str] = "superclass"
    titles: ClassVar[dict[str, str]] = {"accuracy": "superclass", "fine": "class", "rejected": "rejected"}
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
    """[dims]: the share of predicted classes without a superclass (the reject class), which are wrong."""
    each: tuple[tuple[float, ...], ...]
    """[superclasses, dims]."""

    @property
    def about(self) -> str:
        """The classifier and the number of superclasses."""
        return f"accuracy of the {self.by} on {len(self.names)} superclasses"


@checked
def superclass_accuracy(embeddings: EmbeddingSet, predictions: Predictions) -> Superclasses:
    """Return the accuracy of ``predictions`` of ``embeddings`` by superclass, as in the paper's 31-way table.

    Examples of a class without a superclass are excluded. A prediction of such a class counts as the reject class of
    that table, which is always wrong.
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
            got=f"{len(truth)} examples without one",
            cure="check superclass_of, where −1 means that a class has none",
        )
    truth, predicted = truth[graded], _superclass_of(predictions.predicted[:, graded], about.superclass_of)
    right, present = predicted == truth, np.unique(truth)
    return Superclasses(
        *about.origin, predictions.by, predictions.dims,
        names=tuple(about.superclasses[number] for number in present),
        counts=tuple(int((truth == number).sum()) for number in present),
        accuracy=tuple(right.mean(axis=1).tolist()),
        fine=tuple(predictions.correct[:, graded].mean(axis=1).tolist()),
        rejected=tuple((predicted == UNKNOWN).mean(axis=1).tolist()),
        each=tuple(tuple(right[:, truth == number].mean(axis=1).tolist()) for number in present),
    )   # fmt: skip


PROTOCOL = Protocol("superclass", lambda subject: starmap(superclass_accuracy, subject.predictions))


def _superclass_of(labels: Integers, superclass_of: tuple[int, ...]) -> Integers:
    # The extra last entry is for neighbours of unknown class (−1), which would otherwise get that of the last class.
    return np.asarray((*superclass_of, UNKNOWN))[np.where(labels < len(superclass_of), labels, UNKNOWN)]
