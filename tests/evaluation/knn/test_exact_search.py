"""One pass over all dims finds what a separate search at each dim finds, in numpy and compiled, for any tile."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.evaluation.knn.search import search, search_batches
from matryo.nesting import truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

HAS_CORE = importlib.util.find_spec("matryo._core") is not None
both = pytest.mark.parametrize(
    "fast", [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_CORE, reason="needs the compiled core"))]
)
module = importlib.import_module("matryo.evaluation.knn.search")   # the package's own `search` is the function


def cosines(database: np.ndarray, queries: np.ndarray, dim: int) -> np.ndarray:
    """Plain loops in float64: the definition."""
    scores = np.zeros((len(queries), len(database)))
    for i, q in enumerate(queries.astype(np.float64)[:, :dim]):
        for j, x in enumerate(database.astype(np.float64)[:, :dim]):
            norms = np.sqrt(sum(v * v for v in q)) * np.sqrt(sum(v * v for v in x))
            scores[i, j] = sum(a * b for a, b in zip(q, x, strict=True)) / norms if norms else 0.0
    return scores


def check(found: dict[int, np.ndarray], database: np.ndarray, queries: np.ndarray, k: int) -> None:
    """The neighbours are k different rows with the best scores there are, best first (within rounding)."""
    for dim, indices in found.items():
        scores = cosines(database, queries, dim)
        assert indices.shape == (len(queries), k)
        assert all(len(set(row)) == k for row in indices.tolist())
        best = -np.sort(-scores, axis=1)[:, :k]
        np.testing.assert_allclose(np.take_along_axis(scores, indices, 1), best, atol=2e-6)


def shrink(monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int], budget: int = 1) -> None:
    monkeypatch.setattr(module, "_TILE", tile)
    monkeypatch.setattr(module, "_BUDGET", budget)
    if HAS_CORE:   # one panel per tile
        kernel = importlib.import_module("matryo.evaluation.knn.kernel")
        monkeypatch.setattr(kernel, "_TILE", 1)


@both
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 70),
    dim=st.integers(1, 10),
    tile=st.tuples(st.integers(1, 5), st.integers(1, 12)),
    data=st.data(),
)
def test_it_finds_the_best_at_every_dim(
    fast: bool, seed: int, count: int, dim: int, tile: tuple[int, int], data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    database = rng.integers(-2, 3, (count, dim)).astype(np.float32)   # small integers: many ties and zeros
    queries = rng.standard_normal((data.draw(st.integers(1, 7)), dim)).astype(np.float32)
    k = data.draw(st.integers(1, count))
    dims = sorted(data.draw(st.sets(st.integers(1, dim), min_size=1)))
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, tile)
        check(search(database, queries, dims, k, fast=fast), database, queries, k)


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("tile", [(1024, 2048), (3, 50), (7, 13)])
def test_it_equals_separate_searches(
    monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: type, tile: tuple[int, int]
) -> None:
    shrink(monkeypatch, tile)
    rng = np.random.default_rng(0)
    database = rng.standard_normal((333, 24)).astype(dtype)
    queries = rng.standard_normal((20, 24)).astype(dtype)
    dims, k = [1, 2, 3, 8, 17, 24], 10
    together = search(database, queries, dims, k, fast=fast)
    assert list(together) == dims
    for dim in dims:
        unit = [truncate(side.astype(np.float64), dim) for side in (queries, database)]
        distance = ((unit[0][:, None] - unit[1][None]) ** 2).sum(-1)   # L2 on unit vectors, as in the paper
        if dim > 1:   # at dim 1 every score is ±1
            np.testing.assert_array_equal(together[dim], np.argsort(distance, axis=1, kind="stable")[:, :k])
        alone = search(database, queries, [dim], k, fast=fast)[dim]
        np.testing.assert_array_equal(together[dim], alone)


@both
@pytest.mark.parametrize("tile", [(1024, 2048), (2, 4), (1, 1)])
def test_equal_scores_come_in_the_order_of_the_database(
    monkeypatch: pytest.MonkeyPatch, fast: bool, tile: tuple[int, int]
) -> None:
    shrink(monkeypatch, tile)
    # Powers of two on the axes: every product, sum and norm is exact, so equal scores are equal bits.
    rows = [[1, 0], [0, 2], [-4, 0], [0, 0], [2, 0], [0, -1], [0.5, 0], [-0.0, 8], [1, 0]]
    axes = np.array(rows, np.float32)
    queries = np.array([[1, 0], [-1, 0]], np.float32)
    hits = search(axes, queries, [1, 2], 9, fast=fast)
    assert hits[2].tolist() == [[0, 4, 6, 8, 1, 3, 5, 7, 2], [2, 1, 3, 5, 7, 0, 4, 6, 8]]
    assert hits[1].tolist() == hits[2].tolist()
    assert search(axes, queries, [2], 3, fast=fast)[2].tolist() == [[0, 4, 6], [2, 1, 3]]


@both
@pytest.mark.parametrize("tile", [(1024, 2048), (2, 40)])
@pytest.mark.parametrize("k", [1, 5, 100, 700])
def test_planted_ties_come_in_the_order_of_the_database(
    monkeypatch: pytest.MonkeyPatch, fast: bool, tile: tuple[int, int], k: int
) -> None:
    shrink(monkeypatch, tile)
    # Signs alone: at one dim all norms are equal and inner products are small integers, so every tie is exact.
    rng = np.random.default_rng(1)
    database, queries = (rng.choice(np.array([-1, 1], np.float16), (n, 37)) for n in (700, 13))
    for dim, hits in search(database, queries, [1, 3, 20, 37], k, fast=fast).items():
        products = queries[:, :dim].astype(int) @ database[:, :dim].astype(int).T
        np.testing.assert_array_equal(hits, np.argsort(-products, axis=1, kind="stable")[:, :k])


@both
def test_scores_that_vanish_are_equal_whatever_their_sign(fast: bool) -> None:
    database = np.array([[0, -1e-8], [0, 1e-8], [0, 0]], np.float32)   # times 1e-40 that is −0, 0 and 0
    assert search(database, np.array([[1, 1e-40]], np.float32), [2], 3, fast=fast)[2].tolist() == [[0, 1, 2]]


@both
@pytest.mark.parametrize("order", [1, -1])
def test_rows_that_come_best_first_or_last(fast: bool, order: int) -> None:
    angle = np.linspace(0, 3, 1000)[::order]   # from the query, so that each row is worse than the last, or better
    database = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    hits = search(database, np.array([[1.0, 0.0]]), [2], 20, fast=fast)[2]
    assert hits[0].tolist() == np.argsort(angle)[:20].tolist()


@both
def test_a_database_of_one_vector_over_and_over(fast: bool) -> None:
    same = np.ones((50, 4), np.float32)
    assert search(same, same[:2], [2, 4], 5, fast=fast)[4].tolist() == [[0, 1, 2, 3, 4]] * 2
    zeros = np.zeros((50, 4), np.float32)
    assert search(zeros, same[:2], [2, 4], 5, fast=fast)[2].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert search(same, zeros[:2], [2, 4], 5, fast=fast)[2].tolist() == [[0, 1, 2, 3, 4]] * 2


@both
def test_the_order_of_the_database_only_renames_rows(fast: bool) -> None:
    rng = np.random.default_rng(4)
    database, queries = rng.standard_normal((60, 8)), rng.standard_normal((9, 8))
    order = rng.permutation(60)
    plain, shuffled = (search(rows, queries, [3, 8], 7, fast=fast) for rows in (database, database[order]))
    for dim in (3, 8):
        np.testing.assert_array_equal(order[shuffled[dim]], plain[dim])


@both
def test_scale_does_not_matter(fast: bool) -> None:
    rng = np.random.default_rng(5)
    database, queries = rng.standard_normal((60, 8)), rng.standard_normal((9, 8))
    scaled = database * rng.choice([2.0**-9, 1, 2.0**9], (60, 1)), queries * 2.0**12
    plain = search(database, queries, [2, 5, 8], 7, fast=fast)
    for dim, hits in search(*scaled, [2, 5, 8], 7, fast=fast).items():
        np.testing.assert_array_equal(hits, plain[dim])


def test_batches_are_the_whole_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    database, queries = rng.standard_normal((40, 8)), rng.standard_normal((11, 8))
    whole = search(database, queries, [4, 8], 3, fast=False)
    shrink(monkeypatch, (4, 16))
    batches = list(search_batches(database, queries, [4, 8], 3, fast=False))
    assert [batch.start for batch in batches] == [0, 4, 8]
    for dim in (4, 8):
        np.testing.assert_array_equal(np.concatenate([b.indices[dim] for b in batches]), whole[dim])


def test_memory_stays_within_the_budget() -> None:
    for dim, dims, k in [(8, 1, 1), (512, 13, 100), (2048, 17, 200), (4096, 20, 1000)]:
        rows = module.Scan.batch(dim, dims, k, 10**6, module._BUDGET)
        height, width = module._TILE
        needed = rows * (4 * dim + 16 * k * dims) + 4 * width * (2 * dim + 3 * height)
        assert rows >= height
        assert needed <= module._BUDGET or rows == height


@both
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["database", "query"])
def test_numbers_that_cannot_be_searched_are_refused(fast: bool, bad: float, side: str) -> None:
    database, queries = np.ones((6, 4), np.float32), np.ones((3, 4), np.float32)
    rows = database if side == "database" else queries
    rows[2, 1] = bad
    with pytest.raises(EmbeddingsError, match=rf"every {side} vector must be finite, .*in row 2\): check"):
        search(database, queries, [2, 4], 1, fast=fast)


@both
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-18, 1, 4e18, 1e30, 1e37])
def test_large_and_small_numbers_do_not_overflow(fast: bool, scale: float) -> None:
    rng = np.random.default_rng(8)
    database, queries = rng.standard_normal((30, 4)), rng.standard_normal((5, 4))
    plain = search(database, queries, [2, 4], 5, fast=fast)
    for dim, hits in search(database * scale, queries * scale, [2, 4], 5, fast=fast).items():
        np.testing.assert_array_equal(hits, plain[dim])


def wrong(
    database: Sequence[int] = (6, 4), queries: Sequence[int] = (3, 4), dims: Sequence[int] = (4,), k: int = 1
) -> None:
    search(np.ones(tuple(database)), np.ones(tuple(queries)), dims, k)


def test_what_cannot_be_searched() -> None:
    with pytest.raises(EmbeddingsError, match=r"same number of columns \(got \(6, 4\) and \(3, 5\)\)"):
        wrong(queries=(3, 5))
    with pytest.raises(EmbeddingsError, match="two-dimensional"):
        wrong(queries=(4,))
    with pytest.raises(NestingError, match="must not exceed the 4"):
        wrong(dims=(2, 8))
    with pytest.raises(NestingError, match="increasing"):
        wrong(dims=(4, 2))
    for k in (0, 7):
        with pytest.raises(InputError, match=rf"k must be in 1 … 6, the size of the database \(got {k}\)"):
            wrong(k=k)
    with pytest.raises(InputError, match="at least one query"):
        wrong(queries=(0, 4))


def test_the_bar_waits_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(7)
    search(rng.standard_normal((40, 8)), rng.standard_normal((11, 8)), [8], 3, progress=True)
    assert capsys.readouterr().err.strip() == ""   # done within two seconds, so nothing was shown
