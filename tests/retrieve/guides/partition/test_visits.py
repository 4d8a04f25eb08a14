"""The rule of the visits against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from matryo.retrieve.guides.partition.visits import budgets_by_share, needed_budgets, scale_of, widening


def visits(scores: np.ndarray, sizes: np.ndarray, scale: float, budget: float) -> list[int]:
    """The partitions that one query visits, one at a time."""
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    chosen: list[int] = []
    for number in order:
        places = sum(int(sizes[each]) for each in chosen)
        if not places < budget * math.exp(-(float(scores[order[0]]) - float(scores[number])) / scale):
            break
        chosen.append(number)
    return chosen


def drawn(seed: int, queries: int = 9, lists: int = 30) -> tuple[np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((queries, lists)).astype(np.float32)
    return scores, rng.integers(0, 20, lists), scale_of(scores)


@pytest.mark.parametrize("seed", range(5))
def test_a_partition_is_visited_from_its_budget_on(seed: int) -> None:
    scores, sizes, scale = drawn(seed)
    budgets, places = needed_budgets(scores, sizes, scale)
    for query in range(len(scores)):
        assert budgets[query, scores[query].argmax()] == 0   # the best is always visited
        for budget in (0.5, 3.0, 20.0, 150.0, 1e3, 1e9):
            chosen = visits(scores[query], sizes, scale, budget)
            assert sorted(np.flatnonzero(budgets[query] < budget)) == sorted(chosen)
            last = max(chosen, key=lambda number: places[query, number])
            assert places[query, last] == sizes[chosen].sum()


def test_a_far_partition_has_a_finite_budget() -> None:
    budgets, _ = needed_budgets(np.array([[0, -1e30, -1e38]], np.float32), np.array([5, 5, 5]), 1e-30)
    assert np.isfinite(budgets).all() and budgets[0, 0] == 0 < budgets[0, 1] < budgets[0, 2]


@pytest.mark.parametrize("seed", range(5))
def test_budgets_visit_their_shares_on_average(seed: int) -> None:
    scores, sizes, scale = drawn(seed, queries=200, lists=60)
    budgets, _ = needed_budgets(scores, sizes, scale)
    shares, found = budgets_by_share(budgets, sizes)
    assert (np.diff(shares) > 0).all() and (np.diff(found) >= 0).all() and shares[-1] == 1
    for share, budget in [*zip(shares.tolist(), found.tolist(), strict=True)][32::3]:
        mean = np.mean([sizes[visits(some, sizes, scale, budget)].sum() for some in scores]) / sizes.sum()
        assert mean == pytest.approx(max(share, sizes.max() / sizes.sum() / 2), abs=0.02)


def test_nothing_to_visit() -> None:
    assert scale_of(np.empty((0, 4), np.float32)) == 1
    budgets, _ = needed_budgets(np.empty((0, 4), np.float32), np.array([0] * 4), 1.0)
    shares, found = budgets_by_share(budgets, np.array([0] * 4))
    np.testing.assert_array_equal(shares, found)
    np.testing.assert_array_equal(widening(np.empty((0, 0)), 10)[1], np.ones(7))


def test_equal_means_have_a_scale() -> None:
    assert 0 < scale_of(np.ones((3, 5), np.float32)) < 1e-30


def test_the_scale_is_the_mean_gap_of_the_50th_mean() -> None:
    scores = np.random.default_rng(0).permuted(np.tile(np.arange(300.0), (4, 1)), axis=1).astype(np.float32)
    assert scale_of(scores) == 50
    assert scale_of(scores[:, :1]) > 0
    few = np.array([[1, 4, 2]], np.float32)
    assert scale_of(few) == 3


def test_a_filter_multiplies_the_budget_by_what_further_neighbours_need() -> None:
    ranked = np.tile(2.0 * np.arange(1, 1001), (5, 1))   # the n-th neighbour needs a budget of 2n
    shares, factors = widening(ranked, 10)
    assert shares[0] == 1 and factors[0] == 1 and (np.diff(factors) >= 0).all()
    for share, factor in zip(shares, factors, strict=True):   # the budget of 0.9 of the 10 / share nearest
        assert factor == pytest.approx(1 / share, rel=0.12)
