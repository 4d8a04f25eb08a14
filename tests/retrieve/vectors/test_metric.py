"""Scores against their definitions in float64, and keys against plain sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import InputError
from matryo.retrieve.vectors.metric import METRICS, NOTHING, check_metric, key_rows, key_scores, keys, score

EPS = 2.0**-24   # half a unit in the last place of float32


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), dim=st.integers(1, 40), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_scores_are_their_definitions(seed: int, dim: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    rows, queries = (rng.standard_normal((count, dim)) * scale for count in (9, 4))
    sums = (queries @ rows.T).astype(np.float32)
    norms, query_norms = np.linalg.norm(rows, axis=1), np.linalg.norm(queries, axis=1)[:, None]
    found = {one: score(one, sums, norms.astype(np.float32), query_norms.astype(np.float32)) for one in METRICS}
    assert all(scores.dtype == np.float32 for scores in found.values())
    products = query_norms * norms
    # Each float32 operation and each rounded input errs by at most EPS relative to its result.
    for i, q in enumerate(queries):
        for j, x in enumerate(rows):
            inner = sum(a * b for a, b in zip(q, x, strict=True))
            assert found["ip"][i, j] == pytest.approx(inner, abs=2 * EPS * abs(inner) + 1e-300)
            # The sum, both norms, both reciprocals and both products: seven roundings of something of at most 1.
            assert found["cosine"][i, j] == pytest.approx(inner / products[i, j], abs=8 * EPS)
            # Every term and every partial result is at most (‖q‖ + ‖x‖)², and there are eight roundings.
            reach = (query_norms[i, 0] + norms[j]) ** 2
            assert found["l2"][i, j] == pytest.approx(-sum((a - b) ** 2 for a, b in zip(q, x, strict=True)),
                                                      abs=9 * EPS * reach)  # fmt: skip


def test_zero_vectors_score_zero() -> None:
    zero, one = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    assert score("cosine", zero, zero, one) == 0
    assert score("cosine", zero, one, zero) == 0
    assert score("cosine", zero, zero, zero) == 0


def test_scores_leave_the_sums_alone() -> None:
    sums = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = sums.tobytes()
    for metric in METRICS:
        score(metric, sums, np.ones(3, np.float32), np.ones((2, 1), np.float32))
    assert sums.tobytes() == before


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(
    st.lists(st.tuples(finite | st.sampled_from([0.0, -0.0, 1.0]), st.integers(-1, 2**32 - 2)), min_size=1, max_size=40)
)
def test_keys_sort_by_score_then_by_smaller_row(pairs: list[tuple[float, int]]) -> None:
    found = np.sort(keys(np.array([s for s, _ in pairs], np.float32), np.array([r for _, r in pairs])))[::-1]
    real = sorted(((s, r) for s, r in pairs if r >= 0), key=lambda pair: (-pair[0], pair[1]))
    none = len(pairs) - len(real)
    assert key_rows(found).tolist() == [r for _, r in real] + [-1] * none
    assert key_scores(found).tolist() == [s for s, _ in real] + [-np.inf] * none
    assert (found == NOTHING).sum() == none


def test_the_metric_must_be_known() -> None:
    for metric in METRICS:
        check_metric(metric)
    with pytest.raises(InputError, match=r"metric must be cosine, ip or l2 \(got 'dot'\): cosine suits most"):
        check_metric("dot")
