"""Trends: accuracy per class as the dim grows, and the accuracy of perfect routing (the oracle).

The paper sorts classes into four trends (appendix "Analysis of Model Disagreement") without defining them. Here they
are defined exactly and exclude each other. With r the number of a class's correct examples at each dim:

- **up**: r never falls; a constant r counts too.
- **up, then a dip**: r rises, then falls, and does not turn again; the falls lose one or two examples in total, the
  paper's "one or two misclassifications per class".
- **down, then up**: r falls, then rises, and does not turn again.
- **no clear trend**: anything else, including a class that only falls, or falls by more than two after rising.

>>> [trend_of(right) for right in ([3, 3, 5], [3, 5, 5, 4], [5, 3, 4], [3, 5, 2], [3, 4, 3, 4])]
['up', 'up, then a dip', 'down, then up', 'no clear trend', 'no clear trend']
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.evaluation.predictions import class_name
from matryo.evaluation.protocol import Protocol
from matryo.results import SplitResult
from matryo.tables import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.predictions import Predictions

TRENDS = ("up", "up, then a dip", "down, then up", "no clear trend")
_DIP = 2   # examples


@dataclass(frozen=True)
class Trends(SplitResult):
    """Accuracy per class and dim, the trend of each class, and the dim at which examples are first right."""

    kind: ClassVar[str] = "trends"
    titles: ClassVar[dict[str, str]] = {"accuracy": "accuracy", "first_right": "first right"}
    by: str
    dims: tuple[int, ...]
    accuracy: tuple[float, ...]
    """[dims]."""
    classes: tuple[str, ...]
    """The classes with examples, by name (or number)."""
    class_counts: tuple[int, ...]
    class_accuracy: tuple[tuple[float, ...], ...]
    """[classes, dims]."""
    trend: tuple[str, ...]
    """[classes]: one of TRENDS."""
    first_right: tuple[float, ...]
    """[dims]: the share of the examples that are first right at this dim."""
    always_wrong: float
    oracle: float
    """The share right at some dim: the accuracy of perfect routing."""

    @property
    def about(self) -> str:
        """The oracle accuracy, and how many classes follow each trend."""
        counts = ", ".join(f"{self.trend.count(trend)} {trend}" for trend in TRENDS)
        return f"trends by {self.by}; oracle {percent(self.oracle)}; classes: {counts}"


@checked
def trends(embeddings: EmbeddingSet, predictions: Predictions) -> Trends:
    """Return what ``predictions`` of ``embeddings`` gain and lose from dim to dim, by class and by example."""
    predictions.check_of(embeddings)
    correct = predictions.correct
    ever = np.asarray(correct.any(axis=0))
    classes, members, counts = np.unique(predictions.labels, return_inverse=True, return_counts=True)
    right = np.stack([np.bincount(members[row], minlength=len(classes)) for row in correct], axis=1)
    first = np.bincount(correct.argmax(axis=0)[ever], minlength=len(correct))
    return Trends(
        *embeddings.manifest.origin, predictions.by, predictions.dims,
        accuracy=tuple(correct.mean(axis=1).tolist()),
        classes=tuple(class_name(embeddings, label) for label in classes.tolist()),
        class_counts=tuple(counts.tolist()),
        class_accuracy=tuple(map(tuple, (right / counts[:, None]).tolist())),
        trend=tuple(map(trend_of, right.tolist())),
        first_right=tuple((first / len(ever)).tolist()),
        always_wrong=float((~ever).mean()),
        oracle=float(ever.mean()),
    )   # fmt: skip


PROTOCOL = Protocol("trends", lambda subject: starmap(trends, subject.predictions))


def trend_of(right: Sequence[int]) -> str:
    """Return the trend (one of TRENDS) of the number of correct examples of a class from dim to dim."""
    steps = np.diff(right)
    steps = steps[steps != 0]
    rises = steps > 0
    turns = int((rises[1:] != rises[:-1]).sum())
    if rises.all():
        return TRENDS[0]
    if turns == 1 and rises[0] and -steps[~rises].sum() <= _DIP:
        return TRENDS[1]
    if turns == 1 and not rises[0]:
        return TRENDS[2]
    return TRENDS[3]
