"""Retrieval metrics: examples worked by hand, plain loops in float64, and what must hold for any ranking."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matryo.errors import InputError
from matryo.metrics import (
    average_precision,
    hit_rate,
    majority,
    mean_average_precision,
    mean_reciprocal_rank,
    ndcg,
    precision,
    recall,
    relevance,
)

quick = settings(deadline=None, max_examples=80)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 8)))
    relevant = draw(hnp.arrays(np.bool_, shape))
    more = draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, 9)))
    return relevant, np.maximum(relevant.sum(1) + more, 1), draw(st.integers(1, shape[1]))


def naive_ap(row: list[bool], total: int, k: int) -> Fraction:
    score = Fraction(0)
    for i in range(1, k + 1):
        if row[i - 1]:
            score += Fraction(sum(row[:i]), i)
    return score / min(k, total)


@pytest.mark.parametrize(
    ("row", "total", "k", "expected"),
    [
        ([1, 1, 1], 3, 3, 1),
        ([1, 1, 1], 50, 3, 1),                                # more relevant items than k: still perfect
        ([1, 0, 1, 0], 2, 4, (1 + 2 / 3) / 2),
        ([0, 1, 0, 1], 2, 4, (1 / 2 + 2 / 4) / 2),
        ([0, 0, 0, 1], 1, 4, 1 / 4),
        ([0, 0, 0, 1], 1, 3, 0),
        ([1, 0, 0, 0], 4, 4, 1 / 4),
        ([1, 0, 1, 1, 0], 3, 5, (1 + 2 / 3 + 3 / 4) / 3),
        ([1, 0, 0, 0, 0], 1, 5, 1),                           # the one item there is, found first
        ([0, 0], 5, 2, 0),
    ],
)
def test_average_precision_by_hand(row: list[int], total: int, k: int, expected: float) -> None:
    found = average_precision(np.array([row], bool), np.array([total]), k)
    assert found.tolist() == pytest.approx([expected])


@quick
@given(case=cases())
def test_against_plain_loops(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    relevant, totals, k = case
    rows = relevant.tolist()
    exact = [naive_ap(row, total, k) for row, total in zip(rows, totals.tolist(), strict=True)]
    assert average_precision(relevant, totals, k).tolist() == pytest.approx([float(ap) for ap in exact])
    assert mean_average_precision(relevant, totals, k) == pytest.approx(float(sum(exact) / len(exact)))
    assert hit_rate(relevant, k) == pytest.approx(sum(any(row[:k]) for row in rows) / len(rows))
    assert precision(relevant, k) == pytest.approx(sum(sum(row[:k]) for row in rows) / (k * len(rows)))
    shares = [Fraction(sum(row[:k]), total) for row, total in zip(rows, totals.tolist(), strict=True)]
    assert recall(relevant, totals, k) == pytest.approx(float(sum(shares) / len(shares)))


@quick
@given(case=cases(), data=st.data())
def test_the_order_of_the_queries_does_not_matter(
    case: tuple[np.ndarray, np.ndarray, int], data: st.DataObject
) -> None:
    relevant, totals, k = case
    order = data.draw(st.permutations(range(len(totals))))
    again = relevant[order], totals[order]
    assert mean_average_precision(*again, k) == pytest.approx(mean_average_precision(relevant, totals, k))
    assert (hit_rate(again[0], k), precision(again[0], k)) == pytest.approx(
        (hit_rate(relevant, k), precision(relevant, k))
    )


@quick
@given(case=cases(), names=st.permutations(range(10)), data=st.data())
def test_the_names_of_the_classes_do_not_matter(
    case: tuple[np.ndarray, np.ndarray, int], names: list[int], data: st.DataObject
) -> None:
    shape = case[0].shape
    retrieved = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 9)))
    labels = data.draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, 9)))
    renamed = np.array(names)
    again = relevance(renamed[retrieved], renamed[labels])
    np.testing.assert_array_equal(relevance(retrieved, labels), again)


@quick
@given(case=cases())
def test_bounds(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    relevant, totals, k = case
    ap = average_precision(relevant, totals, k)
    assert ((ap >= 0) & (ap <= 1)).all()
    assert hit_rate(relevant, k) >= precision(relevant, k)
    assert hit_rate(relevant, 1) == precision(relevant, 1)
    # All that can be found, first: the best there is.
    best = np.arange(relevant.shape[1]) < totals[:, None]
    np.testing.assert_allclose(average_precision(best, totals, k), 1)


def test_recall_is_one_where_everything_is_found() -> None:
    relevant = np.array([[1, 0, 1, 0], [0, 0, 1, 1]], bool)
    assert recall(relevant, np.array([2, 4]), 4) == (1 + 1 / 2) / 2
    assert recall(relevant, np.array([2, 4]), 1) == (1 / 2 + 0) / 2


@quick
@given(
    labels=hnp.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.integers(-1, 4)),
    data=st.data(),
)
def test_the_majority_against_a_count_of_votes(labels: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, labels.shape[1]))
    for row, found in zip(labels.tolist(), majority(labels, k).tolist(), strict=True):
        votes = Counter(label for label in row[:k] if label >= 0)
        tied = [label for label, count in votes.items() if count == max(votes.values())]   # nearest first
        assert found == (tied[0] if tied else -1)
        if k == 1:
            assert found == row[0]


def test_the_majority_by_hand() -> None:
    rows = [[3, 5, 5, 3, 9], [3, 5, 5, 9, 9], [1, 2, 3, 4, 5], [-1, 7, -1, -1, -1], [-1] * 5]
    assert majority(np.array(rows), 5).tolist() == [3, 5, 1, 7, -1]
    assert majority(np.array(rows), 3).tolist() == [5, 5, 1, 7, -1]


@quick
@given(case=cases(), data=st.data())
def test_moving_a_hit_forward_never_hurts(
    case: tuple[np.ndarray, np.ndarray, int], data: st.DataObject
) -> None:
    relevant, totals, k = case
    place = data.draw(st.integers(0, relevant.shape[1] - 1))
    better = relevant.copy()
    better[:, [0, place]] = better[:, [place, 0]]
    moved = relevant[:, place] & ~relevant[:, 0]
    before, after = (average_precision(r, totals, k) for r in (relevant, better))
    assert (after[moved] >= before[moved] - 1e-12).all()


@st.composite
def graded(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Grades of some items in rank order, the best of all that the query has, and k."""
    queries, depth = draw(st.tuples(st.integers(1, 4), st.integers(1, 8)))
    grades = draw(hnp.arrays(np.float32, (queries, depth), elements=st.integers(-1, 3).map(float)))
    missed = draw(hnp.arrays(np.float32, (queries, 5), elements=st.integers(0, 3).map(float)))
    missed[:, 0] = np.maximum(missed[:, 0], 1)   # something is relevant to every query
    everything = np.concatenate([grades, missed], axis=1)
    k = draw(st.integers(1, depth))
    best = -np.sort(-everything, axis=1)
    return grades, best[:, : draw(st.integers(k, best.shape[1]))], k


