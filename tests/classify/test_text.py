"""A cascade's tables: what a reader could not tell from the rounded number."""

from __future__ import annotations

import numpy as np
import pytest

from matryo import Cascade
from matryo.classify.text import cascade_table


@pytest.mark.parametrize(("threshold", "shown"), [
    (8.8e-07, "8.8e-07"), (0.00012345, "0.00012"), (0.74747, "0.7475"), (0.0, "0.0000"), (np.inf, "none"),
])  # fmt: skip
def test_small_thresholds_keep_two_digits(threshold: float, shown: str) -> None:
    logits = {2: np.eye(2)[[0, 1, 0, 1]], 4: np.eye(2)[[0, 1, 0, 1]] * 4}
    cascade = Cascade().fit(logits, [0, 1, 0, 1])
    cascade.thresholds_ = np.array([threshold])
    answered = "0.0%" if threshold > 0.74 else "100.0%"   # each row is sure to e / (e + 1), or 0.73
    lines = cascade_table(cascade, cascade.answers(logits), None, covered=True).splitlines()
    assert lines[1].split() == ["2", shown, answered]
    assert lines[2].split()[:3] == ["4", "the", "rest"]


@pytest.mark.parametrize(("threshold", "told"), [(0.0, True), (1.0, False)])
def test_a_cascade_that_loses_much_says_so(threshold: float, told: bool) -> None:
    """At dim 2 one row of four is wrong, at dim 4 none; a threshold of 0 answers all at dim 2."""
    labels = [0, 1, 0, 1]
    logits = {2: np.eye(2)[[0, 1, 0, 0]], 4: np.eye(2)[labels] * 4}
    cascade = Cascade().fit(logits, labels)
    cascade.thresholds_ = np.array([threshold])
    table = cascade_table(cascade, cascade.answers(logits), cascade.measure(logits, labels), covered=True)
    assert ("loses 25.0 points against dim 4; --max-loss" in table) == told
