"""A rotated index answers as others do, gives vectors back as they were, and rotates in one step or not at all."""

import os
import random
import signal
import sqlite3
import time
import warnings

import numpy as np
import pytest

from matryo import Index, Plan, Retrofit
from matryo.errors import EmbeddingsError, IndexFolderError, InputError, ShiftWarning
from matryo.retrieve.sources import open_source
from matryo.retrieve.store import Limits

DIM = 32
SMALL = Limits(pending_bytes=16 << 10, segment_bytes=64 << 10)
TINY = Limits(pending_bytes=16 << 10, segment_bytes=16 << 10)


def planted(rows, seed=0, turn=0):
    spread = np.random.default_rng(seed).normal(size=(rows, DIM)) * np.geomspace(1, 0.05, DIM)
    return (spread @ np.linalg.qr(np.random.default_rng(99 + turn).normal(size=(DIM, DIM)))[0]).astype(np.float32)


VECTORS, QUERIES = planted(1200), planted(20, seed=1)


@pytest.fixture(scope="module")
def retrofit():
    return Retrofit.fit(VECTORS)


def filled(path, limits=SMALL, **settings):
    index = Index.create(path, DIM, limits=limits, **settings)
    for start in range(0, 600, 100):
        index.add(VECTORS[start : start + 100], payload=[{"even": row % 2 == 0} for row in range(100)])
    index.add(VECTORS[600:630])
    index.delete([3, 610])
    index.upsert(VECTORS[700:702], ids=[5, 620])
    return index


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_hits_and_vectors_are_those_of_an_index_without(tmp_path, retrofit, metric, dtype):
    with (filled(tmp_path / "a", metric=metric, dtype=dtype) as plain,
          filled(tmp_path / "b", metric=metric, dtype=dtype, rotation=retrofit) as turned):  # fmt: skip
        loose = 2e-3 if dtype == "float16" else 1e-5
        for where in (None, {"even": True}):
            one, two = (index.search(QUERIES, k=10, where=where) for index in (plain, turned))
            np.testing.assert_allclose(one.scores, two.scores, atol=20 * loose)
            assert (one.ids == two.ids).mean() > (0.9 if dtype == "float16" else 0.999)
        assert turned.nesting == retrofit.nesting and turned.rotation.rung == "pca"
        np.testing.assert_allclose(turned.get([5, 7, 629])[0], plain.get([5, 7, 629])[0], atol=loose)
        ids, vectors = turned.sample(50, seed=0)
        np.testing.assert_allclose(vectors, plain.get(ids.tolist())[0], atol=loose)
        every = np.concatenate([batch.vectors for batch in turned.batches()])
        np.testing.assert_allclose(every, plain.get(plain.ids)[0], atol=loose)
        stored = turned.snapshot().segments[0].blocks.rows(slice(0, 50), DIM)
        assert np.square(stored[:, :8]).sum() > 0.7 * np.square(stored).sum()   # it is rotated indeed


def test_a_prefix_plan_finds_more(tmp_path, retrofit):
    plan = Plan.adaptive(8, DIM, keep=50)
    shares = []
    for name, rotation in (("a", None), ("b", retrofit)):
        with Index.create(tmp_path / name, [8, DIM], rotation=rotation) as index:
            index.add(VECTORS)
            true, found = index.search(QUERIES), index.search(QUERIES, plan=plan)
            shares.append(np.mean([np.isin(a, b).mean() for a, b in zip(true.ids, found.ids, strict=True)]))
    assert shares[1] > shares[0] + 0.1


def test_rotating_an_index_keeps_rows_guides_and_readers(tmp_path, retrofit):
    with filled(tmp_path / "index") as index:
        index.build(sketch=True)
        before, vectors = index.search(QUERIES), index.get(index.ids)[0]
        with Index.open(tmp_path / "index") as reader:
            old = reader.snapshot()
            assert index.rotate(retrofit, progress=False) is retrofit
            np.testing.assert_allclose(old.vectors(np.array([7])), VECTORS[7:8])   # its files are still mapped
            for each in (reader, index):
                found = each.search(QUERIES)
                assert np.array_equal(found.ids, before.ids)
                np.testing.assert_allclose(found.scores, before.scores, atol=1e-5)
                np.testing.assert_allclose(each.get(each.ids)[0], vectors, atol=1e-5)
                assert each.rotation.rung == "pca"
        assert all("sketch" in segment.guides for segment in index.snapshot().segments)
        assert not [path for path in (tmp_path / "index" / "segments").iterdir()
                    if path.name not in {s.name for s in index.snapshot().segments}]  # fmt: skip
        index.add(planted(50, seed=4), ids=range(5000, 5050))
        np.testing.assert_allclose(index.get([5007])[0], planted(50, seed=4)[7:8], atol=1e-5)
        index.verify()
        index.compact()
        np.testing.assert_allclose(index.get([7])[0], VECTORS[7:8], atol=1e-5)
        index.compact(background=True).wait()
        index.backup(tmp_path / "copy")
        assert index.rotate(None) is None and index.rotation is None
        np.testing.assert_allclose(index.get([7])[0], VECTORS[7:8], atol=1e-5)
    with Index.open(tmp_path / "copy") as copy:
        assert copy.rotation.rung == "pca"
        copy.verify()
        np.testing.assert_allclose(copy.get([7])[0], VECTORS[7:8], atol=1e-5)
        assert "rotation: pca, fitted on" in str(copy.describe())
    source = open_source(tmp_path / "copy")
    np.testing.assert_allclose(next(source.batches()).vectors[7], VECTORS[9], atol=1e-5)   # ids 3 and 5 are not there


