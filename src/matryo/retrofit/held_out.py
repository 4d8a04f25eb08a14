"""The quality of a map at each dim on held-out queries: one number per query, to compare two maps in pairs.

==========  =====================================================================================================
``recall``  the share of the true ``k`` nearest, by all columns, among the ``shortlist`` nearest by the first m
``labels``  the share of the ``k`` nearest by the first m columns that have the label of the query
``ndcg``    nDCG@k of the nearest by the first m columns, with the rows that are relevant to the query
==========  =====================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from matryo.nesting import Nesting, truncate
from matryo.retrofit.correction import Correction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Array, Bools, Doubles, Floats, Integers

Quality = Literal["recall", "labels", "ndcg"]
Metric = Literal["cosine", "ip", "l2"]
_TINY = np.finfo(np.float32).tiny
_TOGETHER = 256   # queries that are scored together


@dataclass(frozen=True, eq=False)
class Rung:
    """A step of the ladder: an orthogonal map, perhaps around a mean; only the adaptor adds a correction to it."""

    name: str
    axes: Doubles
    """[d, d]: column j is the direction of the j-th output."""
    mean: Doubles | None = None
    """[d], subtracted before the rotation; None for a map that keeps every full-dim score."""
    correction: Correction | None = None
    """Added to the rotated vectors."""

    def apply(self, vectors: Array, dim: int | None = None, *, normalize: bool = False) -> Floats:
        """Return the first ``dim`` outputs of rows; ``normalize`` scales them to norm 1 before anything is added."""
        rows = np.asarray(vectors, np.float32)
        if self.mean is not None or self.correction is not None:
            rows = truncate(rows, rows.shape[1], normalize)
        if self.mean is not None:
            rows = rows - self.mean.astype(np.float32)
        if self.correction is not None:
            turned = rows @ self.axes.astype(np.float32)
            return np.asarray((turned + self.correction.apply(turned))[:, :dim])
        return np.asarray(rows @ self.axes[:, :dim].astype(np.float32))


@dataclass(frozen=True, eq=False)
class Held:
    """Held-out queries, and what is right for each of them in a database of rows."""

    database: Floats
    queries: Floats
    metric: Metric
    k: int
    shortlist: int
    quality: Quality
    right: Array
    """recall: the true nearest rows [queries, k]; otherwise which rows are relevant, booleans [queries, rows]."""

    @classmethod
    def by_recall(cls, database: Floats, queries: Floats, metric: Metric, k: int, shortlist: int) -> Held:
        """Queries whose true neighbours are those of all columns."""
        nesting, k = Nesting([database.shape[1]]), min(k, len(database))
        parts = [queries[start : start + _TOGETHER] for start in range(0, len(queries), _TOGETHER)]
        found = [_best(next(_scores(database, part, nesting, metric)), k) for part in parts]
        right = np.concatenate([np.empty((0, k), np.int64), *found])
        return cls(database, queries, metric, k, min(shortlist, len(database)), "recall", right)

    @classmethod
    def by_relevance(cls, database: Floats, queries: Floats, metric: Metric, k: int, right: Bools, q: Quality) -> Held:
        """Queries with relevant rows."""
        k = min(k, len(database))
        return cls(database, queries, metric, k, k, q, right)

    @property
    def count(self) -> int:
        """The number of queries."""
        return len(self.queries)

    def part(self, queries: Integers) -> Held:
        """These measurements for some of the queries."""
        return replace(self, queries=self.queries[queries], right=self.right[queries])

    def worth(self, rung: Rung, dims: Sequence[int]) -> Doubles:
        """The quality per query and dim, [queries, dims]."""
        unit = self.metric == "cosine"
        nesting = Nesting(dims)
        rows = rung.apply(self.database, nesting.dim, normalize=unit)
        queries = rung.apply(self.queries, nesting.dim, normalize=unit)
        found = np.empty((len(queries), len(nesting)))
        for start in range(0, len(queries), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            for place, scores in enumerate(_scores(rows, queries[part], nesting, self.metric)):
                found[part, place] = self._worth(scores, self.right[part])
        return found

    def _worth(self, scores: Floats, right: Array) -> Doubles:
        best = _best(scores, self.shortlist)
        if self.quality == "recall":
            mark = np.zeros(scores.shape, np.bool_)
            np.put_along_axis(mark, best, True, axis=1)
            return np.asarray(np.take_along_axis(mark, right, axis=1).mean(axis=1))
        relevant = np.take_along_axis(right, best, axis=1)
        if self.quality == "labels":
            return np.asarray(relevant.mean(axis=1))
        discounts = 1 / np.log2(np.arange(2, self.k + 2))
        ideal = np.cumsum(discounts)[np.clip(right.sum(axis=1), 1, self.k) - 1]
        return np.asarray((relevant * discounts).sum(axis=1) / ideal)


def _scores(rows: Floats, queries: Floats, nesting: Nesting, metric: Metric) -> Iterator[Floats]:
    """Yield the scores of all rows at each dim, from running sums over blocks. Scores only order the rows."""
    sums = np.zeros((len(queries), len(rows)), np.float32)
    squares = np.zeros(len(rows), np.float32)
    for low, high in nesting.blocks:
        sums += queries[:, low:high] @ rows[:, low:high].T
        squares += np.square(rows[:, low:high]).sum(axis=1)
        if metric == "cosine":
            yield (sums / np.maximum(np.sqrt(squares), _TINY)).astype(np.float32)
        else:
            yield (2 * sums - squares).astype(np.float32) if metric == "l2" else sums


def _best(scores: Floats, count: int) -> Integers:
    """The rows with the highest scores, best first; equal scores in the order of the rows."""
    count = min(count, scores.shape[1])
    chosen = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    chosen.sort(axis=1)
    order = np.argsort(-np.take_along_axis(scores, chosen, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(chosen, order, axis=1))
