"""The promise of a plan: the recall that the planner guarantees, and the scores that it saw on the planning queries.

The promise covers queries like those. Their k-th scores travel with the plan, as quantiles, so that a search can tell
when its queries are of another kind; see :mod:`matryo.retrieve.plan.shift`. A promise for several groups of queries
covers every mixture of them.

>>> promise = Promise.of([np.linspace(0.5, 0.9, 500)], recall=0.95, k=10, confidence=0.95)
>>> promise.queries, len(promise.scores[0]), round(promise.medians[0], 2)
((500,), 49, 0.7)
>>> promise.distance(np.linspace(0.5, 0.9, 80)) < 0.03, promise.distance(np.full(80, 0.4))
(True, 0.98)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from matryo.arguments import as_integer, as_number
from matryo.errors import InputError, shown
from matryo.results import as_tuples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.retrieve.vectors.types import Array, Doubles

_PARTS = 50   # the quantiles divide the planning queries into this many parts


@dataclass(frozen=True)
class Promise:
    """A recall that holds, with ``confidence``, in the mean over queries like those of the planner."""

    recall: float
    k: int
    confidence: float
    queries: tuple[int, ...]
    """The number of planning queries in each group, those with equal k-th scores counted once."""
    scores: tuple[tuple[float, ...], ...]
    """For each group, the 1/50, 2/50, … quantiles of the k-th scores that the plan found; empty for exact search."""
    metric: Literal["recall", "mAP"] = "recall"

    def __post_init__(self) -> None:
        object.__setattr__(self, "queries", as_tuples(self.queries))
        object.__setattr__(self, "scores", as_tuples(self.scores))
        cure = "write the file with matryo plan --out"
        as_number(self.recall, "recall", 0, 1, cure=cure)
        as_integer(self.k, "k", 1, cure=cure)
        try:
            counts = len(self.queries) == len(self.scores) and all(count >= 1 for count in self.queries)
            rising = all(len(group) == _PARTS - 1 and bool((np.diff(group) >= 0).all()) for group in self.scores)
        except (TypeError, ValueError):
            counts = rising = False
        if not (counts and rising):
            rule = f"a promise has a number of queries and {_PARTS - 1} rising scores per group"
            raise InputError(rule, got=shown(asdict(self)), cure=cure)

    def __hash__(self) -> int:
        return hash((self.recall, self.queries))   # every search looks up its watch: few fields are enough

    @classmethod
    def of(cls, groups: Sequence[Array], **fields: Any) -> Self:
        """The promise of ``fields`` after groups of planning queries with these k-th scores."""
        scores = [group for group in map(distinct, groups) if len(group)]
        quantiles = tuple(tuple(group[_ranks(len(group)) - 1].tolist()) for group in scores)
        return cls(queries=tuple(map(len, scores)), scores=quantiles, **fields)

    @property
    def medians(self) -> tuple[float, ...]:
        """The median k-th score of each group of planning queries."""
        return tuple(group[_PARTS // 2 - 1] for group in self.scores)

    def distance(self, kth_scores: Array) -> float:
        """How far other k-th scores are distributed from those of the planning queries, 0 to 1.

        For one group, this is the distance of Kolmogorov and Smirnov at the quantiles: the largest difference between
        the shares of queries up to a score. A mixture of groups has a share between those of the groups, so the
        distance from several groups is that from the range of their shares.
        """
        scores = distinct(kth_scores)
        if not len(scores) or not self.scores:
            return 0.0
        at, low, high = self._range
        share = np.searchsorted(scores, at, side="right") / len(scores)
        return float(max(0.0, (share - high).max(), (low - share).max()))

    @cached_property
    def _range(self) -> tuple[Doubles, Doubles, Doubles]:
        """Every quantile, and the smallest and the largest share of a group that scores up to it."""
        at = np.unique(self.scores)
        bounds = [_shares(*group, at) for group in zip(map(np.array, self.scores), self.queries, strict=True)]
        return at, np.min([low for low, _ in bounds], axis=0), np.max([high for _, high in bounds], axis=0)

    def to_dict(self) -> dict[str, Any]:
        """The promise as JSON values."""
        return asdict(self) | {"queries": [*self.queries], "scores": [[*group] for group in self.scores]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild a promise from :meth:`to_dict`."""
        return cls(**fields)


def distinct(kth_scores: Array) -> Array:
    """The finite scores in rising order, each once: a query that is repeated counts once."""
    scores = np.unique(np.asarray(kth_scores, np.float64))
    return scores[np.isfinite(scores)]


def _ranks(count: int) -> Array:
    """The ranks of the quantiles among ``count`` scores, from 1."""
    return -(-np.arange(1, _PARTS) * count // _PARTS)


def _shares(quantiles: Doubles, count: int, at: Doubles) -> tuple[Doubles, Doubles]:
    """Bounds on the share of a group that scores up to each of ``at``; they are equal at its own quantiles."""
    shares = np.array([0, *_ranks(count), count]) / count
    below = np.searchsorted(quantiles, at, side="right")
    own = (below > 0) & (quantiles[np.maximum(below, 1) - 1] == at)
    return shares[below], np.where(own, shares[below], shares[np.minimum(below + 1, _PARTS)])
