"""Thresholds chosen together, against every combination there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.classify.outcomes import ALWAYS, NEVER, Outcomes
from matryo.classify.thresholds.budget import Climb, budget_thresholds, price_path
from matryo.classify.thresholds.greedy import greedy_thresholds

quick = settings(deadline=None, max_examples=40)
DIMS = (1, 2, 4, 8)


def sample(seed: int, places: int, rows: int, ties: bool = False) -> Outcomes:
    """Larger dims are right more often, and the surer the righter."""
    rng = np.random.default_rng(seed)
    sure = rng.random((places, rows))
    skill = np.linspace(0.2, 0.6, places)[:, None]
    right = rng.random((places, rows)) < skill + 0.4 * sure
    return Outcomes(DIMS[:places], sure.round(1) if ties else sure, right)


def every_cascade(outcomes: Outcomes) -> list[np.ndarray]:
    """All that differ on these rows: any row's confidence may be the smallest that stops."""
    cuts = [[*np.unique(row), NEVER] for row in outcomes.confidence[:-1]]
    return [np.array(one) for one in product(*cuts)]


def best_by_enumeration(outcomes: Outcomes, budget: float) -> float:
    found = [outcomes.measure(one) for one in every_cascade(outcomes)]
    return max(one.accuracy for one in found if one.expected_dim <= budget + 1e-9)


@pytest.mark.parametrize("ties", [False, True])
def test_with_one_threshold_the_best_is_found(ties: bool) -> None:
    for seed in range(20):
        outcomes = sample(seed, 2, 12, ties)
        for budget in (1, 1.3, 1.6, 2):
            found = outcomes.measure(budget_thresholds(outcomes, [budget])[0])
            assert found.expected_dim <= budget + 1e-9
            assert found.accuracy == pytest.approx(best_by_enumeration(outcomes, budget))


def test_with_several_thresholds_it_rarely_misses() -> None:
    missed, cases = 0, [(seed, budget) for seed in range(15) for budget in (1.5, 2.0, 3.0)]
    for seed, budget in cases:
        outcomes = sample(seed, 3, 14)
        found, best = outcomes.measure(budget_thresholds(outcomes, [budget])[0]), best_by_enumeration(outcomes, budget)
        assert found.expected_dim <= budget + 1e-9
        assert best - 1.5 / outcomes.count <= found.accuracy <= best + 1e-9   # at most one row short
        missed += found.accuracy < best - 1e-9
    assert missed <= len(cases) // 10


@quick
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60), places=st.integers(1, 4), ties=st.booleans())
def test_it_dominates_greedy_stopped_anywhere(seed: int, rows: int, places: int, ties: bool) -> None:
    outcomes = sample(seed, places, rows, ties)
    greedy = greedy_thresholds(outcomes)
    stopped = [outcomes.measure(np.where(np.arange(places - 1) < last, greedy, ALWAYS)) for last in range(places)]
    together = budget_thresholds(outcomes, [one.expected_dim for one in stopped])
    for one, joint in zip(stopped, map(outcomes.measure, together), strict=True):
        assert joint.accuracy >= one.accuracy
        assert joint.expected_dim <= one.expected_dim + 1e-9


@quick
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 60), ties=st.booleans())
def test_climbing_never_worsens_and_the_totals_are_those_measured(seed: int, rows: int, ties: bool) -> None:
    outcomes = sample(seed, 4, rows, ties)
    climb, rng = Climb(outcomes), np.random.default_rng(seed)
    start, price = rng.random(3), rng.random() / 4
    end = climb.climb(start, lambda tallies: tallies[0] - price * tallies[2])

    def worth(thresholds: np.ndarray) -> float:
        found = outcomes.measure(thresholds)
        return rows * (found.accuracy - price * found.expected_dim)

    assert worth(end) >= worth(start) - 1e-9
    right, apart, dims = climb.total(end)
    assert (right, dims) == (
        pytest.approx(rows * outcomes.measure(end).accuracy), pytest.approx(rows * outcomes.measure(end).expected_dim)
    )   # fmt: skip
    assert apart == (outcomes.right(end) != outcomes.correct[-1]).sum()
    for place in range(3):   # no single threshold could be moved for the better
        for value in [*outcomes.confidence[place], NEVER]:
            moved = end.copy()
            moved[place] = value
            assert worth(moved) <= worth(end) + 1e-9


def test_what_cannot_be_improved_stays_as_it_is() -> None:
    climb, start = Climb(sample(1, 4, 50)), np.array([0.3, 0.7, 0.2])
    assert (climb.climb(start, lambda tallies: 0 * tallies[0]) == start).all()
    end = climb.climb(start, lambda tallies: tallies[0] - 0.1 * tallies[2])
    assert (climb.climb(end, lambda tallies: tallies[0] - 0.1 * tallies[2]) == end).all()


def test_budgets_come_back_in_their_order() -> None:
    outcomes = sample(2, 4, 60)
    budgets = [3.0, 1.0, 8.0, 2.0, 7.5]
    for budget, thresholds in zip(budgets, budget_thresholds(outcomes, budgets), strict=True):
        alone = outcomes.measure(budget_thresholds(outcomes, [budget])[0])
        assert outcomes.measure(thresholds).expected_dim <= budget
        assert outcomes.measure(thresholds).accuracy == pytest.approx(alone.accuracy)


def test_a_path_goes_from_accurate_to_cheap() -> None:
    outcomes = sample(5, 4, 200)
    found = [outcomes.measure(one) for one in price_path(outcomes)]
    assert found[-1].expected_dim == 1
    assert found[0].accuracy == max(one.accuracy for one in found) >= outcomes.correct[-1].mean()
    dims = [one.expected_dim for one in found]
    assert dims == sorted(dims, reverse=True)


def test_thresholds_lie_between_rows_so_that_rounding_moves_none() -> None:
    outcomes = sample(3, 4, 100)
    thresholds = budget_thresholds(outcomes, [3])[0]
    for threshold, row in zip(thresholds, outcomes.confidence, strict=False):
        assert threshold in (ALWAYS, NEVER) or np.abs(row - threshold).min() > 0
    neighbours = np.array([[0.5, np.nextafter(0.5, 1)], [0.5, 0.5]])   # nothing lies between these
    apart = Outcomes((1, 2), neighbours, np.array([[False, True], [True, False]]))
    assert apart.measure(budget_thresholds(apart, [2])[0]).accuracy == 1


def test_one_dim_needs_no_threshold() -> None:
    assert budget_thresholds(sample(0, 1, 5), [1])[0].shape == (0,)
