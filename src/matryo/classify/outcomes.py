"""The confidence and correctness of each dim on each row, from which thresholds are chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.results import Result
from matryo.tables import percent

if TYPE_CHECKING:
    from matryo.arrays import Bools, Doubles, Integers

ALWAYS = 0.0
"""The threshold of a dim that answers every row that reaches it."""
NEVER = math.inf
"""The threshold of a dim that answers no row, so that it need not be computed."""


@dataclass(frozen=True)
class CascadeResult(Result):
    """Accuracy and cost of a cascade on some rows, and the accuracy of the last dim alone."""

    kind: ClassVar[str] = "classify"
    titles: ClassVar[dict[str, str]] = {"shares": "answered"}
    count: int
    accuracy: float
    full_accuracy: float
    """Accuracy of the last dim alone."""
    expected_dim: float
    """The mean of the last dim used."""
    cumulative_dim: float
    """The mean number of columns multiplied: separate heads start again at each dim, a tied head does not."""
    dims: tuple[int, ...]
    thresholds: tuple[float | None, ...]
    """[dims − 1]: the confidence required at each dim but the last; None where no row is answered."""
    shares: tuple[float, ...]
    """[dims]: the share of rows answered at each."""

    @property
    def about(self) -> str:
        """Accuracy and expected dim."""
        cascade = f"accuracy {percent(self.accuracy)} at expected dim {self.expected_dim:.1f}"
        return f"cascade on {self.count:,} rows, {cascade}; {percent(self.full_accuracy)} at dim {self.dims[-1]}"


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The confidence and correctness of every dim on the same rows.

    >>> confidence = np.array([[0.9, 0.6], [0.8, 0.7]])
    >>> outcomes = Outcomes((8, 16), confidence, np.array([[True, False], [True, True]]))
    >>> result = outcomes.measure(np.array([0.75]))
    >>> result.accuracy, result.expected_dim, result.cumulative_dim      # one row stops at 8, the other at 16
    (1.0, 12.0, 16.0)
    """

    dims: tuple[int, ...]
    confidence: Doubles
    """[dims, n]: the softmax probability of the predicted class."""
    correct: Bools
    """[dims, n]: whether that class is the true one."""
    tied: bool = False
    """Whether a dim adds to the sums of the previous dim instead of starting again."""

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.correct.shape[1])

    def select(self, rows: Any) -> Outcomes:
        """Return the outcomes of some ``rows`` (indices or a mask)."""
        return replace(self, confidence=self.confidence[:, rows], correct=self.correct[:, rows])

    def until(self, places: int) -> Outcomes:
        """Return the outcomes of the first ``places`` dims, for a cascade that stops there at the latest."""
        return replace(
            self, dims=self.dims[:places], confidence=self.confidence[:places], correct=self.correct[:places]
        )

    def exits(self, thresholds: Doubles) -> Integers:
        """Return [n]: the index of the first dim that reaches its threshold for each row, else of the last."""
        places = np.full(self.count, len(thresholds))
        for place in reversed(range(len(thresholds))):
            places[self.confidence[place] >= thresholds[place]] = place
        return places

    def right(self, thresholds: Doubles) -> Bools:
        """Return [n]: whether the cascade's answer is right."""
        return np.asarray(self.correct[self.exits(thresholds), np.arange(self.count)])

    def measure(self, thresholds: Doubles) -> CascadeResult:
        """Return accuracy and cost of the cascade with these ``thresholds`` on these rows."""
        shares = np.bincount(self.exits(thresholds), minlength=len(self.dims)) / self.count
        return CascadeResult(
            count=self.count,
            accuracy=float(self.right(thresholds).mean()),
            full_accuracy=float(self.correct[-1].mean()),
            expected_dim=float(shares @ np.array(self.dims)),
            cumulative_dim=float(shares @ self._columns(thresholds)),
            dims=self.dims,
            thresholds=tuple(None if t == NEVER else t for t in thresholds.tolist()),
            shares=tuple(shares.tolist()),
        )

    def _columns(self, thresholds: Doubles) -> Integers:
        """Return [dims]: the columns multiplied for a row answered at each; dims that never answer are skipped."""
        dims = np.array(self.dims)
        return dims if self.tied else np.cumsum(dims * (np.append(thresholds, ALWAYS) != NEVER))
