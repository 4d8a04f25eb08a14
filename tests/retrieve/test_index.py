"""The index answers as plain loops do, over segments, filters, deletions and plans."""

import shutil

import numpy as np
import pytest
from needs_core import needs_core

from matryo.errors import EmbeddingsError, InputError
from matryo.nesting import Nesting, truncate
from matryo.retrieve import Blocks, Index, Plan
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
from matryo.retrieve.store import Limits

NESTING = Nesting([4, 8, 16])


def exact(vectors, ids, query, k, metric):
    """By a plain sort in float64; of equal scores the one added first."""
    vectors, query = np.asarray(vectors, np.float64), np.asarray(query, np.float64)
    if metric == "cosine":
        worth = truncate(vectors, vectors.shape[1]) @ (query / np.linalg.norm(query))
    elif metric == "ip":
        worth = vectors @ query
    else:
        worth = -((vectors - query) ** 2).sum(axis=1)
    order = np.argsort(-worth, kind="stable")[:k]
    return [ids[i] for i in order], worth[order]


@pytest.fixture
def small(tmp_path):
    """An index of several segments and some recent vectors."""
    index = Index.create(tmp_path / "index", NESTING, int8_up_to=8, limits=Limits(pending_bytes=2048))
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(150, 16)).astype(np.float32)
    for start in range(0, 150, 15):
        payload = [{"row": row, "even": row % 2 == 0} for row in range(start, start + 15)]
        index.add(vectors[start : start + 15], payload=payload)
    assert len(index.snapshot().segments) > 2
    return index, vectors, rng.normal(size=(7, 16))


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("text", [False, True])
def test_search_is_exact_without_a_plan(tmp_path, metric, text):
    rng = np.random.default_rng(1)
    vectors, queries = rng.normal(size=(60, 16)), rng.normal(size=(5, 16))
    ids = [f"v{i}" for i in range(60)] if text else list(range(60))
    with Index.create(tmp_path / "index", NESTING, metric=metric) as index:
        assert index.add(vectors, ids=ids if text else None) == ids
        for hits in (index.search(queries, k=4), index.search(queries, k=4, exact=True)):
            for query, found, scores in zip(queries, hits.ids, hits.scores, strict=True):
                wanted, worth = exact(vectors, ids, query, 4, metric)
                assert found.tolist() == wanted
                np.testing.assert_allclose(scores, worth, rtol=1e-4, atol=1e-5)


def test_segments_are_searched_as_one(small):
    index, vectors, queries = small
    every = index.search(queries, k=12)
    for plan in (Plan.adaptive(4, 16, keep=150), Plan.funnel(4, 16, keep=150, k=12)):
        whole = index.search(queries, k=12, plan=plan if plan.stages[-2].keep >= 150 else Plan.single(16))
        np.testing.assert_array_equal(whole.ids, every.ids)
    for query, found in zip(queries, every.ids, strict=True):
        assert found.tolist() == exact(vectors, list(range(150)), query, 12, "cosine")[0]
    quick = index.search(queries, k=12, plan=Plan.of([(8, 60, "int8"), (16, 12)]))
    assert (np.isin(quick.ids, every.ids)).mean() > 0.8


def test_what_is_deleted_replaced_or_filtered_out_is_not_found(small):
    index, vectors, queries = small
    index.delete([3, 4, 5])
    index.upsert([queries[0]], ids=[7], payload=[{"row": 7, "even": False}])
    current = vectors.astype(np.float64)
    current[7] = queries[0]
    rows = [row for row in range(150) if row not in (3, 4, 5, 7)] + [7]   # what is replaced is added last
    found = index.search(queries, k=5)
    assert found.ids[0, 0] == 7
    for query, ids in zip(queries, found.ids, strict=True):
        assert ids.tolist() == exact(current[rows], rows, query, 5, "cosine")[0]
    even = [row for row in range(150) if row % 2 == 0 and row not in (3, 4, 5)]
    for query, ids in zip(queries, index.search(queries, k=5, where={"even": True}).ids, strict=True):
        assert ids.tolist() == exact(current[even], even, query, 5, "cosine")[0]
    few = index.search(queries, k=5, where={"row": {"$gte": 148}})
    assert sorted(few.ids[0].tolist()) == [-1, -1, -1, 148, 149]
    assert np.isneginf(few.scores[:, 2:]).all()


def test_an_empty_index_has_nothing_to_give(tmp_path):
    with Index.create(tmp_path / "index", NESTING) as index:
        hits = index.search(np.ones(16), k=3)
        assert hits.ids.tolist() == [[-1, -1, -1]]
        assert np.isneginf(hits.scores).all()


def test_readers_see_what_was_written(small):
    index, vectors, queries = small
    with Index.open(index.path) as reader:
        before = reader.search(queries, k=3)
        np.testing.assert_array_equal(before.ids, index.search(queries, k=3).ids)
        index.add([queries[0]], ids=[500])
        assert reader.search(queries[0], k=1).ids.tolist() == [[500]]
        index.compact()
        index.verify()
        assert reader.search(queries[0], k=1).ids.tolist() == [[500]]
        np.testing.assert_array_equal(reader.get([500])[0], queries[:1].astype(np.float32))
        with pytest.raises(InputError, match="open"):
            reader.add(vectors[:1])


