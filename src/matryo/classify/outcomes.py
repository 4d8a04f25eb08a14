"""What each dim would say of each row, how sure it is and whether it is right: all that thresholds are chosen from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.results import Result

if TYPE_CHECKING:
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["ALWAYS", "NEVER", "CascadeResult", "Outcomes"]

ALWAYS = 0.0
"""The threshold of a dim that answers every row it is asked."""
NEVER = math.inf
"""The threshold of a dim that answers none: it need not even be computed."""


@dataclass(frozen=True)
class CascadeResult(Result):
    """What a cascade is worth on some rows, beside the last dim alone."""

    kind: ClassVar[str] = "classify"
    count: int
    accuracy: float
    full_accuracy: float
    """Accuracy of the last dim alone."""
    expected_dim: float
    """The mean of the last dim used."""
    cumulative_dim: float
    """The mean of all columns multiplied: separate heads start again at each dim, a tied one does not."""
    dims: tuple[int, ...]
    thresholds: tuple[float | None, ...]
    """[dims − 1]: how sure a row must be to be answered there; None where no row is."""
    shares: tuple[float, ...]
    """[dims]: the share of rows answered at each."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The answers of every dim to the same rows.

    >>> sure = np.array([[0.9, 0.6], [0.8, 0.7]])
    >>> found = Outcomes((8, 16), sure, np.array([[True, False], [True, True]])).measure(np.array([0.75]))
    >>> found.accuracy, found.expected_dim, found.cumulative_dim      # one row stops at 8, the other goes on to 16
    (1.0, 12.0, 16.0)
    """

    dims: tuple[int, ...]
    confidence: Doubles
    """[dims, n]: the softmax probability of the predicted class."""
    correct: Bools
    """[dims, n]: whether that class is the true one."""
    tied: bool = False
    """Whether a dim adds to the sums of the one before, or starts again."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.correct.shape[1])

    def select(self, rows: Any) -> Outcomes:
        """The same for some ``rows`` only (indices or a mask)."""
        return replace(self, confidence=self.confidence[:, rows], correct=self.correct[:, rows])

    def until(self, places: int) -> Outcomes:
        """The same for the first ``places`` dims only: the cascade that stops there at the latest."""
        return replace(
            self, dims=self.dims[:places], confidence=self.confidence[:places], correct=self.correct[:places]
        )

    def exits(self, thresholds: Doubles) -> Integers:
        """[n]: the place among the dims where each row is answered: the first where it is sure, else the last."""
        places = np.full(self.count, len(thresholds))
        for place in reversed(range(len(thresholds))):
            places[self.confidence[place] >= thresholds[place]] = place
        return places

    def right(self, thresholds: Doubles) -> Bools:
        """[n]: whether the cascade's answer is the true one."""
        return np.asarray(self.correct[self.exits(thresholds), np.arange(self.count)])

    def measure(self, thresholds: Doubles) -> CascadeResult:
        """Accuracy and cost on these rows of the cascade with these ``thresholds``."""
        shares = np.bincount(self.exits(thresholds), minlength=len(self.dims)) / self.count
        return CascadeResult(
            count=self.count,
            accuracy=float(self.right(thresholds).mean()),
            full_accuracy=float(self.correct[-1].mean()),
            expected_dim=float(shares @ np.array(self.dims)),
            cumulative_dim=float(shares @ self._columns(thresholds)),
            dims=self.dims,
            thresholds=tuple(None if one == NEVER else one for one in thresholds.tolist()),
            shares=tuple(shares.tolist()),
        )

    def _columns(self, thresholds: Doubles) -> Integers:
        """[dims]: the columns multiplied for a row that is answered there; dims that never answer are skipped."""
        dims = np.array(self.dims)
        return dims if self.tied else np.cumsum(dims * (np.append(thresholds, ALWAYS) != NEVER))
