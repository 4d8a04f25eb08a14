"""Certified search against a scan that reads everything, and that scan against plain loops."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs_core import needs_core

from matryo import Nesting
from matryo.errors import EmbeddingsError, InputError
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
from matryo.retrieve.vectors.blocks import Blocks, tiles
from matryo.retrieve.vectors.metric import METRICS, Metric
from matryo.retrieve.vectors.queries import as_floats, as_mask, check_scores


def made(rng: np.random.Generator, count: int, dim: int, decay: float = 1.0) -> np.ndarray:
    """Rows of a spectrum that decays along axes that are not the columns."""
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    return ((rng.standard_normal((count, dim)) * np.arange(1, dim + 1) ** -decay) @ turn).astype(np.float32)


def first_codes(tiles: np.ndarray) -> np.ndarray:
    """Tiles [tile, four columns, row, column] of unsigned codes, row by row and signed."""
    return (tiles.transpose(0, 2, 1, 3).reshape(len(tiles) * 16, -1) ^ 128).view(np.int8)


def true_score(metric: Metric, query: np.ndarray, row: np.ndarray) -> float:
    """Every sum is rounded once."""
    product = math.fsum(float(a) * float(b) for a, b in zip(query, row, strict=True))
    if metric == "ip":
        return product
    if metric == "l2":
        return -math.fsum((float(a) - float(b)) ** 2 for a, b in zip(query, row, strict=True))
    lengths = math.sqrt(math.fsum(float(a) ** 2 for a in query) * math.fsum(float(b) ** 2 for b in row))
    return product / lengths if lengths else 0.0


def scan_exactly(
    blocks: Blocks, queries: np.ndarray, k: int, metric: Metric = "cosine", allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of certified search by reading every row: plain numpy in float64."""
    if k < 1:
        raise InputError("k must be at least 1", got=k, cure="pass k=10")
    given = as_floats(queries, blocks.nesting.dim)
    check_scores(given, blocks.nesting, metric)
    given = given.astype(np.float64)
    allowed = as_mask(allowed, blocks.count)
    rows, scores = np.full((len(given), k), -1, np.int64), np.full((len(given), k), -np.inf)
    candidates = np.arange(blocks.count) if allowed is None else np.flatnonzero(allowed)
    worth = np.empty((len(given), len(candidates)))
    for tile in tiles(len(candidates), blocks.nesting.dim):
        part = blocks.rows(candidates[tile], blocks.nesting.dim).astype(np.float64)
        squares = np.square(part).sum(1)
        for i, query in enumerate(given):
            # Not BLAS: its sums depend on the position of a row, and equal rows must tie.
            if metric == "l2":   # computed from norms, small distances would be lost
                worth[i, tile] = -np.square(part - query).sum(1)
            else:
                lengths = np.sqrt(squares * np.square(query).sum()) if metric == "cosine" else 1
                worth[i, tile] = (part * query).sum(1) / np.where(lengths == 0, 1, lengths)
    for i in range(len(given)):
        best = np.lexsort((candidates, -worth[i]))[:k]
        rows[i, : len(best)], scores[i, : len(best)] = candidates[best], worth[i, best]
    return rows, scores


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("metric", METRICS)
def test_the_scan_is_a_loop_over_rows(metric: Metric, dtype: str) -> None:
    rng = np.random.default_rng(0)
    blocks = Blocks.of(made(rng, 60, 12), Nesting([4, 12]), dtype=dtype)
    queries, allowed = made(rng, 5, 12), rng.random(60) < 0.6
    stored = blocks.rows(slice(None), 12)
    rows, scores = scan_exactly(blocks, queries, 7, metric, allowed)
    for query, found, given_scores in zip(queries, rows, scores, strict=True):
        true = {row: true_score(metric, query, stored[row]) for row in np.flatnonzero(allowed)}
        best = sorted(true, key=lambda row: (-true[row], row))[:7]
        assert found.tolist() == best
        np.testing.assert_allclose(given_scores, [true[row] for row in best], rtol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_equal_rows_come_in_order(metric: Metric) -> None:
    rows = np.tile(np.array([[1, 2, 2], [2, 4, 4], [0, 0, 0]], np.float32), (5, 1))
    found, _ = scan_exactly(Blocks.of(rows, Nesting([1, 3])), np.array([[1, 2, 2]]), 6, metric)
    best = {"cosine": [0, 1, 3, 4, 6, 7], "ip": [1, 4, 7, 10, 13, 0], "l2": [0, 3, 6, 9, 12, 1]}
    assert found[0].tolist() == best[metric]


@needs_core
@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([0, 1, 5, 16, 100, 700]),
    shape=st.sampled_from([((8,), None), ((8, 24), (4,)), ((32, 96), (8, 72)), ((16, 200), (32, 96, 224))]),
    metric=st.sampled_from(METRICS),
    dtype=st.sampled_from(["float32", "float16"]),
    decay=st.sampled_from([0.0, 0.7, 2.0]),
    k=st.sampled_from([1, 3, 20]),
    masked=st.booleans(),
)
def test_it_finds_what_the_scan_finds(seed, count, shape, metric, dtype, decay, k, masked) -> None:
    rng = np.random.default_rng(seed)
    dims, levels = shape
    rows = made(rng, count, dims[-1], decay)
    rows[count // 2 :] = rows[: count - count // 2]   # ties
    blocks = Blocks.of(rows, Nesting(dims), dtype=dtype)
    queries = np.concatenate([made(rng, 3, dims[-1], decay), rows[:2]])
    allowed = rng.random(count) < 0.3 if masked else None
    certified = Certified(blocks, Sketch.of(blocks, metric, dims=levels))
    found, scores = certified.search(queries, k, allowed)
    rows_true, scores_true = scan_exactly(blocks, queries, k, metric, allowed)
    np.testing.assert_allclose(scores, scores_true, rtol=1e-13, atol=1e-15)   # float64 sums, in another order
    np.testing.assert_array_equal(found, rows_true)


@needs_core
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [1e-30, 1.0, 2.0**58])
def test_no_bound_is_below_its_score(metric: Metric, size: float) -> None:
    rng = np.random.default_rng(1)
    rows = made(rng, 500, 160, 0.5) * rng.random((500, 1)).astype(np.float32)
    rows[7] = 0
    blocks = Blocks.of(rows * np.float32(size), Nesting([16, 160]))
    certified = Certified(blocks, Sketch.of(blocks, metric, dims=(32, 96, 160)))
    largest = blocks.norms[:, -1].astype(np.float64).max()
    for query in (*made(rng, 4, 160, 0.5) * np.float32(size), *rows[:2] * np.float32(size)):
        true = np.array([true_score(metric, query, row) for row in blocks.rows(slice(None), 160)])
        bounds = np.empty((3, 500))
        certified.compiled.bounds(query, bounds)
        assert (bounds >= true).all()
        scale = {"cosine": 1.0, "ip": np.linalg.norm(query.astype(np.float64)) * largest, "l2": 4 * largest**2}[metric]
        assert (bounds[:, true.argmax()] < true.max() + 0.6 * scale).all()   # and it does bound


