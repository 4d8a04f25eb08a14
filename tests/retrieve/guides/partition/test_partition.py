"""Partitions: where rows lie in them, and their search against plain loops, a replay in numpy, and plans without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs_core import needs_core

from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.nesting import Nesting
from matryo.retrieve.guides.partition import HEADER, Partition, PartitionSearch
from matryo.retrieve.guides.partition.build import NOBODY
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.array_folder import verify_arrays
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS, Metric

if TYPE_CHECKING:
    from pathlib import Path

NESTING = Nesting([3, 8, 20, 90, 160])


def normal(rng: np.random.Generator, count: int, dim: int = 160) -> np.ndarray:
    """Rows in a few clouds, with a spectrum that falls."""
    centres = rng.standard_normal((7, dim))
    rows = centres[rng.integers(7, size=count)] + 0.7 * rng.standard_normal((count, dim))
    return (rows * np.arange(1, dim + 1) ** -0.4).astype(np.float32)


def true_score(metric: Metric, query: np.ndarray, row: np.ndarray) -> float:
    q, x = query.astype(np.float64), row.astype(np.float64)
    if metric == "ip":
        return float(q @ x)
    if metric == "l2":
        return -float((q - x) @ (q - x))
    lengths = float(np.sqrt(q @ q) * np.sqrt(x @ x))
    return float(q @ x) / lengths if lengths else 0.0


def codes_of(partition: Partition) -> np.ndarray:
    """What the codes stand for, [places, long], in float64."""
    fours = partition.tiles.shape[1] // 64
    tiles = partition.tiles.reshape(-1, fours, 16, 4).transpose(0, 2, 1, 3).reshape(-1, fours * 4)
    first = tiles[:, : partition.dim].astype(int) - 128
    rest = np.zeros((len(first), 0), int)
    if partition.long > partition.dim:
        rest = partition.codes[:, : partition.long - partition.dim].astype(int)
    return np.concatenate([first, rest], axis=1) * partition.columns[0].astype(float) + partition.columns[1]


def scaled(blocks: Blocks, metric: Metric, dim: int) -> np.ndarray:
    """What is put into codes."""
    rows = blocks.rows(slice(None), dim).astype(np.float64)
    return rows / np.maximum(blocks.norms[:, -1:], 1e-30) if metric == "cosine" else rows


# ── where rows lie ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("count", "dim", "long"), [(1, 3, 3), (15, 3, 8), (16, 8, 160), (17, 20, 90), (400, 90, 160)])
def test_every_row_has_one_place_and_codes_near_it(metric: Metric, count: int, dim: int, long: int) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(count), count), NESTING)
    partition = Partition.of(blocks, metric, dim=dim, long=long, lists=min(count, 9))
    rows = partition.rows.ravel()
    places = np.flatnonzero(rows != NOBODY)
    assert sorted(rows[places]) == list(range(count))
    for first, size in partition.lists:
        inside = rows[first * 16 : first * 16 + size]
        assert (np.diff(inside.astype(int)) > 0).all() and NOBODY not in inside
    assert partition.lists[:, 1].sum() == count
    codes, steps = codes_of(partition)[places], partition.columns[0]
    assert (np.abs(codes - scaled(blocks, metric, long)[rows[places]]) <= 0.51 * steps + 1e-6).all()
    adjust = partition.adjust.ravel()
    assert np.isnan(adjust[rows == NOBODY]).all()
    if metric == "cosine":
        np.testing.assert_allclose(adjust[places], 1 / np.linalg.norm(codes[:, :dim], axis=1), rtol=1e-4)
    norms = blocks.norms[rows[places], blocks.level(dim)]
    expected = {"ip": np.zeros(count), "l2": -np.square(norms), "cosine": adjust[places]}
    np.testing.assert_allclose(adjust[places], expected[metric], rtol=1e-6)


def test_known_clusters_are_partitions() -> None:
    rng = np.random.default_rng(0)
    number = rng.integers(4, size=600)
    rows = np.eye(4, 160, dtype=np.float32)[number] + rng.standard_normal((600, 160)).astype("f4") * 0.001
    partition = Partition.of(Blocks.of(rows, NESTING), dim=8, lists=12)
    for first, size in partition.lists:
        assert len(set(number[partition.rows.ravel()[first * 16 : first * 16 + size]])) <= 1


def test_defaults_fit_the_nesting_and_the_rows() -> None:
    rows = np.random.default_rng(0).standard_normal((900, 160)).astype("f4")
    partition = Partition.of(Blocks.of(rows, NESTING))
    assert (partition.dim, partition.long, len(partition.lists)) == (20, 160, 4 * 30)
    assert Partition.of(Blocks.of(rows, Nesting([160]))).dim == 160
    assert len(Partition.of(Blocks.of(rows[:2], NESTING)).lists) == 2
    arrays = (getattr(partition, one.name) for one in fields(partition))
    assert partition.nbytes == sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


@pytest.mark.parametrize("metric", METRICS)
def test_queries_like_the_rows_visit_the_share_in_the_mean(metric: Metric) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 3000), NESTING)
    partition = Partition.of(blocks, metric, dim=20, lists=100)
    rows = partition.rows.ravel()
    means = np.stack([blocks.rows(rows[16 * first : 16 * first + size].astype(int), 20).mean(0) if size else
                      np.zeros(20) for first, size in partition.lists])   # near those of k-means, once it has settled
    prefixes = blocks.rows(slice(None), 20).astype(float)
    if metric != "l2":
        prefixes /= np.linalg.norm(prefixes, axis=1, keepdims=True)
    if metric == "cosine":
        means /= np.linalg.norm(means, axis=1, keepdims=True)
    looks = prefixes @ means.T if metric != "l2" else 2 * prefixes @ means.T - np.square(means).sum(1)
    for probe in (0.05, 0.2, 0.6):
        visited = (looks >= looks.max(1, keepdims=True) - partition.gap(probe)) @ partition.lists[:, 1]
        assert visited.mean() / 3000 == pytest.approx(probe, rel=0.15)
    assert partition.gap(None) == np.inf


def test_the_same_seed_gives_the_same_partitions() -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 500), NESTING)
    one, same, other = (Partition.of(blocks, dim=8, seed=seed) for seed in (1, 1, 2))
    for field in fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(same, field.name))
    assert not np.array_equal(one.rows, other.rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 5}, "dim must be in the nesting"),
        ({"dim": 20, "long": 8}, r"long must be at least dim \(got long=8, dim=20\)"),
        ({"lists": 0}, r"lists must be an integer in 1 … 30, the number of rows \(got 0\)"),
        ({"lists": 31}, "lists must be an integer"),
        ({"lists": 2.5}, "lists must be an integer"),
        ({"metric": "dot"}, "metric must be cosine, ip or l2"),
    ],
)
def test_partitions_that_cannot_be_are_refused(options: dict, said: str) -> None:
    with pytest.raises((InputError, NestingError), match=said):
        Partition.of(Blocks.of(normal(np.random.default_rng(0), 30), NESTING), **options)


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────────


@needs_core
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([0, 1, 5, 16, 33, 150]),
    dims=st.sampled_from([(8, (8, 24)), (3, (3, 5, 90)), (64, (64, 200)), (12, (12,))]),
    metric=st.sampled_from(["ip", "l2"]),
    dtype=st.sampled_from(["float32", "float16"]),
    probe=st.sampled_from([None, 1.0]),
    k=st.sampled_from([1, 4, 40]),
    masked=st.booleans(),
)
def test_what_keeps_everything_is_exact(seed, count, dims, metric, dtype, probe, k, masked) -> None:
    rng = np.random.default_rng(seed)
    dim, all_dims = dims
    rows = rng.integers(-3, 4, (count, all_dims[-1])).astype(np.float32)   # sums are exact, and ties are many
    rows[count // 2 :] = rows[: count - count // 2]
    queries, allowed = rng.integers(-3, 4, (3, all_dims[-1])), rng.random(count) < 0.5
    blocks = Blocks.of(rows, Nesting(all_dims), dtype=dtype)
    partition = Partition.of(blocks, metric, dim=dim, lists=min(3, count) or 1)
    plan = Plan((Stage(dim, max(count, 1), "int8"), Stage(all_dims[-1], max(count, 1))), probe=probe)
    found, scores = PartitionSearch(blocks, partition, plan, k)(queries, allowed if masked else None)
    for query, some, values in zip(queries, found, scores, strict=True):
        true = {row: true_score(metric, query, rows[row]) for row in range(count) if not masked or allowed[row]}
        best = sorted(true, key=lambda row: (-true[row], row))[:k]
        assert some.tolist() == best + [-1] * (k - len(best))
        assert values.tolist() == [true[row] for row in best] + [-np.inf] * (k - len(best))


@needs_core
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_keeps_everything_is_exact_for_the_cosine(dtype: str) -> None:
    rng = np.random.default_rng(0)
    rows = normal(rng, 700)
    rows[350:] = rows[:350]
    rows[9] = rows[500] = 0
    blocks = Blocks.of(rows, NESTING, dtype=dtype)
    search = PartitionSearch(blocks, Partition.of(blocks, dim=20), Plan.of([(20, 700, "int8"), (160, 10)]), 10)
    stored = blocks.rows(slice(None), 160)
    for query in normal(rng, 20):
        found, scores = search(query)
        true = np.array([true_score("cosine", query, row) for row in stored])
        assert sorted(true[found[0]]) == pytest.approx(sorted(true)[-10:], abs=1e-6)
        assert scores[0] == pytest.approx(true[found[0]], abs=1e-6)
        assert found[0, 1::2].tolist() == (found[0, ::2] + 350).tolist()   # equal rows: the smaller first


def replay(blocks: Blocks, partition: Partition, plan: Plan, query: np.ndarray, k: int, allowed: np.ndarray) -> list:
    """The same computation in float64, from the codes as they are stored, but for the rounding of the query."""
    metric, plan = partition.metric, plan.for_k(k)
    q = query.astype(np.float64)
    if metric == "cosine":
        q = q / np.linalg.norm(q)

    def scores(sums: np.ndarray, norms: np.ndarray, dim: int) -> np.ndarray:
        length = np.linalg.norm(q[:dim])
        return {"ip": sums, "l2": 2 * sums - norms**2, "cosine": sums / np.maximum(norms * length, 1e-30)}[metric]

    fours, dim = partition.means.shape[1] // 64, partition.dim
    means = partition.means.reshape(-1, fours, 16, 4).transpose(0, 2, 1, 3).reshape(-1, fours * 4)[:, :dim]
    means = (means.astype(int) - 128) * partition.columns[0, :dim].astype(float) + partition.columns[1, :dim]
    means, places = means[: len(partition.lists)], []
    looks = {"ip": means @ q[:dim], "l2": 2 * means @ q[:dim] + partition.means_adjust.ravel()[: len(means)],
             "cosine": means @ q[:dim] / np.linalg.norm(q[:dim]) * partition.means_adjust.ravel()[: len(means)]}[metric]
    gap = partition.gap(plan.probe) * (np.linalg.norm(q[:dim]) if metric == "ip" else 1)
    near, wanted = looks >= looks.max() - gap, round(min(1, 3 * (plan.probe or 1)) * partition.count)
    rows = partition.rows.ravel()
    for one in np.argsort(-looks, kind="stable"):   # those near, and others until there are enough
        first, size = partition.lists[one]
        if wanted > 0 and (near[one] or len(places) < plan.stages[0].keep):
            places += [place for place in range(first * 16, first * 16 + size) if allowed[rows[place]]]
        wanted -= size
    codes, places = codes_of(partition), np.array(places, int)
    for number, stage in enumerate(plan.stages):
        level = blocks.level(stage.dim)
        if stage.precision == "int8":
            sums, norms = codes[places, : stage.dim] @ q[: stage.dim], blocks.norms[rows[places], level].astype(float)
            if metric == "cosine":
                norms = norms / blocks.norms[rows[places], -1] if number else 1 / partition.adjust.ravel()[places]
        else:
            stored = blocks.rows(rows[places].astype(int), stage.dim).astype(float)
            sums, norms = stored @ q[: stage.dim], np.linalg.norm(stored, axis=1)
        now = scores(sums, norms, stage.dim)
        order = np.argsort(-now, kind="stable")[: stage.keep]
        if stage.margin is not None and len(order) > k:
            order = order[now[order] >= now[order[k - 1]] - stage.margin]
        places = places[order]
    return rows[places].tolist()


PLANS = [
    Plan.of([(20, 60, "int8"), (160, 10)]),
    Plan.of([(20, 60, "int8"), (90, 30, "int8"), (160, 15, "int8"), (160, 10)]),
    Plan.of([(20, 60, "int8"), (20, 50, "int8"), (20, 40), (90, 20), (160, 10)]),
    Plan.of([(20, 40, "int8"), (90, 12, "int8")]),
    Plan((Stage(20, 100, "int8", 0.2), Stage(160, 40, "int8", 0.05), Stage(160, 10)), probe=0.3),
    Plan((Stage(20, 100, "int8", 0.5), Stage(90, 40, "full", 0.3), Stage(160, 10)), probe=0.1),
    Plan((Stage(20, 5, "int8"), Stage(160, 5)), probe=0.03),
]


@needs_core
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_a_plan_does_what_its_replay_does(number: int, metric: Metric, masked: bool) -> None:
    rng = np.random.default_rng(number)
    blocks = Blocks.of(normal(rng, 900), NESTING, dtype="float16" if number % 2 else "float32")
    partition, plan = Partition.of(blocks, metric, dim=20, lists=40), PLANS[number]
    allowed = rng.random(900) < 0.6 if masked else np.ones(900, bool)
    queries = normal(rng, 25)
    found, scores = PartitionSearch(blocks, partition, plan, 5)(queries, allowed if masked else None)
    same = 0
    for query, some, values in zip(queries, found, scores, strict=True):
        expected = replay(blocks, partition, plan, query, 5, allowed)
        there = some[some >= 0]
        stored = blocks.rows(there, plan.dim)
        true = np.array([true_score(metric, query[: plan.dim], row) for row in stored])
        np.testing.assert_allclose(values[some >= 0], true, rtol=1e-5, atol=2e-5)
        assert (np.diff(values[some >= 0]) <= 0).all() and allowed[there].all()
        assert len(there) == len(expected)
        same += set(there) == set(expected)
    assert same >= 23   # a query's rounding may swap two that are all but equal


@needs_core
@pytest.mark.parametrize("metric", METRICS)
def test_tiles_of_many_columns_do_not_overflow(metric: Metric) -> None:
    rows = np.random.default_rng(0).random((90, 3000)).astype(np.float32) + 5   # products of codes of one sign
    blocks = Blocks.of(rows, Nesting([3000]))
    search = PartitionSearch(blocks, Partition.of(blocks, metric, lists=4), Plan.of([(3000, 12, "int8")]), 3)
    true = np.array([[true_score(metric, query, row) for row in rows] for query in rows[:9]])
    assert search(rows[:9])[0][:, 0].tolist() == true.argmax(1).tolist()


@needs_core
def test_few_partitions_hold_what_is_near() -> None:
    rng = np.random.default_rng(0)
    rows, queries = normal(rng, 5000), normal(rng, 100)
    blocks = Blocks.of(rows, NESTING)
    partition = Partition.of(blocks)
    exact = PartitionSearch(blocks, partition, Plan.of([(20, 5000, "int8"), (160, 10)]), 10)(queries)[0]
    plan = Plan((Stage(20, 200, "int8"), Stage(160, 10)), probe=0.2)
    found = PartitionSearch(blocks, partition, plan, 10)(queries)[0]
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]) > 9


@needs_core
def test_a_mask_of_few_rows_is_searched_further() -> None:
    rng = np.random.default_rng(0)
    blocks, queries = Blocks.of(normal(rng, 3000), NESTING), normal(rng, 20)
    partition, plan = Partition.of(blocks), Plan.of([(20, 60, "int8"), (160, 10)])
    search = PartitionSearch(blocks, partition, plan, 10)
    few = PartitionSearch(blocks, partition, replace(plan, probe=0.1), 10)
    np.testing.assert_array_equal(few(queries)[0], few(queries, np.ones(3000, bool))[0])
    allowed = rng.random(3000) < 0.1
    found, exact = few(queries, allowed)[0], search(queries, allowed)[0]
    assert allowed[found[found >= 0]].all()
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]) > 7


@needs_core
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [1e-30, 2.0**50])
def test_very_short_and_very_long_vectors_are_found(metric: Metric, size: float) -> None:
    rng = np.random.default_rng(0)
    rows = normal(rng, 300) * np.float32(size)
    blocks = Blocks.of(rows, NESTING)
    plan = Plan((Stage(20, 100, "int8"), Stage(160, 60, "int8"), Stage(160, 3)), probe=0.9)
    found, scores = PartitionSearch(blocks, Partition.of(blocks, metric, dim=20), plan, 3)(rows[:20])
    assert np.isfinite(scores).all()
    if metric == "cosine" or (metric == "l2" and size > 1):
        assert found[:, 0].tolist() == list(range(20))


@needs_core
def test_rows_and_queries_without_a_prefix_have_scores() -> None:
    rng = np.random.default_rng(0)
    rows = normal(rng, 200)
    rows[::3, :20] = 0
    rows[5] = 0
    blocks = Blocks.of(rows, NESTING)
    search = PartitionSearch(blocks, Partition.of(blocks, dim=20), Plan.of([(20, 200, "int8"), (160, 10)]), 10)
    query = normal(rng, 1)[0]
    query[:20] = 0
    true = np.array([true_score("cosine", query, row) for row in rows])
    assert search(query)[1][0] == pytest.approx(np.sort(true)[::-1][:10], abs=1e-6)


@needs_core
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


@needs_core
def test_nothing_given_is_changed() -> None:
    rng = np.random.default_rng(0)
    blocks, queries, allowed = Blocks.of(normal(rng, 100), NESTING), normal(rng, 3), rng.random(100) < 0.5
    partition = Partition.of(blocks, "l2")
    before = queries.copy(), allowed.copy(), partition.tiles.copy(), blocks.full[0].copy()
    PartitionSearch(blocks, partition, Plan.of([(20, 50, "int8"), (160, 10)]), 10)(queries, allowed)
    for array, old in zip((queries, allowed, partition.tiles, blocks.full[0]), before, strict=True):
        np.testing.assert_array_equal(array, old)


@needs_core
@pytest.mark.parametrize(
    ("plan", "k", "said"),
    [
        (Plan.of([(20, 50), (160, 10)]), 10, r"first stage must be in int8 at the dim of the partitions' tiles, 20"),
        (Plan.of([(8, 50, "int8"), (160, 10)]), 10, r"must be in int8 .* tiles, 20 \(got int8 at 8\)"),
        (Plan.of([(20, 50, "int8"), (160, 10, "int8")]), 10, r"not exceed the 90 columns .* \(got 160\)"),
        (Plan.of([(20, 50, "int8"), (30, 10)]), 10, r"dims of a plan.*\(got 30\)"),
        (Plan((Stage(20, 50, "int8"),), ef=60), 10, r"a plan for partitions must not have ef \(got ef=60\)"),
        (Plan.of([(20, 50, "int8")]), 0, "k must be an integer of at least 1"),
    ],
)
def test_plans_that_cannot_be_run_are_refused(plan: Plan, k: int, said: str) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 30), NESTING)
    with pytest.raises((InputError, NestingError), match=said):
        PartitionSearch(blocks, Partition.of(blocks, dim=20, long=90), plan, k)


@needs_core
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
    with pytest.raises(EmbeddingsError, match=said):
        search(queries)
    with pytest.raises(InputError, match="allowed must be a mask of 30 booleans"):
        search(np.ones(160), np.ones(29, bool))


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────


@needs_core
@pytest.mark.parametrize("count", [0, 300])
def test_a_folder_is_searched_like_what_was_written(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    blocks, queries = Blocks.of(normal(rng, count), NESTING), normal(rng, 8)
    made = Partition.of(blocks, "l2", dim=20)
    made.write(tmp_path / "here")
    opened = Partition.open(tmp_path / "here")
    for field in fields(made):
        np.testing.assert_array_equal(getattr(made, field.name), getattr(opened, field.name))
    plan = Plan((Stage(20, 50, "int8"), Stage(160, 20, "int8"), Stage(160, 5)), probe=0.3)
    before, after = (PartitionSearch(blocks, one, plan, 5)(queries) for one in (made, opened))
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])
    with pytest.raises(EmbeddingsError, match="written to a new folder"):
        made.write(tmp_path / "here")


def test_each_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 60), NESTING)
    Partition.of(blocks, dim=20).write(tmp_path / "here")
    verify_arrays(tmp_path / "here", HEADER)
    for path in sorted((tmp_path / "here").iterdir()):
        held = path.read_bytes()
        path.write_bytes(held[:-5] + bytes([held[-5] ^ 1]) + held[-4:])
        with pytest.raises(EmbeddingsError, match=rf"{path.name} is damaged"):
            verify_arrays(tmp_path / "here", HEADER)
        path.write_bytes(held)
    verify_arrays(tmp_path / "here", HEADER)
    assert (tmp_path / "here" / HEADER).is_file()


@pytest.mark.parametrize("name", ["rows", "lists"])
def test_places_that_are_not_there_are_found_when_opened(tmp_path: Path, name: str) -> None:
    made = Partition.of(Blocks.of(normal(np.random.default_rng(0), 60), NESTING), dim=20)
    wrong = getattr(made, name).copy()
    wrong.flat[0] = 1000
    replace(made, **{name: wrong}).write(tmp_path / "here")
    with pytest.raises(EmbeddingsError, match=r"is damaged .*rows or tiles out of range"):
        Partition.open(tmp_path / "here")


def test_partitions_of_other_blocks_are_refused() -> None:
    rng = np.random.default_rng(0)
    blocks, others = Blocks.of(normal(rng, 60), NESTING), Blocks.of(normal(rng, 61), NESTING)
    partition = Partition.of(blocks, dim=20)
    for wrong in (others, Blocks.of(normal(rng, 60), Nesting([8, 160]))):
        with pytest.raises(EmbeddingsError, match="partitions must belong to the blocks that are searched"):
            PartitionSearch(wrong, partition, Plan.of([(20, 50, "int8")]), 5)