def test_auto_waits_for_rows_and_leaves_nested_vectors(tmp_path):
    with Index.create(tmp_path / "index", DIM, rotation="auto") as index:
        index.add(VECTORS[:400])
        assert index.rotation is None
        index.add(VECTORS[400:])
        assert index.rotation.rung == "pca" and len(index) == 1200
        np.testing.assert_allclose(index.get([1100])[0], VECTORS[1100:1101], atol=1e-5)
    nested = np.random.default_rng(0).normal(size=(1500, DIM)) * np.geomspace(1, 0.02, DIM)
    with Index.create(tmp_path / "nested", DIM, rotation="auto") as index:
        index.add(nested[:300])
        index.build(sketch=True)   # enough rows to decide
        kept = index.rotation
        index.add(nested[300:])
        assert (index.rotation is None) == (kept is None)
        np.testing.assert_allclose(index.get([1400])[0], nested[1400:1401], atol=1e-5)


def test_drift_is_said_once(tmp_path, retrofit):
    with Index.create(tmp_path / "index", DIM, rotation=retrofit) as index:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            index.add(planted(600, seed=7))
        with pytest.warns(ShiftWarning, match=r"keep \d+% of their squared norm .*index.rotate\('auto'\)") as caught:
            index.add(planted(3000, seed=8, turn=1))
            index.add(planted(3000, seed=9, turn=1))
        assert len(caught) == 1


def test_maps_that_do_not_fit_are_refused_and_nothing_changes(tmp_path, retrofit):
    other = Retrofit.fit(planted(1200, turn=1), model="other")
    narrow = Retrofit.fit(np.random.default_rng(0).normal(size=(100, 8)))
    with filled(tmp_path / "index") as index:
        state = index.state
        with pytest.raises(InputError, match=r"this map does not suit the vectors .*%.*index.rotate\('auto'\)"):
            index.rotate(Retrofit.fit(planted(1200, turn=1)))
        with pytest.raises(EmbeddingsError, match=r"must have 32 columns.* \(got 8\)"):
            index.rotate(narrow)
        with pytest.raises(InputError, match="rotation must be 'auto', a Retrofit, or the folder of one"):
            index.rotate(3)
        with pytest.raises(InputError, match="queries are for a map that is fitted"):
            index.rotate(retrofit, queries=QUERIES)
        index.set_model("mine")
        with pytest.raises(InputError, match=r"a map for vectors of mine is needed \(got one of other\)"):
            index.rotate(other)
        assert index.state == state and index.rotation is None
    with pytest.raises(InputError, match=r"an index needs the dims of its vectors .*nesting=1536"):
        Index.create(tmp_path / "none", rotation="auto")
    with pytest.raises(InputError, match=r"rotation must be 'auto'.*got 'missing'"):
        Index.create(tmp_path / "none", DIM, rotation="missing")
    with Index.open(tmp_path / "index") as reader, pytest.raises(InputError, match="open for reading"):
        reader.rotate(retrofit)
    assert not (tmp_path / "none").exists()


def test_an_index_of_few_rows_says_so(tmp_path):
    with Index.create(tmp_path / "index", DIM) as index:
        index.add(VECTORS[:10])
        with pytest.raises(EmbeddingsError, match=r"needs at least 32 vectors \(got 10\)"):
            index.rotate()
        assert index.rotation is None and len(index) == 10


def test_queries_that_have_no_score_are_refused_as_before(tmp_path, retrofit):
    with Index.create(tmp_path / "index", DIM, rotation=retrofit) as index:
        index.add(VECTORS)
        for bad, message in ((np.full((1, DIM), np.nan), "finite"), (np.zeros((1, DIM)), "all zeros"),
                             (np.ones((1, 5)), "with 32 columns")):  # fmt: skip
            with pytest.raises(EmbeddingsError, match=message):
                index.search(bad)
        with pytest.raises(EmbeddingsError, match="finite"):
            index.add(np.full((1, DIM), np.inf))
        assert index.search(QUERIES.astype(np.float64)[0], k=3).ids.shape == (1, 3)


