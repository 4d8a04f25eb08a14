"""Exact search among a few rows equals a scan with a mask, bit for bit, and fills every place that it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from needs_core import needs_core

from matryo import Index, Plan
from matryo.compiled import core
from matryo.errors import EmbeddingsError
from matryo.nesting import Nesting
from matryo.retrieve import Blocks, execute
from matryo.retrieve.engines.compiled import best_engine, view_of
from matryo.retrieve.engines.few_rows import are_few, search_among
from matryo.retrieve.engines.request import Request

if TYPE_CHECKING:
    from pathlib import Path

COUNT, DIMS = 3000, [8, 24, 40]
RANDOM = np.random.default_rng(3)
VECTORS = RANDOM.standard_normal((COUNT, DIMS[-1])).astype(np.float32)
VECTORS[1::7] = VECTORS[0]   # ties
VECTORS[2::50] = 0
QUERIES = np.concatenate([RANDOM.standard_normal((9, DIMS[-1])), VECTORS[:1]]).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_hits_are_those_of_a_scan_with_a_mask(metric: Any, dtype: str) -> None:
    blocks = Blocks.of(VECTORS, Nesting(DIMS), dtype=dtype)
    for among in ([], [5], range(0, COUNT, 7), range(COUNT), sorted(RANDOM.choice(COUNT, 700, replace=False))):
        rows = np.array(among, np.int64)
        for dim, k, threads in ((40, 10, 1), (8, 3, 2), (24, 900, 1)):
            found = search_among(rows, dim)(Request(blocks, QUERIES, metric, None, threads), k)
            allowed = np.isin(np.arange(COUNT), rows)
            right = execute(blocks, QUERIES, Plan.single(dim, k=k), k, metric, allowed, engine=best_engine())
            for mine, other in zip(found, right, strict=True):
                np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("size", [2.0**-100, 2.0**-60, 2.0**55])
def test_tiny_and_huge_queries(size: float) -> None:
    tiny = VECTORS[:100] * np.float32(2.0**-70)
    blocks = Blocks.of(tiny, Nesting([40]))
    queries = QUERIES * np.float32(size)
    found = search_among(np.arange(0, 100, 3), 40)(Request(blocks, queries), 12)
    right = execute(blocks, queries, Plan.single(40, k=12), 12, "cosine", np.arange(100) % 3 == 0)
    np.testing.assert_array_equal(found[0], right[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**63, 0.0])
def test_a_bad_query_is_named(bad: float) -> None:
    queries = QUERIES.copy()
    queries[4] = bad
    with pytest.raises(EmbeddingsError, match="row 4"):
        search_among(np.arange(20), 24)(Request(Blocks.of(VECTORS, Nesting(DIMS)), queries), 2)


@needs_core
def test_rows_that_do_not_exist_are_refused() -> None:
    blocks = Blocks.of(VECTORS, Nesting(DIMS))
    rows, scores = np.empty((1, 2), np.int64), np.empty((1, 2))
    for bad in (-1, COUNT):
        with pytest.raises(ValueError, match="no such row"):
            view_of(blocks, "ip").search_among(QUERIES[:1], 2, np.array([0, bad]), rows, scores, 1)


def test_a_selective_filter_never_leaves_a_place_empty(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", DIMS, metric="ip") as index:
        index.add(VECTORS, payload=[{"share": row / COUNT} for row in range(COUNT)])
        index.compact()
        index.build(partition=8)
        probing = Plan(Plan.of([(8, 30, "int8"), (40, 10)]).stages, probe=0.01)
        plan = probing if core() else Plan.adaptive(8, 40, keep=30)
        for share in (0.1, 0.01, 0.003, 0.0001):
            hits = index.search(QUERIES, k=10, plan=plan, where={"share": {"$lt": share}})
            right = index.search(QUERIES, k=10, where={"share": {"$lt": share}})
            np.testing.assert_array_equal(hits.ids, right.ids)
            assert ((hits.ids >= 0).sum(1) == min(10, np.ceil(share * COUNT))).all()


def test_what_counts_as_few() -> None:
    blocks = Blocks.of(np.zeros((100_000, 64)), Nesting([64]))
    assert are_few(16384, blocks, None)
    assert not are_few(16385, blocks, None)
    assert are_few(16384, blocks, Plan(Plan.single(64).stages, probe=0.01))
