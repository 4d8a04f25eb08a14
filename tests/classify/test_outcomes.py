"""Which dim answers which row, and what that costs, against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.classify.outcomes import ALWAYS, NEVER, CascadeResult, Outcomes
from matryo.classify.thresholds.greedy import GRID, greedy_thresholds

quick = settings(deadline=None, max_examples=80)
DIMS = (8, 16, 32, 64)


@st.composite
def cases(draw: st.DrawFn, most: int = 12) -> Outcomes:
    places, rows = draw(st.integers(1, 4)), draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sure = rng.random((places, rows))
    if draw(st.booleans()):
        sure = GRID[rng.choice([0, 33, 66, 99], sure.shape)]   # many ties, with one another and with the grid
    return Outcomes(DIMS[:places], sure, rng.random((places, rows)) < 0.5, tied=draw(st.booleans()))


def thresholds_for(outcomes: Outcomes, draw: st.DataObject) -> np.ndarray:
    value = st.sampled_from([ALWAYS, NEVER, 1.0, 0.5, *GRID[[33, 66]].tolist()])
    count = len(outcomes.dims) - 1
    return np.array(draw.draw(st.lists(value, min_size=count, max_size=count)), np.float64)


def place_of(sure: list[float], thresholds: list[float]) -> int:
    for place, threshold in enumerate(thresholds):
        if sure[place] >= threshold:
            return place
    return len(thresholds)


@quick
@given(outcomes=cases(), data=st.data())
def test_every_figure_against_plain_loops(outcomes: Outcomes, data: st.DataObject) -> None:
    thresholds = thresholds_for(outcomes, data)
    right, last, columns, answered = 0, 0, 0, [0] * len(outcomes.dims)
    for row in range(outcomes.count):
        place = place_of(outcomes.confidence[:, row].tolist(), thresholds.tolist())
        right += bool(outcomes.correct[place, row])
        last += outcomes.dims[place]
        asked = [m for m, t in zip(outcomes.dims[:place], thresholds, strict=False) if t != math.inf]
        columns += outcomes.dims[place] if outcomes.tied else sum(asked) + outcomes.dims[place]
        answered[place] += 1
    found, n = outcomes.measure(thresholds), outcomes.count
    assert found.accuracy == pytest.approx(right / n)
    assert (found.expected_dim, found.cumulative_dim) == pytest.approx((last / n, columns / n))
    assert found.shares == pytest.approx([count / n for count in answered])
    assert found.full_accuracy == pytest.approx(outcomes.correct[-1].mean())
    assert found.thresholds == tuple(None if t == NEVER else t for t in thresholds)
    assert CascadeResult.from_figures(found.to_figures()) == found


def test_the_paper_counts_both_ways() -> None:
    # Appendix "Adaptive Classification": the last dim used, and {8, 24, 56, …} for separate heads.
    sure = np.array([[0.9, 0.1, 0.1], [0.9, 0.9, 0.1], [0.9, 0.9, 0.9]])
    separate = Outcomes((8, 16, 32), sure, np.ones((3, 3), bool)).measure(np.array([0.5, 0.5]))
    assert (separate.expected_dim, separate.cumulative_dim) == pytest.approx(((8 + 16 + 32) / 3, (8 + 24 + 56) / 3))
    tied = Outcomes((8, 16, 32), sure, np.ones((3, 3), bool), tied=True).measure(np.array([0.5, 0.5]))
    assert tied.expected_dim == tied.cumulative_dim == separate.expected_dim


def by_the_paper(outcomes: Outcomes) -> list[float]:
    """Threshold after threshold; the accuracy of every grid point counted over all rows."""
    found: list[float] = []
    while len(found) < len(outcomes.dims) - 1:
        best, chosen = -1, 0.0
        for t in np.linspace(0, 1, 100):
            right = 0
            for row in range(outcomes.count):
                answered = place_of(outcomes.confidence[:, row].tolist(), [*found, float(t)])
                right += bool(outcomes.correct[answered, row])
            if right > best:
                best, chosen = right, float(t)
        found.append(chosen)
    return found


@settings(deadline=None, max_examples=25)
@given(outcomes=cases(most=8))
def test_greedy_thresholds_are_the_papers(outcomes: Outcomes) -> None:
    assert greedy_thresholds(outcomes).tolist() == by_the_paper(outcomes)


def test_greedy_by_hand() -> None:
    # At dim 8 the rows of confidence 0.6 and 0.8 are wrong and dim 16 corrects the first only: the smallest grid
    # point above 0.6 is best, and 0.8 stops.
    sure = np.array([[0.6, 0.8, 0.9], [0.5, 0.5, 0.5]])
    right = np.array([[False, False, True], [True, False, False]])
    [threshold] = greedy_thresholds(Outcomes((8, 16), sure, right))
    assert threshold == GRID[60]
    assert 0.6 < threshold < GRID[61]
    assert len(GRID) == 100


@quick
@given(outcomes=cases())
def test_greedy_thresholds_do_not_depend_on_later_dims(outcomes: Outcomes) -> None:
    thresholds = greedy_thresholds(outcomes)
    for places in range(1, len(outcomes.dims) + 1):
        assert greedy_thresholds(outcomes.until(places)).tolist() == thresholds[: places - 1].tolist()


def test_selected_rows() -> None:
    rng = np.random.default_rng(0)
    outcomes = Outcomes(DIMS, rng.random((4, 9)), rng.random((4, 9)) < 0.5, tied=True)
    few = outcomes.select([3, 1])
    assert (few.count, few.tied, few.dims) == (2, True, DIMS)
    assert few.right(np.full(3, 0.5)).tolist() == outcomes.right(np.full(3, 0.5))[[3, 1]].tolist()
