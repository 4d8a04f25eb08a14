"""The scan finds what plain loops find, whatever the tiles; in float16 and int8 within bounds that are derived."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import InputError, NestingError
from matryo.nesting import Nesting
from matryo.retrieve.engines.numpy import scan
from matryo.retrieve.engines.numpy.scan import first_stage
from matryo.retrieve.engines.numpy.shortlist import Shortlist
from matryo.retrieve.engines.request import Request
from matryo.retrieve.plan.plan import Stage
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS

NESTING = Nesting([1, 4, 16])   # vectors of ±1 have the norms 1, 2 and 4: cosines are exact in float32
EPS = 2.0**-24


def signs(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.choice(np.float32([-1, 1]), (count, 16))


def naive(vectors: np.ndarray, queries: np.ndarray, dim: int, metric: str) -> np.ndarray:
    """Plain loops in float64: the definition."""
    scores = np.empty((len(queries), len(vectors)))
    for i, q in enumerate(queries.astype(np.float64)[:, :dim]):
        for j, x in enumerate(vectors.astype(np.float64)[:, :dim]):
            inner = sum(a * b for a, b in zip(q, x, strict=True))
            product = np.sqrt(sum(a * a for a in q)) * np.sqrt(sum(b * b for b in x))
            distance = sum((a - b) ** 2 for a, b in zip(q, x, strict=True))
            scores[i, j] = {"ip": inner, "l2": -distance, "cosine": inner / product if product else 0.0}[metric]
    return scores


def best(scores: np.ndarray, allowed: np.ndarray, keep: int) -> list[list[int]]:
    rows = [sorted(np.flatnonzero(allowed), key=lambda row, of=of: (-of[row], row))[:keep] for of in scores]
    return [[*map(int, found), *[-1] * (keep - len(found))] for found in rows]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6), count=st.integers(1, 60), queries=st.integers(1, 12), keep=st.integers(1, 70),
    metric=st.sampled_from(METRICS), dim=st.sampled_from(NESTING.dims),
    share=st.sampled_from([0.0, 0.1, 0.9, 1.0, None]),
    tile=st.tuples(st.integers(1, 5), st.integers(1, 12)), precision=st.sampled_from(["full", "int8"]),
)  # fmt: skip
def test_it_finds_the_best_rows(seed, count, queries, keep, metric, dim, share, tile, precision) -> None:
    rng = np.random.default_rng(seed)
    vectors, asked = signs(rng, count), signs(rng, queries)   # many ties
    allowed = np.ones(count, bool) if share is None else rng.random(count) < share
    if precision == "int8":
        vectors, asked = vectors * 127, asked * 4   # steps of exactly 1
    blocks = Blocks.of(vectors, NESTING, int8_up_to=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_TILE", tile)
        request = Request(blocks, asked, metric, None if share is None else allowed)
        found = first_stage(request, Stage(dim, keep, precision))
    scores = naive(vectors, asked, dim, metric)
    want = best(scores, allowed, keep)
    assert found.rows.tolist() == want
    assert found.rows.dtype == np.int64
    assert found.sums.dtype == found.scores.dtype == np.float32
    sums = naive(vectors, asked, dim, "ip")
    for i, rows in enumerate(want):
        assert found.sums[i].tolist() == [sums[i, row] if row >= 0 else 0 for row in rows]
        there = [row for row in rows if row >= 0]
        # The norm of 127 · (±1, …) is no power of two, so its inverse is rounded; all else is exact.
        np.testing.assert_allclose(found.scores[i, : len(there)], scores[i, there], rtol=4 * EPS)
        assert (found.scores[i, len(there) :] == -np.inf).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("queries", [1, 20])   # few are multiplied block by block
@pytest.mark.parametrize("tile", [(512, 1024), (7, 13)])
def test_real_numbers(monkeypatch: pytest.MonkeyPatch, metric: str, queries: int, tile: tuple[int, int]) -> None:
    monkeypatch.setattr(scan, "_TILE", tile)
    rng = np.random.default_rng(1)
    vectors, asked = (rng.standard_normal((count, 16)).astype(np.float32) for count in (300, queries))
    blocks = Blocks.of(vectors, NESTING)
    for dim in NESTING.dims:
        scores = naive(vectors, asked, dim, metric)
        found = first_stage(Request(blocks, asked, metric), Stage(dim, 40))
        # 16 products and sums and a few operations more, on terms of at most (‖q‖ + ‖x‖)² < 200.
        np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :40], atol=25 * EPS * 200)
        np.testing.assert_allclose(np.take_along_axis(scores, found.rows, 1), found.scores, atol=25 * EPS * 200)
        assert all(len(set(rows)) == 40 for rows in found.rows.tolist())


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), power=st.integers(-20, 10))
def test_float16_and_int8_err_within_their_bounds(seed: int, power: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((30, 16)) * 2.0**power).astype(np.float32)
    asked = rng.standard_normal((4, 16)).astype(np.float32)
    exact = naive(vectors, asked, 16, "ip")
    sizes = np.abs(asked).astype(np.float64) @ np.abs(vectors).astype(np.float64).T
    # float32 adds 16 products: at most 17 roundings, each relative to a partial sum ≤ Σ|q||x| (slightly more stored).
    rounding = 18 * EPS * sizes * 1.01
    blocks = Blocks.of(vectors, NESTING, int8_up_to=16)
    coarse = first_stage(Request(blocks, asked, "ip"), Stage(16, 30, "int8"))
    steps = np.concatenate([np.full(high - low, float(blocks.int8[number].scale))
                            for number, (low, high) in enumerate(NESTING.blocks)])  # fmt: skip
    # Each number is within half a step of its block, so a sum within half a step for each unit of |q|.
    bound = (np.abs(asked).astype(np.float64) @ steps)[:, None] * (0.5 + 127 * EPS) * (1 + 18 * EPS) + rounding
    assert (np.abs(by_row(coarse, coarse.sums) - exact) <= bound).all()
    half = first_stage(Request(Blocks.of(vectors, NESTING, dtype="float16"), asked, "ip"), Stage(16, 30))
    # float16 has 11 bits, so it errs by 2⁻¹¹ of a number; below 2⁻¹⁴ its steps stay 2⁻²⁴, half of which is 2⁻²⁵.
    lost = np.abs(asked).astype(np.float64) @ np.maximum(2.0**-11 * np.abs(vectors), 2.0**-25).astype(np.float64).T
    assert (np.abs(by_row(half, half.sums) - exact) <= lost + rounding).all()


def by_row(found: Shortlist, values: np.ndarray) -> np.ndarray:
    ordered = np.empty_like(values, dtype=np.float64)
    np.put_along_axis(ordered, found.rows, values.astype(np.float64), 1)
    return ordered


def test_int8_scores_use_the_norms_of_the_vectors_themselves() -> None:
    vectors = np.float32([[100, 1, 0, 0] * 4, [3, 4, 0, 0] * 4])
    blocks = Blocks.of(vectors, NESTING, int8_up_to=16)
    found = first_stage(Request(blocks, vectors[1:]), Stage(16, 2, "int8"))
    sums = blocks.rows(slice(None), 16, "int8").astype(np.float64) @ vectors[1]
    cosines = sums / np.linalg.norm(vectors[1]) / np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(by_row(found, found.scores)[0], cosines, rtol=1e-6)


@pytest.mark.parametrize("tile", [(512, 1024), (3, 500)])
def test_many_kept_of_many_rows(monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int]) -> None:
    """More than a tile has, too; and ties reach over tiles."""
    monkeypatch.setattr(scan, "_TILE", tile)
    vectors = np.repeat(np.arange(-1500, 1500, dtype=np.float32) // 7, 2)[:, None]
    blocks = Blocks.of(vectors, Nesting([1]))
    asked = np.float32([[1], [-1], [0], [2]])
    for keep in (1, 3, 700, 5999, 6000, 6001):
        found = first_stage(Request(blocks, asked, "ip"), Stage(1, keep))
        order = np.array([np.lexsort((np.arange(6000), -(vectors[:, 0] * q))) for q in asked[:, 0]])[:, :keep]
        np.testing.assert_array_equal(found.rows[:, : min(keep, 6000)], order)
        assert (found.rows[:, 6000:] == -1).all()


def test_no_queries() -> None:
    found = first_stage(Request(Blocks.of(np.ones((5, 16)), NESTING), np.empty((0, 16), np.float32), "l2"), Stage(4, 3))
    assert found.rows.shape == found.sums.shape == found.scores.shape == (0, 3)


@pytest.mark.parametrize("rising", [False, True])
def test_the_order_of_the_rows_does_not_matter(monkeypatch: pytest.MonkeyPatch, rising: bool) -> None:
    """The worst case for a running best: every row beats all before it."""
    monkeypatch.setattr(scan, "_TILE", (2, 16))
    line = np.arange(1000, dtype=np.float32)[:, None] * (1 if rising else -1)
    found = first_stage(Request(Blocks.of(line, Nesting([1])), np.ones((3, 1), np.float32), "ip"), Stage(1, 20))
    want = np.arange(999, 979, -1) if rising else np.arange(20)
    np.testing.assert_array_equal(found.rows, np.tile(want, (3, 1)))


def test_rules() -> None:
    blocks = Blocks.of(np.ones((3, 16)), NESTING, int8_up_to=4)
    with pytest.raises(NestingError, match=r"in the nesting, 1, 4, 16 \(got 5\)"):
        first_stage(Request(blocks, np.ones((1, 16), np.float32), "ip"), Stage(5, 1))
    with pytest.raises(InputError, match="an int8 stage at dim 16 needs int8 copies"):
        first_stage(Request(blocks, np.ones((1, 16), np.float32), "ip"), Stage(16, 1, "int8"))
