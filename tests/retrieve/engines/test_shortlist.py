"""Ranking a shortlist again adds what the new columns say, and nothing that is not on it comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.nesting import Nesting
from matryo.retrieve.engines.numpy import shortlist as module
from matryo.retrieve.engines.numpy.scan import first_stage
from matryo.retrieve.engines.numpy.shortlist import Shortlist, query_norms, rerank
from matryo.retrieve.engines.request import Request
from matryo.retrieve.plan.plan import Stage
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS

NESTING = Nesting([1, 4, 16])


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6), queries=st.integers(0, 5), width=st.integers(1, 20), keep=st.integers(1, 20),
    done=st.sampled_from([0, 1, 4, 16]), dim=st.sampled_from(NESTING.dims), metric=st.sampled_from(["ip", "l2"]),
    precision=st.sampled_from(["full", "int8"]), gather=st.integers(1, 3000),
)  # fmt: skip
def test_it_is_what_loops_make_of_it(seed, queries, width, keep, done, dim, metric, precision, gather) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.choice(np.float32([-127, 0, 127]), (20, 16))   # exact in int8, too
    vectors[0] = 127
    asked = rng.integers(-3, 4, (queries, 16)).astype(np.float32)
    done, keep = min(done, dim), min(keep, width)
    rows = np.array([rng.permutation(20)[:width] for _ in range(queries)], np.int64).reshape(queries, width)
    rows[rng.random(rows.shape) < 0.2] = -1
    sums = np.zeros(rows.shape, np.float32)
    for i, j in np.ndindex(rows.shape):
        sums[i, j] = asked[i, :done] @ vectors[rows[i, j], :done] if rows[i, j] >= 0 else 0
    request = Request(Blocks.of(vectors, NESTING, int8_up_to=16), asked, metric)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GATHER", gather)
        found = rerank(request, Shortlist(rows, sums, sums), Stage(dim, keep, precision), done)
    assert found.rows.shape == found.sums.shape == found.scores.shape == (queries, keep)
    for i, query in enumerate(asked[:, :dim].astype(np.float64)):
        inner = {int(row): float(query @ vectors[row, :dim]) for row in rows[i] if row >= 0}
        away = {row: float(((query - vectors[row, :dim]) ** 2).sum()) for row in inner}
        scores = inner if metric == "ip" else {row: -distance for row, distance in away.items()}
        want = sorted(inner, key=lambda row, of=scores: (-of[row], row))[:keep]
        none = keep - len(want)
        assert found.rows[i].tolist() == want + [-1] * none
        assert found.sums[i].tolist() == [inner[row] for row in want] + [0] * none
        # Integers are exact but for the norms of the rows, whose roots were rounded.
        np.testing.assert_allclose(found.scores[i, : len(want)], [scores[row] for row in want], rtol=1e-6)
        assert (found.scores[i, len(want) :] == -np.inf).all()


def test_query_norms() -> None:
    asked = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    for dim in (1, 4, 16):
        exact = [[np.sqrt(sum(float(value) ** 2 for value in query[:dim]))] for query in asked]
        np.testing.assert_array_equal(query_norms(asked, dim), np.float32(exact))


@pytest.mark.parametrize("metric", METRICS)
def test_a_shortlist_is_not_changed_by_ranking_it_again(metric: str) -> None:
    rng = np.random.default_rng(7)
    vectors, asked = (rng.standard_normal((count, 16)).astype(np.float32) for count in (100, 6))
    request = Request(Blocks.of(vectors, NESTING), asked, metric)
    given = first_stage(request, Stage(1, 40))
    before = [array.tobytes() for array in given]
    for array in given:
        array.flags.writeable = False
    again = [rerank(request, given, Stage(16, 40), 1) for _ in range(2)]
    assert [array.tobytes() for array in given] == before
    assert [array.tobytes() for array in again[0]] == [array.tobytes() for array in again[1]]
