"""A plan is what plain loops make of it, exact where it keeps everything, and leaves the caller's arrays alone."""

from __future__ import annotations

import importlib
import re
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.nesting import Nesting, truncate
from matryo.retrieve.engines.execute import NUMPY, Engine, Hits, execute
from matryo.retrieve.engines.numpy import scan, shortlist
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS

if TYPE_CHECKING:
    from pathlib import Path

module = importlib.import_module("matryo.retrieve.engines.execute")   # the package's own `execute` is the function
NESTING = Nesting([1, 4, 16])   # vectors of ±127 have the norms 127, 254 and 508, and steps of 1 in int8
EPS = 2.0**-24


def signs(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.choice(np.float32([-127, 127]), (count, 16))


def normal(seed: int, *counts: int, dim: int = 16) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((count, dim)).astype(np.float32) for count in counts]


def naive_scores(vectors: np.ndarray, query: np.ndarray, dim: int, metric: str) -> list[float]:
    """The definition, in float64."""
    q = query.astype(np.float64)[:dim]
    scores = []
    for x in vectors.astype(np.float64)[:, :dim]:
        inner, product = float(q @ x), float(np.sqrt(q @ q) * np.sqrt(x @ x))
        cosine, distance = (inner / product if product else 0.0), float((q - x) @ (q - x))
        scores.append({"ip": inner, "l2": -distance, "cosine": cosine}[metric])
    return scores


def naive(vectors: np.ndarray, query: np.ndarray, plan: Plan, metric: str, allowed: np.ndarray) -> list[int]:
    """Every stage from scratch, in plain loops."""
    left = [int(row) for row in np.flatnonzero(allowed)]
    for stage in plan.stages:
        scores = naive_scores(vectors, query, stage.dim, metric)
        left = sorted(left, key=lambda row, of=scores: (-of[row], row))[: stage.keep]
    return left


@st.composite
def plans(draw: st.DrawFn, k: int) -> Plan:
    dims = sorted(draw(st.lists(st.sampled_from(NESTING.dims), min_size=1, max_size=4)))
    keeps = sorted(draw(st.lists(st.integers(1, 50), min_size=len(dims), max_size=len(dims))), reverse=True)
    coarse = draw(st.integers(0, len(dims)))
    precisions = ["int8"] * coarse + ["full"] * (len(dims) - coarse)
    return Plan.of(zip(dims, keeps, precisions, strict=True)).for_k(k)


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(), seed=st.integers(0, 10**6), count=st.integers(1, 40), queries=st.integers(1, 12),
    k=st.integers(1, 45), metric=st.sampled_from(METRICS), share=st.sampled_from([None, 0.0, 0.2, 0.9]),
    dtype=st.sampled_from(["float32", "float16"]), small=st.booleans(),
)  # fmt: skip
def test_a_plan_is_what_loops_make_of_it(data, seed, count, queries, k, metric, share, dtype, small) -> None:
    rng = np.random.default_rng(seed)
    vectors, asked = signs(rng, count), signs(rng, queries)   # exact in every precision, and with many ties
    plan = data.draw(plans(k))
    allowed = np.ones(count, bool) if share is None else rng.random(count) < share
    blocks = Blocks.of(vectors, NESTING, dtype=dtype, int8_up_to=16)
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(scan, "_TILE", (3, 5))
            patch.setattr(shortlist, "_GATHER", data.draw(st.integers(1, 2000)))
            patch.setattr(module, "_BUDGET", data.draw(st.integers(1, 20000)))
        rows, scores = execute(blocks, asked, plan, k, metric, None if share is None else allowed)
    assert rows.shape == scores.shape == (queries, k)
    assert (rows.dtype, scores.dtype) == (np.int64, np.float64)
    for found, marks, query in zip(rows, scores, asked, strict=True):
        want = naive(vectors, query, plan, metric, allowed)
        assert found.tolist() == want + [-1] * (k - len(want))
        exact = np.array(naive_scores(vectors, query, plan.dim, metric))[want]
        np.testing.assert_allclose(marks[: len(want)], exact, rtol=4 * EPS)   # 1/127 is rounded
        assert (marks[len(want) :] == -np.inf).all()


