"""Retrieval metrics over ranked neighbours, as the paper defines them (appendix "Image Retrieval").

``relevant`` is [queries, k] in rank order: whether the neighbour at that place has the query's class.
``totals`` is how many such items the database holds for each query: the R of
AP@k = Σ_{i ≤ k} P@i · rel_i / min(k, R).

>>> relevant = relevance(np.array([[3, 5, 3, 5]]), np.array([3]))
>>> relevant
array([[ True, False,  True, False]])
>>> hit_rate(relevant, 1), precision(relevant, 4), recall(relevant, np.array([4]), 4)
(1.0, 0.5, 0.5)
>>> average_precision(relevant, np.array([2]), 4)      # (1/1 + 2/3) / 2
array([0.83333333])

Where relevance is graded, ``grades`` [queries, k] stand in its place, and ``best`` [queries, r] are the grades that a
perfect ranking would begin with. Grades of 0 or less are worth nothing.

>>> round(ndcg(np.array([[0.0, 2.0]]), np.array([[2.0, 1.0]]), 2), 6)      # (2 / log₂3) / (2 + 1 / log₂3)
0.479625
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matryo.errors import InputError

if TYPE_CHECKING:
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
    Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]
    Ranked = TypeVar("Ranked", Bools, Integers, Floats)

__all__ = [
    "average_precision",
    "hit_rate",
    "majority",
    "mean_average_precision",
    "mean_reciprocal_rank",
    "ndcg",
    "precision",
    "recall",
    "relevance",
]


def relevance(retrieved: Integers, labels: Integers) -> Bools:
    """Which of the ``retrieved`` labels [queries, k] equal the query's own of ``labels`` [queries]."""
    if retrieved.ndim != 2 or labels.shape != retrieved.shape[:1]:
        raise InputError(
            "there must be one row of retrieved labels for each query",
            got=f"retrieved {retrieved.shape}, labels {labels.shape}",
            cure="pass labels[indices] as [queries, k]",
        )
    return np.asarray(retrieved == labels[:, None])


def hit_rate(relevant: Bools, k: int) -> float:
    """Top-k: the share of queries with at least one relevant item among the first ``k``.

    Papers on images and texts call it recall@k.
    """
    return float(_first(relevant, k).any(axis=1).mean())


def precision(relevant: Bools, k: int) -> float:
    """P@k: the share of relevant items among the first ``k``, over all queries."""
    return float(_first(relevant, k).mean())


def recall(relevant: Bools, totals: Integers, k: int) -> float:
    """Recall@k: the share of a query's relevant items that are among the first ``k``, in the mean over queries."""
    return float((_counted(relevant, totals, k).sum(axis=1) / totals).mean())


def average_precision(relevant: Bools, totals: Integers, k: int) -> Doubles:
    """AP@k of each query; one without any relevant item has none, so such queries must be left out before."""
    found = _counted(relevant, totals, k)
    at_rank = np.cumsum(found, axis=1, dtype=np.float64) / np.arange(1, k + 1)
    return np.asarray((at_rank * found).sum(axis=1) / np.minimum(k, totals))


def mean_average_precision(relevant: Bools, totals: Integers, k: int) -> float:
    """mAP@k: the mean of :func:`average_precision` over the queries."""
    return float(average_precision(relevant, totals, k).mean())


def mean_reciprocal_rank(relevant: Bools, k: int) -> float:
    """MRR@k: one over the place of the first relevant item, 0 where none is among the first ``k``, in the mean."""
    found = _first(relevant, k)
    return float((found.any(axis=1) / (found.argmax(axis=1) + 1)).mean())


def ndcg(grades: Floats, best: Floats, k: int) -> float:
    """nDCG@k as trec_eval and BEIR have it: Σ_{i ≤ k} grade_i / log₂(i + 1), over that of a perfect ranking.

    ``best`` needs the highest grades of each query, largest first, zeros behind: k of them, or all there are.
    """
    gains, ideal = (_discounted(_first(grades, k)), _discounted(best[:, :k]))
    if best.shape[:1] != grades.shape[:1] or not (ideal > 0).all() or (gains > ideal * (1 + 1e-9)).any():
        raise InputError(
            "each query needs its best grades, largest first: one above 0 at least, and those found",
            got=f"{best.shape} best grades for {grades.shape}",
            cure="leave out the queries without anything relevant",
        )
    return float((gains / ideal).mean())


def majority(retrieved: Integers, k: int) -> Integers:
    """k-NN: the class that most of the first ``k`` ``retrieved`` labels [queries, n] name, nearest first.

    Of classes with equally many votes, the one whose nearest neighbour is nearest wins. A negative label is an
    unknown class and casts no vote; without any vote the answer is −1.

    >>> majority(np.array([[4, 7, 7], [4, 7, 9], [-1, -1, 9], [-1, -1, -1]]), k=3)
    array([ 7,  4,  9, -1])
    """
    voters = _first(retrieved, k)
    votes = (voters[:, :, None] == voters[:, None, :]).sum(axis=2) * (voters >= 0)
    winners = np.take_along_axis(voters, votes.argmax(axis=1)[:, None], axis=1)[:, 0]   # the first of equal ones
    return np.asarray(np.maximum(winners, -1))


def _discounted(grades: Floats) -> Doubles:
    worth = np.maximum(np.asarray(grades, np.float64), 0)
    return np.asarray((worth / np.log2(np.arange(2, worth.shape[1] + 2))).sum(axis=1))


def _counted(relevant: Bools, totals: Integers, k: int) -> Bools:
    found = _first(relevant, k)
    if totals.shape != relevant.shape[:1] or (totals < 1).any() or (totals < found.sum(axis=1)).any():
        raise InputError(
            "each query needs its number of relevant items in the database: at least 1, and those found",
            got=f"{totals.shape} totals from {totals.min(initial=0)}",
            cure="leave out the queries whose class the database lacks",
        )
    return found


def _first(ranked: Ranked, k: int) -> Ranked:
    if ranked.ndim != 2 or len(ranked) == 0 or not 1 <= k <= ranked.shape[1]:
        raise InputError(
            "k must lie in 1 … the number of neighbours, with at least one query",
            got=f"k={k}, neighbours {ranked.shape}",
            cure="retrieve more neighbours, or ask for a smaller k",
        )
    return ranked[:, :k]
