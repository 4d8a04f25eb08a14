"""Trials: the quality of each candidate for every held-out query, with and without a re-rank from full vectors.

==========  =======================================================================================================
``recall``  the share of the true ``k`` nearest, by full vectors, among the ``k`` nearest by the codes
``ndcg``    nDCG@k of the nearest by the codes, with the rows that are relevant to the query
==========  =======================================================================================================

With a re-rank, the codes find ``shortlist`` rows and full vectors order them: recall is then the share of the true
``k`` nearest among the shortlist.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.compress.codes import scoring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Bools, Doubles, Floats, Integers
    from matryo.retrieve.compress.codes.fitted import Fitted

_TOGETHER = 128   # queries that are scored together


@dataclass(frozen=True, eq=False)
class Trial:
    """Held-out queries and the rows that they search."""

    database: Floats
    queries: Floats
    metric: str
    k: int
    shortlist: int
    relevant: tuple[Integers, ...] | None = None
    """The relevant rows of each query; None if the nearest rows by full vectors count."""

    @cached_property
    def nearest(self) -> Integers:
        """The nearest rows of each query by full vectors."""
        parts = [self.queries[start : start + _TOGETHER] for start in range(0, len(self.queries), _TOGETHER)]
        return np.concatenate([self._nearest(part) for part in parts])

    def worth(self, fitted: Fitted) -> Doubles:
        """The quality of each query without and with a re-rank, [queries, 2]."""
        codes = fitted.codec.encode(fitted.coordinates(self.database))
        found = np.empty((len(self.queries), 2))
        for start in range(0, len(self.queries), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            values = scoring.scores(fitted, self.metric, self.queries[part], codes)
            found[part] = self._worth(scoring.best_of(values, self.shortlist), part)
        return found

    def of_full_vectors(self) -> Doubles:
        """The quality of each query with full vectors."""
        return self._worth(self.nearest, slice(None))[:, 0]

    def _worth(self, best: Integers, part: slice) -> Doubles:
        if self.relevant is None:
            places = _marked(best, self.nearest[part, : self.k], len(self.database))
            found = np.stack([places[:, : self.k].sum(axis=1), places.sum(axis=1)], axis=1)
            return np.asarray(found / min(self.k, best.shape[1]), np.float64)
        ordered = scoring.rerank(self.metric, self.queries[part], best, self.database, self.k)[0]
        relevant = self.relevant[part]
        return np.stack([ndcg(rows, relevant, self.k) for rows in (best[:, : self.k], ordered)], axis=1)

    def _nearest(self, queries: Floats) -> Integers:
        """The nearest rows by full vectors."""
        products = queries @ self.database.T
        if self.metric == "l2":
            products = 2 * products - np.square(self.database).sum(axis=1)
        return scoring.best_of(products, self.shortlist)


def ndcg(ranked: Integers, relevant: Sequence[Integers], k: int) -> Doubles:
    """nDCG@k of ranked rows [queries, k]; relevance is yes or no."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discounts)
    found = np.zeros(len(ranked))
    for place, (rows, right) in enumerate(zip(ranked, relevant, strict=True)):
        gains = discounts[: len(rows)][np.isin(rows, right)]
        found[place] = gains.sum() / ideal[min(len(right), k) - 1] if len(right) else 0
    return found


def _marked(best: Integers, right: Integers, count: int) -> Bools:
    """Which of the ``best`` rows of each query are right."""
    marks = np.zeros((len(best), count), np.bool_)
    np.put_along_axis(marks, right, True, axis=1)
    return np.asarray(np.take_along_axis(marks, best, axis=1))