@needs_core
def test_rows_that_differ_in_the_last_bits_are_told_apart() -> None:
    rng = np.random.default_rng(2)
    base = made(rng, 1, 128)[0]
    rows = np.tile(base, (300, 1))
    rows[np.arange(300), rng.integers(128, size=300)] *= 1 + np.float32(2.0**-22) * rng.integers(-2, 3, 300)
    blocks = Blocks.of(rows, Nesting([8, 128]))
    for metric in METRICS:
        found, _ = Certified(blocks, Sketch.of(blocks, metric, dims=(32,))).search(base[None], 10)
        true = [true_score(metric, base, row) for row in rows]
        kth = sorted(true)[-10]
        assert all(true[row] >= kth - 1e-15 * abs(kth) for row in found[0])


@needs_core
def test_few_rows_are_left_where_a_few_axes_hold_most() -> None:
    rng = np.random.default_rng(3)
    blocks = Blocks.of(made(rng, 4000, 256), Nesting([16, 256]))
    sketch = Sketch.of(blocks)
    certified = Certified(blocks, sketch)
    assert sketch.dims[0] < 256
    assert sum(level.codes.nbytes + level.tails.nbytes for level in sketch.levels) < blocks.count * 256 * 2
    _, _, left = certified.find(made(rng, 5, 256), 10)
    assert (np.diff(left, axis=1) <= 0).all()
    assert (left[:, 0] < 4000).all()
    turned = sketch.axes.T @ sketch.axes
    np.testing.assert_allclose(turned, np.eye(len(turned)), atol=1e-12)


@needs_core
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_which_a_sketch_excludes_few_are_scanned(metric: Metric, masked: bool) -> None:
    rng = np.random.default_rng(6)
    flat, steep = made(rng, 3000, 96, 0.0), made(rng, 3000, 96, 2.0)
    allowed = rng.random(3000) < 0.4 if masked else None
    for rows, scanned in ((flat, True), (steep, False)):
        blocks, queries = Blocks.of(rows, Nesting([16, 96])), rows[:40] + made(rng, 40, 96) * np.float32(0.01)
        certified = Certified(blocks, Sketch.of(blocks, metric, dims=(16,)))
        found, scores, left = certified.find(queries, 5, allowed, threads=2)
        rows_true, scores_true = scan_exactly(blocks, queries, 5, metric, allowed)
        np.testing.assert_array_equal(found, rows_true)
        np.testing.assert_allclose(scores, scores_true, rtol=1e-13, atol=1e-15)
        assert ((left == 0).mean() > 0.5) == scanned   # 0: the sketch was not used
    with pytest.raises(EmbeddingsError, match="row 1"):
        certified.search(np.stack([queries[0], np.full(96, np.nan, "f4")]), 5)


