"""The search of partitions against plain loops, a replay in numpy, and plans without partitions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs_core import needs_core
from partition_oracle import (
    candidates,
    code_slack,
    coordinates,
    decoded_tiles,
    list_scores,
    replay,
    tile_scores,
    true_score,
    turned_query,
    visited,
    whole,
)

from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.nesting import Nesting
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS, Metric

pytestmark = needs_core
NESTING = Nesting([3, 8, 20, 90, 160])
LAYOUTS = {
    "columns": {"dim": 20, "rotated": False, "copies": 1},
    "columns, twice": {"dim": 21, "rotated": False, "copies": 2},
    "rotated": {"dim": 37, "rotated": True, "copies": 1},
    "rotated, twice": {"dim": 24, "rotated": True, "copies": 2},
}


def normal(rng: np.random.Generator, count: int, dim: int = 160) -> np.ndarray:
    """Rows in a few clouds, with a spectrum that falls."""
    centres = rng.standard_normal((7, dim))
    rows = centres[rng.integers(7, size=count)] + 0.7 * rng.standard_normal((count, dim))
    return (rows * np.arange(1, dim + 1) ** -0.4).astype(np.float32)


@cache
def made(metric: Metric, layout: str, half: bool = False) -> tuple[Blocks, Partition]:
    rows = normal(np.random.default_rng(5), 900)
    rows[600:640] = rows[7]   # ties
    blocks = Blocks.of(rows, NESTING, dtype="float16" if half else "float32")
    return blocks, Partition.of(blocks, metric, lists=40, **LAYOUTS[layout])


# ── what keeps everything ─────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([0, 1, 5, 16, 33, 150]),
    dims=st.sampled_from([(8, (8, 24)), (3, (3, 5, 90)), (51, (64, 200)), (12, (12,)), (1, (1,))]),
    metric=st.sampled_from(["ip", "l2"]),
    dtype=st.sampled_from(["float32", "float16"]),
    probe=st.sampled_from([None, 1.0, 0.01]),
    rotated=st.booleans(),
    copies=st.sampled_from([1, 2]),
    k=st.sampled_from([1, 4, 40]),
    masked=st.booleans(),
)
def test_what_keeps_everything_is_exact(
    seed: int, count: int, dims: Any, metric: Metric, dtype: str, probe: float | None, rotated: bool, copies: int,
    k: int, masked: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    dim, all_dims = dims
    if probe == 0.01:   # every row is needed
        k = max(count, 1)
    rows = rng.integers(-3, 4, (count, all_dims[-1])).astype(np.float32)   # sums are exact, and ties are many
    rows[count // 2 :] = rows[: count - count // 2]
    queries, allowed = rng.integers(-3, 4, (3, all_dims[-1])), rng.random(count) < 0.5
    blocks = Blocks.of(rows, Nesting(all_dims), dtype=dtype)
    partition = Partition.of(blocks, metric, dim=dim, rotated=rotated, copies=copies, lists=min(3, count) or 1)
    plan = Plan((Stage(all_dims[0], max(count, 1), "int8"), Stage(all_dims[-1], max(count, 1))), probe=probe)
    found, scores = PartitionSearch(blocks, partition, plan, k)(queries, allowed if masked else None)
    for query, some, values in zip(queries, found, scores, strict=True):
        true = {row: true_score(metric, query, rows[row]) for row in range(count) if not masked or allowed[row]}
        best = sorted(true, key=lambda row: (-true[row], row))[:k]
        assert some.tolist() == best + [-1] * (k - len(best))
        assert values.tolist() == [true[row] for row in best] + [-np.inf] * (k - len(best))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_keeps_everything_is_exact_for_the_cosine(dtype: str, layout: str) -> None:
    rng = np.random.default_rng(0)
    rows = normal(rng, 700)
    rows[350:] = rows[:350]
    rows[9] = rows[500] = 0
    blocks = Blocks.of(rows, NESTING, dtype=dtype)
    partition = Partition.of(blocks, **LAYOUTS[layout])
    search = PartitionSearch(blocks, partition, Plan.of([(20, 700, "int8"), (160, 10)]), 10)
    stored = blocks.rows(slice(None), 160)
    for query in normal(rng, 20):
        found, scores = search(query)
        true = np.array([true_score("cosine", query, row) for row in stored])
        assert sorted(true[found[0]]) == pytest.approx(sorted(true)[-10:], abs=1e-6)
        assert scores[0] == pytest.approx(true[found[0]], abs=1e-6)
        assert found[0, 1::2].tolist() == (found[0, ::2] + 350).tolist()   # equal rows: the smaller first


# ── the first stage ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("metric", METRICS)
def test_scores_of_means_are_those_of_their_codes(metric: Metric, layout: str) -> None:
    blocks, partition = made(metric, layout)
    queries = normal(np.random.default_rng(1), 9)
    scores = PartitionSearch(blocks, partition, Plan.single(160), 1).score_lists(queries)
    for query, some in zip(queries, scores, strict=True):
        true = list_scores(partition, query)
        np.testing.assert_allclose(some, true, rtol=0, atol=2e-3 * np.abs(true).max())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounding_a_query_adds_little_to_the_errors_of_the_codes(layout: str) -> None:
    blocks, partition = made("l2", layout)
    true, slots = coordinates(partition, whole(blocks, "l2")[partition.rows]), partition.slots.ravel()
    used = slots < len(true)
    for query in normal(np.random.default_rng(1), 5):
        turned = turned_query(partition, query)
        exact = (decoded_tiles(partition, partition.tiles) @ turned)[used]
        errors = exact - true[slots[used]] @ turned
        scores = tile_scores(partition, partition.tiles, np.zeros(len(slots)), query)[used] / 2
        assert np.var(scores - exact) < 0.03 * np.var(errors)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("probe", [0.02, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("metric", METRICS)
def test_candidates_are_the_best_rows_of_the_visited_partitions(
    metric: Metric, layout: str, probe: float, masked: bool
) -> None:
    blocks, partition = made(metric, layout)
    rng = np.random.default_rng(2)
    queries, allowed = normal(rng, 12), rng.random(900) < 0.3 if masked else None
    k = 8
    search = PartitionSearch(blocks, partition, Plan((Stage(160, k, "int4"),), probe=probe), k, scan_only=True)
    rows, scores = search(queries, allowed, share=0.3 if masked else 1.0)
    wider = partition.wider_for(0.3) if masked else 1.0
    lists = search.score_lists(queries)
    slot_of = np.argsort(partition.rows)
    for query, some, values, means in zip(queries, rows, scores, lists, strict=True):
        chosen = visited(partition, means, partition.budget(probe), k, wider)
        found = candidates(partition, means, chosen, query, k, allowed)
        assert len(set(some.tolist())) == k and (allowed is None or allowed[some].all())
        slack = code_slack(partition, query)
        np.testing.assert_allclose(values, sorted(found.values())[: -k - 1 : -1], rtol=1e-5, atol=slack)
        own = [found[slot] for slot in slot_of[some].tolist()]   # each is in a visited partition
        np.testing.assert_allclose(values, own, rtol=1e-5, atol=slack)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_probe_of_1_finds_what_no_probe_finds_and_smaller_ones_less(layout: str) -> None:
    blocks, partition = made("cosine", layout)
    queries, plan = normal(np.random.default_rng(3), 50), Plan.of([(20, 100, "int8"), (160, 1)])
    every = PartitionSearch(blocks, partition, plan, 1)(queries)[0]
    hits = [
        float((PartitionSearch(blocks, partition, replace(plan, probe=probe), 1)(queries)[0] == every).mean())
        for probe in (0.01, 0.2, 1.0)
    ]
    assert hits[0] < hits[1] <= hits[2] == 1


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("metric", METRICS)
def test_no_place_is_empty_while_there_are_rows(metric: Metric, layout: str, together: bool) -> None:
    blocks, partition = made(metric, layout)
    queries = normal(np.random.default_rng(3), 8)
    far = np.zeros((8, 900), bool)   # the rows that score lowest for each query
    for query, allowed in zip(queries, far, strict=True):
        scores = np.array([true_score(metric, query, row) for row in blocks.rows(slice(None), 160)])
        allowed[np.argsort(scores)[:7]] = True
    masks = [far.any(0)] * 8 if together else list(far)
    plan = Plan((Stage(160, 50, "int4"), Stage(160, 7)), probe=0.001)
    for k in (5, 7, 9):
        search = PartitionSearch(blocks, partition, plan, k)
        for i, mask in enumerate(masks):
            rows, _ = search(queries if together else queries[i], mask)
            assert ((rows >= 0).sum(1) == min(k, mask.sum())).all()
            assert mask[rows[rows >= 0]].all()
            assert all(len(set(some)) == len(some) for some in (row[row >= 0].tolist() for row in rows))
    rows, _ = PartitionSearch(blocks, partition, plan, 900)(queries)
    assert (np.sort(rows, axis=1) == np.arange(900)).all()


@pytest.mark.parametrize("together", [1, 5])
def test_a_search_for_many_hits_needs_no_second_scan(together: int) -> None:
    """A query visits 4 places per hit, even if its budget is small: k=200 of 900 rows is not a scan of all."""
    blocks, partition = made("cosine", "columns")
    query = normal(np.random.default_rng(3), 1)[0]
    search = PartitionSearch(blocks, partition, Plan((Stage(160, 100, "int4"),), probe=0.001), 100, scan_only=True)
    chosen = visited(partition, search.score_lists(query[None])[0], partition.budget(0.001), 100)
    assert 400 <= partition.lists[chosen, 1].sum() < 600
    rows, _ = search(np.tile(query, (together, 1)))
    slots = partition.slots.ravel()
    inside = {int(partition.rows[slot]) for number in chosen for first, size in [partition.lists[number]]
              for slot in slots[16 * first : 16 * first + size]}   # fmt: skip
    assert all(set(some.tolist()) <= inside for some in rows)


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────────────────

PLANS = [
    Plan.of([(20, 60, "int8"), (160, 10)]),
    Plan.of([(20, 60, "int8"), (90, 30, "int8"), (160, 15, "int8"), (160, 10)]),
    Plan.of([(20, 60, "int8"), (20, 50, "int8"), (20, 40), (90, 20), (160, 10)]),
    Plan.of([(20, 40, "int8"), (90, 12, "int8")]),
    Plan((Stage(20, 100, "int8", 0.2), Stage(160, 40, "int8", 0.05), Stage(160, 10)), probe=0.3),
    Plan((Stage(20, 100, "int4", 0.5), Stage(90, 40, "full", 0.3), Stage(160, 10)), probe=0.1),
    Plan((Stage(37, 5, "int4"), Stage(160, 5)), probe=0.03),
    Plan((Stage(37, 60),), probe=0.03),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("number", range(len(PLANS) - 1))
def test_a_plan_does_what_its_replay_does(number: int, metric: Metric, layout: str, masked: bool) -> None:
    rng = np.random.default_rng(number)
    blocks, partition = made(metric, layout, number % 2 == 1)
    plan, k = PLANS[number], 5
    allowed = rng.random(900) < 0.6 if masked else None
    queries = normal(rng, 25)
    search = PartitionSearch(blocks, partition, plan, k)
    found, scores = search(queries, allowed)
    lists, same = search.score_lists(queries), 0
    for query, some, values, means in zip(queries, found, scores, lists, strict=True):
        chosen = visited(partition, means, partition.budget(plan.probe), k)
        expected = replay(blocks, partition, plan, query, k, candidates(partition, means, chosen, query, k, allowed))
        there = some[some >= 0]
        stored = blocks.rows(there, plan.dim)
        true = np.array([true_score(metric, query[: plan.dim], row) for row in stored])
        np.testing.assert_allclose(values[some >= 0], true, rtol=1e-12, atol=1e-12)
        assert (np.diff(values[some >= 0]) <= 0).all() and (allowed is None or allowed[there].all())
        assert len(there) == len(expected)
        same += set(there) == set(expected)
    assert same >= 23   # a query's rounding may swap two that are all but equal


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    metric=st.sampled_from(METRICS),
    layout=st.sampled_from([*LAYOUTS]),
    probe=st.sampled_from([None, 0.01, 0.1, 0.5]),
    k=st.sampled_from([1, 10, 300]),
    keep=st.sampled_from([1, 40, 900]),
    count=st.sampled_from([2, 3, 5, 13, 300]),
    share=st.sampled_from([None, 0.01, 0.5]),
    threads=st.sampled_from([1, 3]),
)
def test_a_batch_has_the_hits_of_its_queries_one_by_one(
    seed: int, metric: Metric, layout: str, probe: float | None, k: int, keep: int, count: int, share: float | None,
    threads: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    blocks, partition = made(metric, layout)
    queries = normal(rng, count)
    queries[-1] = blocks.rows(np.array([7]), 160)[0]   # of the ties
    allowed = None if share is None else rng.random(900) < share
    search = PartitionSearch(blocks, partition, Plan((Stage(20, keep, "int8"), Stage(160, keep)), probe=probe), k)
    rows, scores = search(queries, allowed, threads, share or 1.0)
    for i in rng.permutation(count)[:12]:
        alone = search(queries[i], allowed, 1, share or 1.0)
        np.testing.assert_array_equal(alone[0][0], rows[i])
        np.testing.assert_array_equal(alone[1][0], scores[i])


@pytest.mark.parametrize("metric", METRICS)
def test_tiles_of_many_columns_do_not_overflow(metric: Metric) -> None:
    rows = np.random.default_rng(0).random((90, 3000)).astype(np.float32) + 5   # products of codes of one sign
    blocks = Blocks.of(rows, Nesting([3000]))
    partition = Partition.of(blocks, metric, dim=3000, rotated=False, lists=4)
    search = PartitionSearch(blocks, partition, Plan.of([(3000, 12, "int8")]), 3)
    true = np.array([[true_score(metric, query, row) for row in rows] for query in rows[:3]])
    assert search(rows[:3])[0][:, 0].tolist() == true.argmax(1).tolist()


def test_the_largest_codes_of_the_widest_tiles_do_not_overflow() -> None:
    rows = np.zeros((32, 8192), np.float32)
    rows[3] = 1   # far above the other values of each column: code 15
    blocks = Blocks.of(rows, Nesting([8192]))
    partition = Partition.of(blocks, "ip", dim=8192, rotated=False, copies=1, lists=1)
    query = np.ones(8192, np.float32)   # every code is the largest
    place = int(np.flatnonzero(partition.slots.ravel() == np.flatnonzero(partition.rows == 3)[0])[0])
    tile, lane = divmod(place, 16)
    assert (partition.tiles[tile].reshape(-1, 16, 4)[:, lane] == 0xFF).all()
    search = PartitionSearch(blocks, partition, Plan((Stage(8192, 2, "int8"),)), 2, scan_only=True)
    for some in (query, -query):
        scores = tile_scores(partition, partition.tiles, partition.adjust, some)
        found, values = search(some)
        assert (3 in found[0]) == (some[0] > 0)
        np.testing.assert_allclose(values[0, 0], np.nanmax(scores), rtol=1e-4, atol=0.1)
    with pytest.raises(InputError, match="dim must be at most 8192"):
        Partition.of(Blocks.of(np.ones((2, 8200), np.float32), Nesting([8200])), dim=8193)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_partitions_hold_what_is_near(layout: str) -> None:
    rng = np.random.default_rng(0)
    rows, queries = normal(rng, 5000), normal(rng, 100)
    blocks = Blocks.of(rows, NESTING)
    partition = Partition.of(blocks, **LAYOUTS[layout])
    exact = PartitionSearch(blocks, partition, Plan.of([(20, 5000, "int8"), (160, 10)]), 10)(queries)[0]
    plan = Plan((Stage(20, 200, "int8"), Stage(160, 10)), probe=0.2)
    found = PartitionSearch(blocks, partition, plan, 10)(queries)[0]
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]) > 8.8


def test_a_mask_of_few_rows_is_searched_further() -> None:
    rng = np.random.default_rng(0)
    blocks, queries = Blocks.of(normal(rng, 3000), NESTING), normal(rng, 40)
    partition, plan = Partition.of(blocks), Plan.of([(20, 200, "int8"), (160, 10)])
    search = PartitionSearch(blocks, partition, plan, 10)
    few = PartitionSearch(blocks, partition, replace(plan, probe=0.1), 10)
    np.testing.assert_array_equal(few(queries)[0], few(queries, np.ones(3000, bool))[0])
    allowed = rng.random(3000) < 0.1
    exact = search(queries, allowed)[0]
    narrow, wide = (few(queries, allowed, share=share)[0] for share in (1.0, 0.1))
    assert allowed[wide].all()
    narrow, wide = (
        np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]) for found in (narrow, wide)
    )
    assert wide > 7 and wide >= narrow


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [1e-30, 2.0**50])
def test_very_short_and_very_long_vectors_are_found(metric: Metric, size: float, layout: str) -> None:
    rng = np.random.default_rng(0)
    rows = normal(rng, 300) * np.float32(size)
    blocks = Blocks.of(rows, NESTING)
    plan = Plan((Stage(20, 100, "int8"), Stage(160, 60, "int8"), Stage(160, 3)), probe=0.9)
    found, scores = PartitionSearch(blocks, Partition.of(blocks, metric, **LAYOUTS[layout]), plan, 3)(rows[:20])
    assert np.isfinite(scores).all()
    if metric == "cosine" or (metric == "l2" and size > 1):
        assert found[:, 0].tolist() == list(range(20))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_and_queries_without_a_prefix_have_scores(layout: str) -> None:
    rng = np.random.default_rng(0)
    rows = normal(rng, 200)
    rows[::3, :40] = 0
    rows[5] = 0
    blocks = Blocks.of(rows, NESTING)
    partition = Partition.of(blocks, **LAYOUTS[layout])
    search = PartitionSearch(blocks, partition, Plan.of([(20, 200, "int8"), (160, 10)]), 10)
    query = normal(rng, 1)[0]
    query[:40] = 0
    true = np.array([true_score("cosine", query, row) for row in rows])
    assert search(query)[1][0] == pytest.approx(np.sort(true)[::-1][:10], abs=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rows", [np.zeros((70, 16)), np.ones((70, 16)), np.eye(1, 16)], ids=["zeros", "equal", "one"])
def test_rows_without_any_spread_are_found(metric: Metric, rows: np.ndarray) -> None:
    blocks, k = Blocks.of(rows.astype("f4"), Nesting([4, 16])), min(len(rows), 20)
    for options in ({}, {"rotated": True, "copies": 2, "dim": 5}):
        plan = Plan((Stage(5, 30, "int4"), Stage(16, 20)), probe=0.1)
        found, scores = PartitionSearch(blocks, Partition.of(blocks, metric, **options), plan, k)(np.ones(16))
        assert len(set(found[0].tolist())) == k and (found >= 0).all() and np.isfinite(scores).all()


def test_one_query_is_a_batch_of_one_and_threads_agree() -> None:
    rng = np.random.default_rng(0)
    blocks, queries = Blocks.of(normal(rng, 800), NESTING), normal(rng, 40)
    plan = Plan.adaptive(20, 160, keep=50, precision="int8", probe=0.3)
    search = PartitionSearch(blocks, Partition.of(blocks), plan, 5)
    rows, scores = search(queries)
    with ThreadPoolExecutor(4) as pool:
        for i, (one, values) in enumerate(pool.map(search, queries)):
            np.testing.assert_array_equal(one[0], rows[i])
            np.testing.assert_array_equal(values[0], scores[i])
    assert search(queries[:0])[0].shape == (0, 5)
    assert search(queries.astype(np.float64)[:, ::-1])[0].shape == (40, 5)


def test_nothing_given_is_changed() -> None:
    rng = np.random.default_rng(0)
    vectors, queries, allowed = normal(rng, 100), normal(rng, 3), rng.random(100) < 0.5
    for metric in METRICS:
        blocks = Blocks.of(vectors, Nesting([160]))
        before = queries.copy(), allowed.copy(), blocks.full[0].copy(), vectors.copy()
        partition = Partition.of(blocks, metric)
        PartitionSearch(blocks, partition, Plan.single(160), 10)(queries, allowed)
        for array, old in zip((queries, allowed, blocks.full[0], vectors), before, strict=True):
            np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize(
    ("plan", "k", "said"),
    [
        (Plan.of([(20, 50, "int8"), (30, 10)]), 10, r"dims of a plan.*\(got 30\)"),
        (Plan.of([(21, 50, "int8"), (160, 10)]), 10, r"dims of a plan.*\(got 21\)"),   # without a probe
        (PLANS[-1], 10, r"dims of a plan.*\(got 37\)"),   # its only stage is also the last
        (Plan((Stage(20, 50, "int8"),), ef=60), 10, r"a plan for partitions must not have ef \(got ef=60\)"),
        (Plan.of([(20, 50, "int8")]), 0, "k must be an integer of at least 1"),
    ],
)
def test_plans_that_cannot_be_run_are_refused(plan: Plan, k: int, said: str) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 30), NESTING)
    with pytest.raises((InputError, NestingError), match=said):
        PartitionSearch(blocks, Partition.of(blocks, dim=20, long=90), plan, k)


def test_steps_without_8_bit_codes_read_the_vectors() -> None:
    rng = np.random.default_rng(0)
    blocks, queries = Blocks.of(normal(rng, 400), NESTING), normal(rng, 9)
    partition = Partition.of(blocks, dim=20, long=90)
    eight, full = (
        PartitionSearch(blocks, partition, Plan.of([(20, 90, "int8"), (160, 30, precision), (160, 5)]), 5)(queries)
        for precision in ("int8", "full")
    )
    np.testing.assert_array_equal(eight[0], full[0])
    np.testing.assert_array_equal(eight[1], full[1])


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        (np.ones((1, 3)), "real numbers with 160 columns"),
        (np.ones((1, 1, 160)), "real numbers with 160 columns"),
        (np.concatenate([np.ones((2, 160)), np.full((1, 160), np.nan)]), "queries must be finite.*row 2"),
        (np.full(160, 1e30), "queries must be finite.*row 0"),
        (np.stack([np.ones(160), np.zeros(160)]), r"query must not be all zeros if the metric is cosine \(got row 1\)"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused(queries: np.ndarray, said: str) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 30), NESTING)
    search = PartitionSearch(blocks, Partition.of(blocks), Plan.of([(20, 30, "int8")]), 3)
    for call in (search, lambda queries: search.score_lists(np.atleast_2d(queries))):
        with pytest.raises(EmbeddingsError, match=said):
            call(queries)
    with pytest.raises(InputError, match="allowed must be a mask of 30 booleans"):
        search(np.ones(160), np.ones(29, bool))