def naive_dcg(grades: list[float], k: int) -> float:
    return sum(max(grade, 0) / math.log2(place + 1) for place, grade in enumerate(grades[:k], start=1))


@quick
@given(case=graded())
def test_ndcg_and_reciprocal_ranks_against_plain_loops(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    grades, best, k = case
    rows = list(zip(grades.tolist(), best.tolist(), strict=True))
    expected = sum(naive_dcg(row, k) / naive_dcg(ideal, k) for row, ideal in rows) / len(rows)
    assert ndcg(grades, best, k) == pytest.approx(expected)
    assert 0 <= ndcg(grades, best, k) <= 1 + 1e-12
    ranks = [next((Fraction(1, i) for i, grade in enumerate(row[:k], 1) if grade > 0), Fraction(0)) for row, _ in rows]
    assert mean_reciprocal_rank(grades > 0, k) == pytest.approx(float(sum(ranks) / len(ranks)))


@quick
@given(case=graded())
def test_a_perfect_ranking_has_an_ndcg_of_one(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    _, best, k = case
    assert ndcg(best, best, min(k, best.shape[1])) == pytest.approx(1)


@pytest.mark.parametrize("k", [1, 3, 10, 30])
def test_ndcg_is_scikit_learns(k: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    grades, scores = rng.integers(0, 4, (20, 30)).astype(float), rng.permuted(np.tile(np.arange(30.0), (20, 1)), axis=1)
    ranked = np.take_along_axis(grades, np.argsort(-scores, axis=1), axis=1)
    best = -np.sort(-grades, axis=1)
    assert ndcg(ranked, best, k) == pytest.approx(metrics.ndcg_score(grades, scores, k=k))


def test_ndcg_and_reciprocal_rank_by_hand() -> None:
    # One relevant document, found third; another found first.
    found = np.array([[0, 0, 1], [1, 0, 0]], bool)
    assert mean_reciprocal_rank(found, 3) == (1 / 3 + 1) / 2
    assert mean_reciprocal_rank(found, 2) == 1 / 2
    assert ndcg(found.astype(float), np.ones((2, 1)), 3) == pytest.approx((1 / math.log2(4) + 1) / 2)


def test_grades_without_their_best_are_refused() -> None:
    grades = np.array([[1.0, 0.0]])
    for best in ([[0.0]], [[0.5]], [[1.0], [1.0]], np.empty((1, 0))):   # none, less than found, of others, none at all
        with pytest.raises(InputError, match=r"highest grades of each query, largest first.*exclude queries without"):
            ndcg(grades, np.array(best), 2)


def test_queries_without_anything_relevant_are_refused() -> None:
    relevant = np.zeros((2, 3), bool)
    with pytest.raises(InputError, match=r"number of relevant items .*exclude queries whose class"):
        average_precision(relevant, np.array([1, 0]), 3)
    with pytest.raises(InputError, match="number of relevant items"):   # fewer than were found
        average_precision(np.ones((1, 3), bool), np.array([2]), 3)
    with pytest.raises(InputError, match="number of relevant items"):
        average_precision(relevant, np.array([1]), 3)
    with pytest.raises(InputError, match="number of relevant items"):
        recall(relevant, np.array([1, 0]), 3)


@pytest.mark.parametrize("k", [0, 4])
def test_k_must_lie_within_what_was_retrieved(k: int) -> None:
    relevant = np.ones((2, 3), bool)
    totals = np.array([3, 3])
    plain = (hit_rate, precision, majority, mean_reciprocal_rank, lambda r, k: ndcg(r * 1.0, r * 1.0, k))
    calls = (*plain, *(lambda r, k, f=f: f(r, totals, k) for f in (average_precision, recall)))
    for call in calls:
        with pytest.raises(InputError, match="k must lie in 1 … the number of neighbours"):
            call(relevant, k)


def test_no_queries_is_an_error_not_a_nan() -> None:
    with pytest.raises(InputError, match="there must be a query"):
        hit_rate(np.ones((0, 3), bool), 1)


def test_relevance_needs_a_row_a_query() -> None:
    with pytest.raises(InputError, match="one row of retrieved labels for each query"):
        relevance(np.zeros((2, 3), int), np.zeros(3, int))


def test_labels_above_2048_are_told_apart() -> None:
    assert relevance(np.array([[2048, 2049]]), np.array([2049])).tolist() == [[False, True]]