@needs_core
def test_threads_search_side_by_side() -> None:
    rng = np.random.default_rng(4)
    blocks = Blocks.of(made(rng, 2000, 64), Nesting([16, 64]))
    certified, queries = Certified(blocks, Sketch.of(blocks)), made(rng, 40, 64)
    with ThreadPoolExecutor(4) as pool:
        found = np.concatenate(list(pool.map(lambda query: certified.search(query[None], 5)[0], queries)))
    np.testing.assert_array_equal(found, scan_exactly(blocks, queries, 5)[0])


@needs_core
def test_nothing_given_is_changed() -> None:
    rng = np.random.default_rng(5)
    blocks, queries, allowed = Blocks.of(made(rng, 50, 16), Nesting([16])), made(rng, 2, 16), rng.random(50) < 0.5
    before = queries.copy(), allowed.copy()
    Certified(blocks, Sketch.of(blocks)).search(queries, 3, allowed)
    np.testing.assert_array_equal(queries, before[0])
    np.testing.assert_array_equal(allowed, before[1])


@pytest.mark.parametrize(
    ("queries", "k", "said"),
    [
        (np.ones((1, 4)), 0, r"k must be at least 1 \(got 0\)"),
        (np.ones(4), 1, "real numbers with 4 columns"),
        (np.ones((1, 3)), 1, r"real numbers with 4 columns.*\(got shape \(1, 3\)"),
        (np.array([["a"] * 4]), 1, "real numbers with 4 columns"),
        (np.array([[1, 2, 3, np.nan]]), 1, "queries must be finite"),
        (np.full((1, 4), 1e30), 1, "queries must be finite"),
        (np.array([[1.0] * 4, [0.0] * 4]), 1, r"a query must not be all zeros if the metric is cosine \(got row 1\)"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused(queries: np.ndarray, k: int, said: str) -> None:
    blocks = Blocks.of(np.eye(4, dtype=np.float32), Nesting([2, 4]))
    with pytest.raises((InputError, EmbeddingsError), match=said):
        scan_exactly(blocks, queries, k)


@needs_core
@pytest.mark.parametrize("allowed", [np.ones(3, bool), np.ones(4), np.ones((4, 1), bool)])
def test_a_mask_must_have_one_boolean_a_row(allowed: np.ndarray) -> None:
    blocks = Blocks.of(np.eye(4, dtype=np.float32), Nesting([2, 4]))
    for search in (lambda: scan_exactly(blocks, np.eye(4), 1, "ip", allowed),
                   lambda: Certified(blocks, Sketch.of(blocks)).search(np.eye(4), 1, allowed)):
        with pytest.raises(InputError, match=r"allowed must be a mask of 4 booleans, one per row \(got shape"):
            search()


@pytest.mark.parametrize("dims", [(), (0,), (6,), (516,), (64, 100), (64, 64), (64, 704)])
def test_dims_that_no_sketch_can_have_are_refused(dims: tuple[int, ...]) -> None:
    blocks = Blocks.of(np.eye(4, dtype=np.float32), Nesting([2, 4]))
    with pytest.raises(InputError, match="the first dim of a sketch must be a multiple of 4"):
        Sketch.of(blocks, dims=dims)


def test_without_the_core_a_sketched_index_is_searched_by_numpy(tmp_path) -> None:
    code = f"""
import numpy as np, sys
from matryo import Index
from matryo.compiled import isa
from matryo.errors import MatryoError
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
with Index.create({str(tmp_path / "index")!r}, [2, 4]) as index:
    index.add(np.eye(4, dtype="f4"), ids=list("abcd"))
    index.compact()
    index.build(sketch=True, partition=2)
    print(isa(), index.search(np.eye(4, dtype="f4"), k=1).ids.ravel().tolist())
    blocks = index.snapshot().segments[0].blocks
try:
    Certified(blocks, Sketch.of(blocks))
except MatryoError as error:
    print(error)
"""
    environment = {**os.environ, "MATRYO_ISA": "numpy"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    first, second = done.stdout.splitlines()
    assert first == "numpy ['a', 'b', 'c', 'd']", done.stderr
    assert second.startswith("this needs the compiled core of matryo (got MATRYO_ISA=numpy): unset MATRYO_ISA")
