"""Retrieval metrics over ranked neighbours, as defined in the paper (appendix "Image Retrieval").

``relevant`` [queries, k], in rank order: whether the neighbour at that rank has the class of the query.
``totals`` [queries]: the number of such items in the database, which is R in
AP@k = Σ_{i ≤ k} P@i · rel_i / min(k, R).

>>> relevant = relevance(np.array([[3, 5, 3, 5]]), np.array([3]))
>>> relevant
array([[ True, False,  True, False]])
>>> hit_rate(relevant, 1), precision(relevant, 4), recall(relevant, np.array([4]), 4)
(1.0, 0.5, 0.5)
>>> average_precision(relevant, np.array([2]), 4)      # (1/1 + 2/3) / 2
array([0.83333333])

For graded relevance, ``grades`` [queries, k] replace ``relevant``, and ``best`` [queries, r] are the grades of a
perfect ranking. Grades below 0 count as 0.

>>> round(ndcg(np.array([[0.0, 2.0]]), np.array([[2.0, 1.0]]), 2), 6)      # (2 / log₂3) / (2 + 1 / log₂3)
0.479625
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError

if TYPE_CHECKING:
    from matryo.arrays import Bools, Doubles
    Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
    Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]
    Ranked = TypeVar("Ranked", Bools, Integers, Floats)


@checked
def relevance(retrieved: Integers, labels: Integers) -> Bools:
    """Return whether each of the ``retrieved`` labels [queries, k] equals the query's label in ``labels`` [queries]."""
    if retrieved.ndim != 2 or labels.shape != retrieved.shape[:1]:
        raise InputError(
            "there must be one row of retrieved labels for each query",
            got=f"retrieved {retrieved.shape}, labels {labels.shape}",
            cure="pass labels[indices] as [queries, k]",
        )
    return np.asarray(retrieved == labels[:, None])


@checked
def hit_rate(relevant: Bools, k: int) -> float:
    """Return the share of queries with at least one relevant item among the first ``k``.

    Image–text papers call this recall@k.
    """
    return float(_first(relevant, k).any(axis=1).mean())


@checked
def precision(relevant: Bools, k: int) -> float:
    """Return P@k: the share of relevant items among the first ``k``, averaged over queries."""
    return float(_first(relevant, k).mean())


@checked
def recall(relevant: Bools, totals: Integers, k: int) -> float:
    """Return recall@k: the share of the relevant items that are among the first ``k``, averaged over queries."""
    return float((_counted(relevant, totals, k).sum(axis=1) / totals).mean())


@checked
def average_precision(relevant: Bools, totals: Integers, k: int) -> Doubles:
    """Return AP@k of each query. Queries without any relevant item must be excluded before."""
    hits = _counted(relevant, totals, k)
    at_rank = np.cumsum(hits, axis=1, dtype=np.float64) / np.arange(1, k + 1)
    return np.asarray((at_rank * hits).sum(axis=1) / np.minimum(k, totals))


@checked
def mean_average_precision(relevant: Bools, totals: Integers, k: int) -> float:
    """Return mAP@k: the mean of :func:`average_precision` over the queries."""
    return float(average_precision(relevant, totals, k).mean())


@checked
def mean_reciprocal_rank(relevant: Bools, k: int) -> float:
    """Return MRR@k: the mean of 1 / rank of the first relevant item, or 0 if none is among the first ``k``."""
    hits = _first(relevant, k)
    return float((hits.any(axis=1) / (hits.argmax(axis=1) + 1)).mean())


@checked
def ndcg(grades: Floats, best: Floats, k: int) -> float:
    """Return nDCG@k as in trec_eval and BEIR: Σ_{i ≤ k} grade_i / log₂(i + 1), divided by that of a perfect ranking.

    ``best`` holds the k highest grades of each query (or all), largest first, padded with zeros.
    """
    matrix = best if best.ndim == 2 else np.empty((0, 1))
    gains, ideal = (_discounted(_first(grades, k)), _discounted(matrix[:, :k]))
    if matrix.shape[:1] != grades.shape[:1] or not (ideal > 0).all() or (gains > ideal * (1 + 1e-9)).any():
        raise InputError(
            "best must hold the highest grades of each query, largest first, with at least one above 0",
            got=f"{best.shape} best grades for {grades.shape}",
            cure="exclude queries without a relevant item",
        )
    return float((gains / ideal).mean())


@checked
def majority(retrieved: Integers, k: int) -> Integers:
    """Return the k-NN prediction: the most frequent of the ``k`` nearest ``retrieved`` labels [queries, n].

    If several classes have the most votes, the class of the nearest neighbour among them wins. Negative labels are
    unknown classes and do not vote; without votes the prediction is −1.

    >>> majority(np.array([[4, 7, 7], [4, 7, 9], [-1, -1, 9], [-1, -1, -1]]), k=3)
    array([ 7,  4,  9, -1])
    """
    voters = _first(retrieved, k)
    votes = (voters[:, :, None] == voters[:, None, :]).sum(axis=2) * (voters >= 0)
    winners = np.take_along_axis(voters, votes.argmax(axis=1)[:, None], axis=1)[:, 0]   # the nearest of equals
    return np.asarray(np.maximum(winners, -1))


def _discounted(grades: Floats) -> Doubles:
    gains = np.maximum(np.asarray(grades, np.float64), 0)
    return np.asarray((gains / np.log2(np.arange(2, gains.shape[1] + 2))).sum(axis=1))


def _counted(relevant: Bools, totals: Integers, k: int) -> Bools:
    hits = _first(relevant, k)
    if totals.shape != relevant.shape[:1] or (totals < 1).any() or (totals < hits.sum(axis=1)).any():
        raise InputError(
            "totals must hold the number of relevant items per query: at least 1, and not fewer than were found",
            got=f"{totals.shape} totals from {totals.min(initial=0)}",
            cure="exclude queries whose class is not in the database",
        )
    return hits


def _first(ranked: Ranked, k: int) -> Ranked:
    if ranked.ndim != 2 or len(ranked) == 0 or not 1 <= k <= ranked.shape[1]:
        raise InputError(
            "k must lie in 1 … the number of neighbours, and there must be a query",
            got=f"k={k}, neighbours {ranked.shape}",
            cure="retrieve more neighbours, or use a smaller k",
        )
    return ranked[:, :k]