@settings(deadline=None, max_examples=40)
@given(data=st.data(), seed=st.integers(0, 10**6), count=st.integers(1, 50), metric=st.sampled_from(METRICS))
def test_a_plan_that_keeps_everything_is_exact_search_at_its_last_dim(data, seed, count, metric) -> None:
    vectors, asked = normal(seed, count, 3)
    k = data.draw(st.integers(1, 60))
    dims = sorted(data.draw(st.lists(st.sampled_from(NESTING.dims), min_size=1, max_size=4)))
    blocks = Blocks.of(vectors, NESTING, int8_up_to=16)
    whole = Plan.of([(dim, max(k, count)) for dim in dims[:-1]] + [(dims[-1], k)])
    rows, scores = execute(blocks, asked, whole, k, metric)
    exact_rows, exact_scores = execute(blocks, asked, Plan.single(dims[-1]), k, metric)
    np.testing.assert_array_equal(rows, exact_rows)
    assert scores.tobytes() == exact_scores.tobytes()
    for query, found, marks in zip(asked, rows, scores, strict=True):
        exact = np.array(naive_scores(vectors, query, dims[-1], metric))
        room = min(k, count)
        np.testing.assert_allclose(marks[:room], -np.sort(-exact)[:room], atol=25 * EPS * 200)
        np.testing.assert_allclose(exact[found[:room]], marks[:room], atol=25 * EPS * 200)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [40, 1023, 3001])
def test_equal_rows_are_equal_wherever_they_lie(metric: str, count: int) -> None:
    """BLAS would round the last rows of a matrix otherwise than the rest; the smaller row must come first."""
    distinct, asked = normal(13, 7, 600, dim=200)
    vectors = distinct[np.random.default_rng(0).integers(0, 7, count)]
    blocks = Blocks.of(vectors, Nesting([8, 72, 200]))
    for queries in (asked[:1], asked[:9], asked[:513]):
        for plan in (Plan.single(200), Plan.of([(8, 39), (72, 30), (200, 20)])):
            rows, scores = execute(blocks, queries, plan, 20, metric)
            equal = np.diff(scores) == 0
            same = (vectors[rows[:, 1:]] == vectors[rows[:, :-1]]).all(axis=2)
            np.testing.assert_array_equal(equal, same)
            assert (np.diff(rows)[equal] > 0).all()
            first = rows[np.arange(len(rows)), 0]   # the first of its kind
            assert (first == [np.flatnonzero((vectors == vectors[row]).all(axis=1))[0] for row in first]).all()


@pytest.mark.parametrize("metric", METRICS)
def test_a_score_has_the_same_bits_by_every_way(metric: str) -> None:
    """One query or many, one stage or several: a row's score is the same number."""
    vectors, asked = normal(14, 2500, 40, dim=100)
    blocks = Blocks.of(vectors, Nesting([3, 20, 100]))
    exact_rows, exact_scores = execute(blocks, asked, Plan.single(100), 2500, metric)
    by_row = np.empty_like(exact_scores)
    np.put_along_axis(by_row, exact_rows, exact_scores, 1)
    for plan in (Plan.single(100), Plan.adaptive(3, 100, keep=200), Plan.of([(3, 90), (20, 40), (100, 10)])):
        rows, scores = execute(blocks, asked, plan, 10, metric)
        assert scores.tobytes() == np.take_along_axis(by_row, rows, 1).tobytes()
        alone = [execute(blocks, query[None], plan, 10, metric) for query in asked]
        np.testing.assert_array_equal(rows, np.concatenate([one for one, _ in alone]))
        assert scores.tobytes() == np.concatenate([one for _, one in alone]).tobytes()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("precision", ["full", "int8"])
def test_the_last_stage_scores_in_full(metric: str, dtype: str, precision: str) -> None:
    """Running sums over three stages are the scores that a computation from scratch gives."""
    vectors, asked = normal(3, 500, 30)
    blocks = Blocks.of(vectors, NESTING, dtype=dtype, int8_up_to=4)
    plan = Plan.of([(1, 300, precision), (4, 100, precision), (16, 10)])
    rows, scores = execute(blocks, asked, plan, 10, metric)
    stored = vectors.astype(dtype)
    for query, found, marks in zip(asked, rows, scores, strict=True):
        exact = np.array(naive_scores(stored, query, 16, metric))
        np.testing.assert_allclose(marks, exact[found], atol=25 * EPS * 200)
        assert (np.diff(marks) <= 0).all()


