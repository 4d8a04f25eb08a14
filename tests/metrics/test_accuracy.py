"""The rank of the true class, against sorting in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matryo.errors import InputError
from matryo.metrics import label_ranks

quick = settings(deadline=None, max_examples=80)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    rows, classes = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    logits = draw(hnp.arrays(np.float32, (rows, classes), elements=st.integers(-2, 2)))   # with many ties
    return logits, draw(hnp.arrays(np.int64, rows, elements=st.integers(0, classes - 1)))


def places(logits: np.ndarray, labels: np.ndarray) -> list[int]:
    found = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))
        found.append(order.index(label))
    return found


@quick
@given(case=cases())
def test_ranks_are_places_in_the_sorted_order(case: tuple[np.ndarray, np.ndarray]) -> None:
    assert label_ranks(*case).tolist() == places(*case)


@quick
@given(case=cases(), data=st.data())
def test_the_order_of_the_rows_does_not_matter(
    case: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(case[1]))))
    shuffled = case[0][order], case[1][order]
    assert label_ranks(*shuffled).tolist() == label_ranks(*case)[order].tolist()


def test_what_cannot_be_graded() -> None:
    logits = np.zeros((2, 3))
    with pytest.raises(InputError, match="one label for each row"):
        label_ranks(logits, np.array([0]))
    with pytest.raises(InputError, match="one label for each row"):
        label_ranks(np.zeros(3), np.array([0]))
    for labels in ([0, 3], [-1, 0]):
        with pytest.raises(InputError, match=r"labels must lie in 0 … 2"):
            label_ranks(logits, np.array(labels))
    with pytest.raises(InputError, match="logits must be finite"):   # NaN must not count as right
        label_ranks(np.full((1, 2), np.nan), np.array([0]))