def test_bad_questions_are_refused(small):
    index, _, queries = small
    with pytest.raises(EmbeddingsError, match="16 columns"):
        index.search(np.ones(8))
    with pytest.raises(EmbeddingsError, match="must not be all zeros"):
        index.search(np.zeros(16))
    with pytest.raises(EmbeddingsError, match="finite"):
        index.search(np.full(16, np.nan))
    with pytest.raises(InputError, match="k must"):
        index.search(queries, k=0)
    with pytest.raises(InputError, match="dims"):
        index.search(queries, plan=Plan.single(5))
    with pytest.raises(InputError, match="takes no plan"):
        index.search(queries, plan=Plan.single(16), exact=True)
    assert "150 × 16" in repr(index)


@pytest.mark.parametrize("guided", [False, True])
def test_threads_share_the_queries_and_change_nothing(small, guided):
    index, vectors, queries = small
    plans = [None, Plan.adaptive(4, 16, keep=40)]
    if guided:
        index.compact()
        index.build(sketch=True, partition=4)
        plans += [Plan.adaptive(4, 16, keep=40, precision="int8", probe=0.5)]
    many = np.concatenate([queries, vectors[:20]])
    for plan in plans:
        one = index.search(many, k=5, plan=plan)
        for threads in (2, 3, 100):
            shared = index.search(many, k=5, plan=plan, threads=threads)
            np.testing.assert_array_equal(shared.ids, one.ids)
            np.testing.assert_array_equal(shared.scores, one.scores)


def test_threads_are_at_least_one(small):
    index, _, queries = small
    with pytest.raises(InputError, match=r"threads must be at least 1 \(got 0\)"):
        index.search(queries, threads=0)


@needs_core
def test_a_mapped_index_answers_as_one_in_memory(tmp_path):
    rng = np.random.default_rng(5)
    vectors, queries = rng.normal(size=(3000, 16)).astype("f4"), rng.normal(size=(20, 16)).astype("f4")
    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(vectors)
        index.compact()   # into a file
        index.build()
    blocks = Blocks.of(vectors, NESTING)
    assert all(one is other for one, other in zip(blocks.picked, blocks.full, strict=True))   # nothing is mapped
    partition, plan = Partition.of(blocks, dim=16), Plan.of([(16, 60, "int8"), (16, 5)])
    with Index.open(tmp_path / "index") as index:
        (segment,) = index.snapshot().segments
        for search, (rows, scores) in (
            (index.search(queries, 5, exact=True), Certified(blocks, Sketch.of(blocks)).search(queries, 5)),
            (index.search(queries, 5, plan), PartitionSearch(blocks, partition, plan, 5)(queries)),
        ):
            assert search.ids.tolist() == rows.tolist()
            assert search.scores.tobytes() == scores.astype(np.float32).tobytes()
        for again, mapped in zip(segment.blocks.picked, segment.blocks.full, strict=True):
            assert again.ctypes.data != mapped.ctypes.data and (again == mapped).all()   # a mapping of its own


def test_rows_are_picked_from_files_that_a_writer_removed(tmp_path):
    blocks = Blocks.of(np.ones((3, 16)), NESTING)
    blocks.write(tmp_path / "here")
    opened = Blocks.open(tmp_path / "here")
    shutil.rmtree(tmp_path / "here")
    assert all((one == 1).all() for one in opened.picked)


@needs_core
@pytest.mark.parametrize(("count", "guided"), [(1000, False), (1001, True)])
def test_many_vectors_that_sqlite_holds_get_guides(tmp_path, count, guided):
    vectors = np.random.default_rng(0).normal(size=(count, 16)).astype(np.float32)
    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(vectors)
        index.delete([5])
        index.build()
        (segment,) = index.snapshot().segments
        assert bool(segment.guides) == guided
        index.add(vectors[:1000], ids=range(5000, 5000 + len(vectors[:1000])))
        index.build()   # no other segment: these vectors join the partitions of the first
        assert len(index.snapshot().segments) == (2 if guided else 1)
        ids = np.r_[np.delete(np.arange(count), 5), 5000 : 5000 + len(vectors[:1000])]
        hits = index.search(vectors[:9], k=7, exact=True).ids
        for query, found in zip(vectors, hits, strict=False):
            stored = np.concatenate([np.delete(vectors, 5, 0), vectors[:1000]])
            assert found.tolist() == exact(stored, ids.tolist(), query, 7, "cosine")[0]


def test_a_commit_is_loaded_at_once_where_searches_come_between(tmp_path):
    rows = np.random.default_rng(3).standard_normal((220, 16)).astype("f4")
    with Index.create(tmp_path / "index", [8, 16]) as index:
        index.add(rows[:200])
        index.add(rows[200:202])
        assert not index.is_current   # nobody searches: adding does not pay for it
        index.search(rows[:1])
        for number in range(202, 210):
            index.add(rows[number : number + 1])
            index.delete([number - 200])
            assert not index.is_current   # the second change without a search between
            assert index.search(rows[number], k=1).ids.tolist() == [[number]]
            assert index.search(rows[number - 200], k=1).ids.item() != number - 200
        index.add(rows[210:211])
        assert index.is_current


def test_a_commit_succeeds_if_it_cannot_be_loaded(tmp_path, monkeypatch):
    rows = np.random.default_rng(3).standard_normal((20, 16)).astype("f4")
    with Index.create(tmp_path / "index", [8, 16]) as index:
        index.add(rows[:10])
        index.search(rows[:1])
        with monkeypatch.context() as broken:

            def fail(*_: object) -> None:
                raise EmbeddingsError("damaged", got="one", cure="none")

            broken.setattr(index._routes, "of", fail)
            assert list(index.add(rows[10:11])) == [10]
            with pytest.raises(EmbeddingsError, match="damaged"):
                index.search(rows[10])
        assert index.search(rows[10], k=1).ids.tolist() == [[10]]