def test_damage_of_the_matrix_is_found(tmp_path, retrofit):
    with filled(tmp_path / "index", rotation=retrofit):
        pass
    with sqlite3.connect(tmp_path / "index" / "index.sqlite") as database:
        data = bytearray(database.execute("SELECT tensors FROM rotations").fetchone()[0])
        data[-3] ^= 1
        database.execute("UPDATE rotations SET tensors = ?", (bytes(data),))
    database.close()
    with Index.open(tmp_path / "index") as index, pytest.raises(IndexFolderError, match="rotation of the vectors"):
        index.search(QUERIES)


def test_older_versions_refuse_rotated_indexes(tmp_path, retrofit):
    import json

    for rotation, format in ((None, 1), (retrofit, 2)):
        with Index.create(tmp_path / str(format), DIM, rotation=rotation) as index:
            about = index._database.execute("SELECT value FROM meta WHERE key = 'about'").fetchone()[0]
            assert json.loads(about)["format"] == format


def test_a_rotation_that_fails_changes_nothing(tmp_path, retrofit, monkeypatch):
    with filled(tmp_path / "index") as index:
        state, files = index.state, sorted((tmp_path / "index" / "segments").iterdir())

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("matryo.retrieve.store.rotating.turning.rotations.write", fail)
        with pytest.raises(OSError):
            index.rotate(retrofit)
        monkeypatch.undo()
        assert index.state == state and index.rotation is None
        np.testing.assert_allclose(index.get([7])[0], VECTORS[7:8])
        index.rotate(retrofit)   # runs again
        assert set(files).isdisjoint((tmp_path / "index" / "segments").iterdir())


def names(path):
    return {entry.name for entry in (path / "segments").iterdir()}


@pytest.mark.parametrize("between", ["nothing", "damage", "deletion"])
def test_an_interrupted_rotation_resumes_after_the_last_segment(tmp_path, retrofit, monkeypatch, between):
    import matryo.retrieve.store.rotating.progress as progress

    path, write, finished = tmp_path / "index", progress.write_segment, []

    def interrupted(*args):
        if len(finished) == 2:
            raise KeyboardInterrupt
        finished.append(write(*args))
        return finished[-1]

    with filled(path, TINY) as index:
        before = names(path)
        monkeypatch.setattr(progress, "write_segment", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.rotate(retrofit, progress=False)
        monkeypatch.undo()
        assert index.rotation is None and names(path) == before
    [left] = path.glob("rotate-*")
    if between == "damage":
        rows = left / "segments" / finished[1].name / "rows.npy"
        rows.write_bytes(rows.read_bytes()[:-1] + b"x")
    with Index.open(path, writable=True, limits=TINY) as index:
        if between == "deletion":
            index.delete(index.ids[:1])
        ids, vectors = index.ids, index.get(index.ids)[0]
        index.rotate(retrofit, progress=False)
        kept = {"nothing": 2, "damage": 1, "deletion": 0}[between]
        assert [record.name in names(path) for record in finished] == [number < kept for number in range(2)]
        assert np.array_equal(index.ids, ids) and index.rotation.rung == retrofit.rung
        np.testing.assert_allclose(index.get(ids)[0], vectors, atol=1e-5)
        index.verify()
    assert not list(path.glob("rotate-*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_9_while_rotating_leaves_the_index_or_the_rotated_index(tmp_path, retrofit):
    chance, path, seen = random.Random(0), tmp_path / "index", set()
    with filled(path) as index:
        ids, vectors, hits = index.ids, index.get(index.ids)[0], index.search(QUERIES).ids
        begin = time.monotonic()
        index.rotate(retrofit, progress=False)
        index.rotate(None, progress=False)
        usual = time.monotonic() - begin
    for attempt in range(12):
        turn = retrofit if attempt % 2 == 0 else None
        pid = os.fork()
        if pid == 0:
            try:
                with Index.open(path, writable=True, limits=SMALL) as child:
                    child.rotate(turn, progress=False)
                    child.rotate(None if turn else retrofit, progress=False)
            finally:
                os._exit(0)
        time.sleep(chance.random() * 2 * usual + 0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with Index.open(path, writable=attempt % 3 == 0) as index:
            index.verify()
            seen.add(index.rotation is None)
            assert np.array_equal(index.ids, ids) and np.array_equal(index.search(QUERIES).ids, hits)
            np.testing.assert_allclose(index.get(ids)[0], vectors, atol=1e-4)
    assert len(seen) == 2   # kills hit both sides of a commit