def test_cosine_is_the_inner_product_of_truncated_vectors() -> None:
    vectors, asked = normal(4, 200, 5)
    blocks = Blocks.of(vectors, NESTING)
    for dim in NESTING.dims[1:]:
        rows, scores = execute(blocks, asked, Plan.single(dim), 7)
        products = truncate(asked, dim) @ truncate(vectors, dim).T
        np.testing.assert_array_equal(rows, np.argsort(-products, axis=1, kind="stable")[:, :7])
        np.testing.assert_allclose(scores, np.take_along_axis(products, rows, 1), atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_rows_that_are_not_allowed_might_as_well_not_be_there(metric: str, share: float) -> None:
    vectors, asked = normal(5, 400, 9)
    allowed = np.random.default_rng(0).random(400) < share
    plan = Plan.of([(1, 60), (4, 30), (16, 10)])
    rows, scores = execute(Blocks.of(vectors, NESTING), asked, plan, 10, metric, allowed)
    alone_rows, alone_scores = execute(Blocks.of(vectors[allowed], NESTING), asked, plan, 10, metric)
    kept = np.flatnonzero(allowed)
    np.testing.assert_array_equal(rows, np.where(alone_rows < 0, -1, kept[np.maximum(alone_rows, 0)]))
    np.testing.assert_allclose(scores, alone_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_the_callers_arrays_are_never_changed(metric: str) -> None:
    vectors, asked = normal(6, 100, 20)
    blocks = Blocks.of(vectors, NESTING, int8_up_to=4)
    allowed = np.arange(100) % 3 > 0
    arrays = [vectors, asked, allowed, *blocks.full, blocks.norms, *(one.codes for one in blocks.int8.values())]
    before = [array.tobytes() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    for plan in (Plan.single(16), Plan.of([(1, 50, "int8"), (4, 20, "int8"), (4, 20), (16, 5)])):
        execute(blocks, asked, plan, 5, metric, allowed)
    assert [array.tobytes() for array in arrays] == before


def test_a_shortlist_may_have_holes() -> None:
    """As an approximate first stage leaves them: rows −1, which stay last."""
    vectors, asked = normal(8, 30, 2)
    blocks = Blocks.of(vectors, NESTING)

    def first(request, stage):
        found = NUMPY.first_stage(request, stage)
        found.rows[:, 3:], found.sums[:, 3:], found.scores[:, 3:] = -1, 0, -np.inf
        return found

    engine = Engine(first, NUMPY.rerank)
    rows, scores = execute(blocks, asked, Plan.adaptive(4, 16, keep=10, k=5), 5, "l2", engine=engine)
    three, _ = execute(blocks, asked, Plan.adaptive(4, 16, keep=3, k=3), 3, "l2")
    np.testing.assert_array_equal(rows, np.pad(three, ((0, 0), (0, 2)), constant_values=-1))
    assert (scores[:, 3:] == -np.inf).all()
    assert np.isfinite(scores[:, :3]).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_mapped_folder_gives_the_same_bits(tmp_path: Path, dtype: str) -> None:
    vectors, asked = normal(9, 300, 20)
    blocks = Blocks.of(vectors, NESTING, dtype=dtype, int8_up_to=4)
    blocks.write(tmp_path / "here")
    mapped = Blocks.open(tmp_path / "here")
    funnel = Plan.of([(1, 100), (4, 50), (16, 10)])
    for plan in (Plan.single(16), funnel, Plan.adaptive(4, 16, keep=50, precision="int8")):
        for metric in METRICS:
            here, there = (execute(one, asked, plan, 10, metric) for one in (blocks, mapped))
            assert [a.tobytes() for a in here] == [a.tobytes() for a in there]


def test_the_cosine_knows_no_scale() -> None:
    vectors, asked = normal(10, 100, 8)
    plan = Plan.adaptive(4, 16, keep=30)
    want = execute(Blocks.of(vectors, NESTING), asked, plan, 10)
    for mine, theirs in [(55, -55), (-55, 55), (0, -100), (50, 50)]:
        blocks = Blocks.of(vectors * np.float32(2.0**mine), NESTING)
        found = execute(blocks, asked * np.float32(2.0**theirs), plan, 10)
        assert [a.tobytes() for a in found] == [a.tobytes() for a in want]


def test_no_score_overflows() -> None:
    """Norms up to 2⁶² are let in, and no pair of them scores −∞, which means that there is no row."""
    vectors = np.float32([[2.0**61], [-(2.0**61)]]) * np.ones(4, np.float32)
    blocks = Blocks.of(vectors, Nesting([4]))
    for metric in METRICS:
        rows, scores = execute(blocks, vectors, Plan.single(4), 2, metric)
        assert rows.tolist() == [[0, 1], [1, 0]]
        assert np.isfinite(scores).all()


def test_a_distance_is_never_below_zero_and_ties_stay_in_order() -> None:
    rng = np.random.default_rng(11)
    vectors = np.repeat(rng.standard_normal((50, 16)).astype(np.float32) * 100, 3, axis=0)
    vectors[1::3] = np.nextafter(vectors[1::3], np.float32(0))   # as near as can be
    blocks = Blocks.of(vectors, NESTING)
    for plan in (Plan.single(16), Plan.adaptive(4, 16, keep=30)):
        rows, scores = execute(blocks, vectors, plan, 5, "l2")
        assert (scores <= 0).all()
        assert (np.diff(scores) <= 0).all()
        equal = np.diff(scores) == 0
        assert equal.any()
        assert (np.diff(rows)[equal] > 0).all()


def test_a_zero_prefix_scores_zero() -> None:
    blocks = Blocks.of([[0, 0, 1], [1, 1, 1], [0, 0, 0]], Nesting([2, 3]))
    rows, scores = execute(blocks, [[0, 0, 2]], Plan.single(2), 3)
    assert rows.tolist() == [[0, 1, 2]]
    assert scores.tolist() == [[0, 0, 0]]
    rows, scores = execute(blocks, [[0, 0, 2]], Plan.single(3), 3)
    assert rows.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(scores, [[1, 3**-0.5, 0]], rtol=1e-6)


def test_no_rows_and_no_queries() -> None:
    empty = Blocks.of(np.empty((0, 16)), NESTING)
    rows, scores = execute(empty, np.ones((2, 16)), Plan.adaptive(4, 16, keep=20), 3)
    assert rows.tolist() == [[-1] * 3] * 2
    assert (scores == -np.inf).all()
    rows, scores = execute(Blocks.of(np.ones((5, 16)), NESTING), np.empty((0, 16)), Plan.single(4), 3)
    assert rows.shape == scores.shape == (0, 3)


def test_memory_does_not_grow_with_the_rows() -> None:
    """Nor with the queries: a matrix of all scores would have 240 MB."""
    vectors, asked = normal(12, 60_000, 1000, dim=8)
    blocks = Blocks.of(vectors, Nesting([4, 8]), int8_up_to=4)
    for plan in (Plan.adaptive(4, 8, keep=100, precision="int8"), Plan.single(8)):
        tracemalloc.start()
        execute(blocks, asked, plan, 10)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 32e6


BLOCKS = Blocks.of(np.ones((3, 16)), NESTING, int8_up_to=4)
ONES = np.ones((1, 16))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: execute(BLOCKS, ONES, Plan.single(16), 0), "k must be an integer of at least 1 (got 0)"),
        (lambda: execute(BLOCKS, ONES, Plan.single(16), 1, "dot"), "metric must be cosine, ip or l2 (got 'dot')"),
        (lambda: execute(BLOCKS, ONES[0], Plan.single(16), 1),
         "queries must be a two-dimensional array of real numbers with 16 columns, as the stored vectors have"),
        (lambda: execute(BLOCKS, ONES[:, :4], Plan.single(4), 1), "stored vectors have (got shape (1,"),
        (lambda: execute(BLOCKS, ONES.astype(str), Plan.single(4), 1), "real numbers"),
        (lambda: execute(BLOCKS, ONES * np.nan, Plan.single(4), 1),
         "queries must be finite in float32, with a norm of at most 2⁶² (got 1 bad rows, the first is row 0)"),
        (lambda: execute(BLOCKS, np.concatenate([ONES, ONES * 1e39]), Plan.single(4), 1), "the first is row 1"),
        (lambda: execute(BLOCKS, np.concatenate([ONES, ONES * 0]), Plan.single(4), 1),
         "a query must not be all zeros if the metric is cosine (got row 1): drop it, or encode it again"),
        (lambda: execute(BLOCKS, ONES, Plan.single(4), 1, "ip", [0, 1]),
         "allowed must be a mask of 3 booleans, one per row (got shape (2,), int64)"),
        (lambda: execute(BLOCKS, ONES, Plan.single(4), 1, "ip", np.ones(2, bool)), "a mask of 3 booleans"),
        (lambda: execute(BLOCKS, ONES, Plan.single(16, precision="int8"), 1),
         "an int8 stage at dim 16 needs int8 copies of the blocks up to that dim (got copies of 2 blocks)"),
    ],
)  # fmt: skip
def test_rules(call, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        call()


def test_dims_must_be_of_the_nesting() -> None:
    with pytest.raises(NestingError, match=r"1, 4, 16 \(got 8\)"):
        execute(BLOCKS, ONES, Plan.adaptive(8, 16, keep=10), 1)


def test_a_bad_query_is_named_whichever_batch_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUDGET", 1)
    asked = np.ones((9, 16))
    asked[7] = 0
    with pytest.raises(EmbeddingsError, match=r"got row 7\)"):
        execute(BLOCKS, asked, Plan.single(4), 1)
    assert (execute(BLOCKS, asked, Plan.single(4), 1, "l2")[0] == 0).all()   # a point like any other


def test_hits_hold_ids_and_scores() -> None:
    rows, scores = execute(BLOCKS, ONES, Plan.single(4), 4)
    hits = Hits(np.array(["a", "b", "c", ""])[rows], scores)
    assert hits.ids.tolist() == [["a", "b", "c", ""]]
    assert hits.scores[0, 3] == -np.inf
