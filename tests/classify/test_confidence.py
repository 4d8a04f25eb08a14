"""How sure logits are, against the softmax written out; and views that must not make it look surer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matryo.classify import Cascade, average_views
from matryo.classify.confidence import softmax, top
from matryo.errors import InputError

quick = settings(deadline=None, max_examples=80)
numbers = st.floats(-60, 60, width=32)
logits = hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=numbers)


def written_out(row: list[float]) -> list[float]:
    peak = max(row)
    weights = [math.exp(value - peak) for value in row]
    return [weight / math.fsum(weights) for weight in weights]


@quick
@given(given_logits=logits)
def test_the_top_class_and_its_probability(given_logits: np.ndarray) -> None:
    said, sure = top(given_logits)
    expected = [written_out(row) for row in given_logits.astype(float).tolist()]
    assert said.tolist() == [row.index(max(row)) for row in given_logits.tolist()]
    assert sure == pytest.approx([max(row) for row in expected], rel=1e-5)
    assert softmax(given_logits) == pytest.approx(np.array(expected), rel=1e-4, abs=1e-7)


def test_large_logits_do_not_overflow_and_small_doubts_do_not_vanish() -> None:
    said, sure = top(np.array([[3e4, 0, -3e4], [-9e4, -9e4, -1e5]], np.float32))
    assert said.tolist() == [0, 0]
    assert sure.tolist() == [1.0, 0.5]
    doubts = top(np.array([[20.0, 0.0], [25.0, 0.0]], np.float32))[1]
    assert 1 - doubts == pytest.approx(np.exp([-20.0, -25.0]), rel=1e-4)     # both are 1 in float32
    assert top(np.array([[1, 3]], np.float16))[1] == pytest.approx([1 / (1 + math.exp(-2))])
    assert top(np.array([[-np.inf, 0.0]]))[1].tolist() == [1.0]              # a class that is ruled out


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match=r"logits must be finite \(got NaN or infinity in 1 rows\): check"):
        top(np.array([[0.0, 1.0], [bad, 0.0]]))


@quick
@given(views=hnp.arrays(np.float64, (3, 4, 5), elements=numbers))
def test_averaged_views_are_never_surer_than_they_are_on_average(views: np.ndarray) -> None:
    together = softmax(average_views(views))
    assert together == pytest.approx(np.mean([softmax(view) for view in views], axis=0), abs=1e-12)
    assert (together.max(axis=1) <= softmax(views).max(axis=-1).mean(axis=0) + 1e-12).all()


def test_augmentation_does_not_carry_rows_over_thresholds_fitted_without_it() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=300)
    one = np.stack([dim * np.eye(4)[y] + rng.normal(size=(300, 4)) for dim in (1, 2, 4)])
    cascade = Cascade([1, 2, 4]).fit(one, y)
    views = np.stack([one] * 5)
    assert (cascade.exit_dim(average_views(views)) == cascade.exit_dim(one)).all()
    assert cascade.exit_dim(views.sum(axis=0)).mean() < cascade.exit_dim(one).mean()   # the trap: sums look surer
