"""Guides lead to what a scan finds: after additions, deletions, compaction, for readers, and in every metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from needs_core import needs_core

from matryo.errors import IndexFolderError, InputError
from matryo.nesting import Nesting
from matryo.retrieve import Index, Plan, Stage
from matryo.retrieve.guides.partition import Partition
from matryo.retrieve.store import Store
from matryo.retrieve.vectors.metric import METRICS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_core
NESTING = Nesting([8, 16, 32, 64])


def some(count: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((count, 64)) * np.linspace(2, 0.2, 64)
    return values.astype(np.float32)


def true(vectors: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    a, b = queries.astype(np.float64), vectors.astype(np.float64)
    if metric == "cosine":
        a, b = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (a, b))
    scores = -np.square(a[:, None] - b).sum(-1) if metric == "l2" else a @ b.T
    return np.argsort(-scores, axis=1, kind="stable")


@pytest.fixture(params=METRICS)
def guided(request, tmp_path: Path) -> tuple[Index, np.ndarray, np.ndarray]:
    vectors, queries = some(3000), some(20, seed=1)
    index = Index.create(tmp_path / "index", NESTING, metric=request.param)
    index.add(vectors)
    Store.compact(index)   # out of SQLite, into a segment
    index.build()
    assert sorted(index.snapshot().segments[0].guides) == ["partition", "sketch"]
    return index, vectors, queries


EVERY = Plan.of([(64, 3000, "int8"), (64, 10)])
PROBED = Plan.of([(64, 400, "int8"), (64, 10)])


def test_exact_search_is_exact(guided) -> None:
    index, vectors, queries = guided
    order = true(vectors, queries, index.metric)
    for hits in (index.search(queries, k=7), index.search(queries, k=7, exact=True)):
        np.testing.assert_array_equal(hits.ids, order[:, :7])
    index.delete(order[0, :3].tolist())
    left = order[0][~np.isin(order[0], order[0, :3])]
    np.testing.assert_array_equal(index.search(queries[0], k=7).ids[0], left[:7])


def test_partitions_that_are_all_visited_miss_nothing(guided) -> None:
    index, vectors, queries = guided
    order = true(vectors, queries, index.metric)
    for probe in (None, 1.0):
        plan = Plan(EVERY.stages, probe=probe)
        np.testing.assert_array_equal(index.search(queries, k=7, plan=plan).ids, order[:, :7])
    few = index.search(queries, k=7, plan=Plan(PROBED.stages, probe=0.5)).ids
    assert np.mean([np.isin(a, b).mean() for a, b in zip(order[:, :7], few, strict=True)]) > 0.6


def test_what_is_added_later_is_found_too(guided) -> None:
    index, vectors, queries = guided
    index.add(queries, ids=list(range(5000, 5020)))
    plan = Plan(PROBED.stages, probe=0.2)
    far = -2 * queries if index.metric == "ip" else queries   # of inner products the longest may be larger
    asked = queries if index.metric != "ip" else far * -0.5
    for hits in (index.search(asked, k=3), index.search(asked, k=3, plan=plan)):
        found = [5000 + i in row for i, row in enumerate(hits.ids.tolist())]
        assert np.mean(found) == 1 or index.metric == "ip"
    index.compact()
    assert all(sorted(segment.guides) == ["partition", "sketch"] for segment in index.snapshot().segments)
    both = np.concatenate([vectors, queries])
    ids = np.concatenate([np.arange(3000), np.arange(5000, 5020)])
    np.testing.assert_array_equal(index.search(asked, k=7).ids, ids[true(both, asked, index.metric)[:, :7]])


def test_a_reader_sees_guides_when_they_are_there(tmp_path: Path) -> None:
    vectors = some(2000)
    with Index.create(tmp_path / "index", NESTING) as writer:
        writer.add(vectors)
        Store.compact(writer)
        with Index.open(tmp_path / "index") as reader:
            before = reader.search(vectors[:5], k=5)
            with pytest.raises(InputError, match=r"a plan with probe needs an index with a partition .*build"):
                reader.search(vectors[:5], plan=Plan(PROBED.stages, probe=0.5))
            writer.build(sketch=True, partition=32)
            after = reader.search(vectors[:5], k=5)
            np.testing.assert_array_equal(before.ids, after.ids)
            held = reader.snapshot()
            writer.build(partition=64)   # another in its place: the folder that the reader knew is gone
            found = reader.search(vectors[:5], k=1, plan=Plan(PROBED.stages, probe=1.0))
            assert found.ids[:, 0].tolist() == [*range(5)]
            assert held is not reader.snapshot()


def test_a_filter_restricts_guided_searches(tmp_path: Path) -> None:
    vectors = some(2000)
    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(vectors, payload=[{"even": i % 2 == 0} for i in range(2000)])
        Store.compact(index)
        index.build()
        order = true(vectors, vectors[:9], "cosine")
        want = [[i for i in row if i % 2 == 0][:5] for row in order.tolist()]
        for plan in (None, Plan(EVERY.stages, probe=1.0)):
            assert index.search(vectors[:9], k=5, plan=plan, where={"even": True}).ids.tolist() == want


def test_a_flipped_byte_of_a_guide_is_named(guided) -> None:
    index, _, _ = guided
    index.verify()
    for path in sorted((index.path / "guides").rglob("*.*")):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        good = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(IndexFolderError, match=path.name):
            index.verify()
        path.write_bytes(good)
    index.verify()


def test_any_first_stage_with_a_probe_reads_the_tiles(guided) -> None:
    index, _, queries = guided
    plans = [Plan((first, Stage(64, 10)), probe=0.3) for first in (Stage(8, 300), Stage(24, 300, "int4"),
                                                                   Stage(64, 300, "int8"))]   # fmt: skip
    first, *others = (index.search(queries, k=7, plan=plan) for plan in plans)
    for other in others:
        np.testing.assert_array_equal(first.ids, other.ids)
        np.testing.assert_array_equal(first.scores, other.scores)


def test_a_narrow_filter_leaves_no_place_empty(tmp_path: Path) -> None:
    vectors = some(2000)
    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(vectors, payload=[{"number": i} for i in range(2000)])
        Store.compact(index)
        index.build()
        plan = Plan(PROBED.stages, probe=0.001)
        hits = index.search(vectors[:30], k=5, plan=plan, where={"number": {"$gte": 1996}})
        assert [sorted(ids) for ids in hits.ids.tolist()] == [[-1, 1996, 1997, 1998, 1999]] * 30
        index.delete(list(range(3, 2000)))
        assert (np.sort(index.search(vectors[:30], k=3, plan=plan).ids, axis=1) == [0, 1, 2]).all()


def test_the_layout_is_chosen_once_or_has_the_dim_that_is_given(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(some(300))
        Store.compact(index)
        index.build(partition=True)
        chosen = index.wanted()["partition"]
        assert sorted(chosen) == ["copies", "dim", "rotated"]
        index.add(np.random.default_rng(0).normal(size=(900, 64)))   # vectors of another kind
        index.compact()
        assert index.wanted() == {"partition": chosen}   # plans keep their meaning
        index.delete(list(range(300, 1200)))
        index.compact()
        index.build(partition=33)   # not a dim of the nesting
        assert index.wanted()["partition"]["dim"] == 33
        (segment,) = index.snapshot().segments
        assert Partition.open(segment.guides["partition"]).dim == 33
        plan = Plan((Stage(33, 300, "int4"), Stage(64, 5)), probe=1.0)
        assert index.search(some(300)[:9], k=1, plan=plan).ids[:, 0].tolist() == [*range(9)]


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", NESTING) as index:
        with pytest.raises(InputError, match=r"partition must be at most 64.*\(got 65\)"):
            index.build(partition=65)
        assert index.wanted() == {}
        index.build()   # of nothing
        assert sorted(index.wanted()) == ["partition", "sketch"]
        assert index.search(some(2), k=3, plan=Plan(PROBED.stages, probe=0.5)).ids.tolist() == [[-1] * 3] * 2


def test_a_walk_leads_to_the_plan_s_later_stages(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    vectors, queries = some(3000), some(20, seed=1)
    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(vectors)
        Store.compact(index)
        index.build(graph=32)
        plan = Plan.adaptive(32, 64, keep=100, ef=200)
        found, order = index.search(queries, k=5, plan=plan), true(vectors, queries, "cosine")[:, :5]
        assert np.mean([np.isin(a, b).mean() for a, b in zip(order, found.ids, strict=True)]) > 0.9
        with pytest.raises(InputError, match="at the dim of the graph, 32"):
            index.search(queries, plan=Plan.adaptive(16, 64, keep=100, ef=200))
