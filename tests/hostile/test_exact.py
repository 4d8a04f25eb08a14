"""Exact search is exact far from the origin, at every scale, with ties in order of insertion across segments.

``MATRYO_DEVICE`` selects the device of the torch engine.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from attacks.exact import KINDS, device, vectors_of, wrong

from matryo import Index, Nesting
from matryo.retrieve import NUMPY, Blocks, Engine, Plan, execute
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.exact import ceilings, distance_ceilings, exact_scores
from matryo.retrieve.engines.numpy import scan
from matryo.retrieve.engines.request import Request
from matryo.retrieve.store import Store
from matryo.retrieve.vectors.metric import METRICS

DIMS = [8, 24]
DIMS_NESTING, NESTING = Nesting(DIMS), Nesting([16, 64])


def engine_of(name: str) -> Engine:
    if name == "torch":
        pytest.importorskip("torch")
        from matryo.retrieve.engines.torch.engine import torch_engine

        return torch_engine(device())
    return NUMPY if name == "numpy" else best_engine()


@pytest.mark.parametrize("name", ["numpy", "compiled", "torch"])
@pytest.mark.parametrize("metric", METRICS)
def test_every_engine_ranks_like_float64(name: str, metric: str) -> None:
    engine = engine_of(name)
    for seed, kind in enumerate(KINDS):
        rng = np.random.default_rng(seed)
        rows = vectors_of(kind, rng, 700, DIMS[-1])
        rows[400:500] = rows[3]   # more equal rows than any shortlist holds
        queries = rows[:12].copy()
        queries[6:] *= np.float32(1 - 2.0**-10)   # 12 are enough for a second scan relative to their mean
        queries[(queries == 0).all(1)] = 1
        blocks, live = Blocks.of(rows, DIMS_NESTING), rng.random(700) < 0.9
        for some in (queries, queries[3:4], queries[7:8]):
            found = execute(blocks, some, Plan.single(DIMS[-1]), 10, metric, live, engine=engine)
            for query, hits, scores in zip(some, *found, strict=True):
                assert wrong(metric, query, rows, live, hits, scores) is None, kind


@pytest.mark.parametrize("metric", METRICS)
def test_ties_between_a_sketched_and_a_new_segment_are_in_order_of_insertion(metric: str, tmp_path) -> None:
    """The float64 score of a row has the same bits, whichever way finds it."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((300, 200)) + 1000).astype(np.float32)
    with Index.create(tmp_path / "index", [8, 200], metric=metric) as index:
        index.add(rows, ids=list(range(300)))
        Store.compact(index)
        index.build(sketch=True)
        index.add(rows, ids=list(range(300, 600)))
        for queries in (rows[:1], rows[:20] + np.float32(0.25)):
            hits = index.search(queries, k=20, exact=True)
            assert (hits.ids[:, 1::2] == hits.ids[:, ::2] + 300).all()
            assert (hits.scores[:, 1::2] == hits.scores[:, ::2]).all()


@pytest.mark.parametrize("metric", METRICS)
def test_the_last_stage_of_every_plan_scores_in_float64(metric: str, tmp_path) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((900, 64)) + 300).astype(np.float32)
    queries = rows[:9] + rng.standard_normal((9, 64)).astype(np.float32)
    true = exact_scores(Request(Blocks.of(rows, NESTING), queries, metric), np.tile(np.arange(900), (9, 1)), 64)
    plans = [Plan.adaptive(16, 64, keep=300), Plan.of([(16, 500, "int8"), (64, 10)])]
    with Index.create(tmp_path / "index", [16, 64], metric=metric) as index:
        index.add(rows)
        Store.compact(index)
        index.build(partition=16)
        plans.append(Plan(plans[1].stages, probe=0.9))
        if importlib.util.find_spec("faiss"):
            index.build(graph=16)
            plans.append(Plan.adaptive(16, 64, keep=100, ef=100))
        for plan in plans:
            hits = index.search(queries, k=10, plan=plan)
            exact = np.take_along_axis(true, hits.ids.astype(np.int64), 1)
            np.testing.assert_allclose(hits.scores, exact, rtol=2.0**-23)
            assert (np.diff(exact) <= 1e-14 * np.abs(exact[:, 1:])).all()


@pytest.mark.parametrize("metric", METRICS)
def test_no_ceiling_is_below_its_score(metric: str) -> None:
    for seed, kind in enumerate(KINDS):
        rng = np.random.default_rng(seed)
        rows, queries = (vectors_of(kind, rng, count, DIMS[-1]) for count in (200, 5))
        queries[(queries == 0).all(1)] = 1
        if metric == "cosine":
            queries = np.ldexp(queries, -np.frexp(np.abs(queries).max(1, keepdims=True))[1])
        blocks = Blocks.of(rows, DIMS_NESTING)
        request = Request(blocks, queries, metric)
        true = exact_scores(request, np.tile(np.arange(200), (5, 1)), DIMS[-1])
        for few in (1, 100):   # sums one by one, and by BLAS
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(scan, "FEW", few)
                ((_, _, highest),) = scan.scan(request, DIMS[-1])
            assert (highest >= true).all(), kind
            if kind in ("normal", "signs"):
                assert (highest - true < 1e-4 * np.abs(true).max()).all()   # and it does bound
        if metric != "ip":
            ((_, _, highest),) = scan.scan_around(request, DIMS[-1])
            assert (highest >= true - (metric == "cosine")).all(), kind
        if metric == "l2":
            apart = np.square(rows[None] - queries[:, None]).sum(2)
            assert (distance_ceilings(apart, DIMS[-1]) >= true).all(), kind
    assert ceilings(metric, np.zeros((0, 3), "f4"), np.ones(3, "f4"), np.zeros((0, 1), "f4"), 8).shape == (0, 3)
