"""The promise of a plan: the recall that the planner guarantees, and the scores that it saw on the planning queries.

The promise covers queries like those. Their k-th scores travel with the plan, as quantiles, so that a search can tell
when its queries are of another kind; see :mod:`matryo.retrieve.plan.shift`.

>>> promise = Promise.of(np.linspace(0.5, 0.9, 500), recall=0.95, k=10, confidence=0.95)
>>> promise.queries, len(promise.scores), round(promise.median, 2)
(500, 49, 0.7)
>>> promise.distance(np.linspace(0.5, 0.9, 80)) < 0.03, promise.distance(np.full(80, 0.4))
(True, 0.98)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from matryo.arguments import as_integer, as_number
from matryo.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matryo.retrieve.vectors.types import Array

_PARTS = 50   # the quantiles divide the planning queries into this many parts


@dataclass(frozen=True)
class Promise:
    """A recall that holds, with ``confidence``, in the mean over queries like those of the planner."""

    recall: float
    k: int
    confidence: float
    queries: int
    """The number of planning queries, those with equal k-th scores counted once."""
    scores: tuple[float, ...]
    """The quantiles of the k-th scores that the plan found for them, at 1/50, 2/50, …; none for exact search."""
    metric: Literal["recall", "mAP"] = "recall"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", tuple(self.scores))
        cure = "write the file with matryo plan --out"
        as_number(self.recall, "recall", 0, 1, cure=cure)
        as_integer(self.k, "k", 1, cure=cure)
        as_integer(self.queries, "queries", 0, cure=cure)
        try:
            rising = bool((np.diff(self.scores) >= 0).all())   # false for NaN
        except (TypeError, ValueError):
            rising = False
        if not rising or len(self.scores) != (_PARTS - 1 if self.queries else 0):
            raise InputError(f"a promise has {_PARTS - 1} rising scores", got=shown(self.scores), cure=cure)

    def __hash__(self) -> int:
        return hash((self.recall, self.queries, self.scores[:1]))   # every search looks up its watch: few are enough

    @classmethod
    def of(cls, kth_scores: Array, **fields: Any) -> Self:
        """The promise of ``fields`` after planning queries with these k-th scores."""
        scores = distinct(kth_scores)
        quantiles = tuple(scores[ranks(len(scores)) - 1].tolist()) if len(scores) else ()
        return cls(queries=len(scores), scores=quantiles, **fields)

    @property
    def median(self) -> float | None:
        """The median k-th score of the planning queries; None for exact search."""
        return self.scores[_PARTS // 2 - 1] if self.scores else None

    def distance(self, kth_scores: Array) -> float:
        """How far other k-th scores are distributed from those of the planning queries, 0 to 1.

        The distance is that of Kolmogorov and Smirnov at the quantiles: the largest difference between the shares of
        queries up to a score.
        """
        scores = distinct(kth_scores)
        if not len(scores) or not self.queries:
            return 0.0
        share = np.searchsorted(scores, self.scores, side="right") / len(scores)
        return float(np.abs(share - ranks(self.queries) / self.queries).max())

    def to_dict(self) -> dict[str, Any]:
        """The promise as JSON values."""
        return asdict(self) | {"scores": list(self.scores)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild a promise from :meth:`to_dict`."""
        return cls(**fields)


def distinct(kth_scores: Array) -> Array:
    """The finite scores in rising order, each once: a query that is repeated counts once."""
    scores = np.unique(np.asarray(kth_scores, np.float64))
    return scores[np.isfinite(scores)]


def ranks(count: int) -> Array:
    """The ranks of the quantiles among ``count`` scores, from 1.

    >>> ranks(100)[:3].tolist(), ranks(10)[-3:].tolist()
    ([2, 4, 6], [10, 10, 10])
    """
    return -(-np.arange(1, _PARTS) * count // _PARTS)
