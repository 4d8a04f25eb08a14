"""An index that stores only codes: its searches, changes, kills and refusals, against the codes themselves."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from matryo import Compression, Index, MatryoError
from matryo.errors import ShiftWarning
from matryo.retrieve.store import Limits

DIM = 24
FEW = Limits(pending_bytes=16 * 64, segment_bytes=16 * 1000)   # some rows in SQLite, the others in segments
KINDS = [{"bytes_per_vector": 16}, {"bits": 4, "dim": 20}, {"bits": 1}]


def made(seed=0, rows=1500):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(DIM, DIM)))[0]
    return ((rng.normal(size=(rows, DIM)) * np.geomspace(1, 0.1, DIM)) @ turn + 0.1).astype(np.float32)


@pytest.fixture(scope="module")
def vectors():
    return made()


@pytest.fixture(scope="module")
def compression(vectors):
    return Compression.fit(vectors, bytes_per_vector=16, model="a", progress=False)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_searches_are_those_of_the_codes(vectors, settings, metric, tmp_path):
    own = Compression.fit(vectors, metric=metric, progress=False, **settings)
    codes, queries = own.encode(vectors), made(1, 7)
    with Index.create(tmp_path / "i", compression=own, limits=FEW) as index:
        for start in range(0, 1500, 130):
            index.add(vectors[start : start + 130], payload=[{"n": start + row} for row in range(130)][: 1500 - start])
        assert len(index.snapshot().segments) > 1 and index.keeps_full is False and index.metric == metric
        rows, scores = own.search(queries, codes, 10)
        hits = index.search(queries, 10)
        np.testing.assert_array_equal(hits.ids, rows)
        np.testing.assert_allclose(hits.scores, scores, rtol=1e-5, atol=1e-5)
        index.delete(list(range(0, 1500, 3)))
        live = np.flatnonzero(np.arange(1500) % 3)
        few = live[live < 700]
        filtered = index.search(queries, 10, where={"n": {"$lt": 700}})
        for found, among in ((index.search(queries, 10), live), (filtered, few)):
            np.testing.assert_array_equal(found.ids, among[own.search(queries, codes[among], 10)[0]])
        got, payload = index.get([1, 1400])
        np.testing.assert_allclose(got, own.decode(codes[[1, 1400]]), atol=1e-6)
        assert payload == [{"n": 1}, {"n": 1400}]
        index.upsert(vectors[:2] * 2, [1, 1400], payload=[{"n": -1}] * 2)
        index.compact()
        found = index.search(queries, 10, where={"n": -1}).ids[0]
        assert len(index.snapshot().segments) == 1 and set(found) >= {1, 1400}
    with Index.open(tmp_path / "i") as index:
        index.verify()
        np.testing.assert_allclose(index.get([1400])[0], own.decode(own.encode(vectors[1:2] * 2)), atol=1e-6)


def test_a_compaction_in_the_background_a_backup_and_batches(vectors, compression, tmp_path):
    with Index.create(tmp_path / "i", compression=compression, limits=FEW) as index:
        index.add(vectors, ids=[f"r{row}" for row in range(1500)])
        index.delete(["r3"])
        index.compact(background=True).wait()
        assert len(index) == 1499 and index.search(vectors[:1], 1).ids[0, 0] == "r0"
        index.backup(tmp_path / "copy")
        batches = list(index.batches())
        np.testing.assert_allclose(np.concatenate([each.vectors for each in batches])[:3],
                                   compression.decode(compression.encode(vectors[:3])), atol=1e-6)  # fmt: skip
    with Index.open(tmp_path / "copy") as copy:
        copy.verify()
        assert len(copy) == 1499 and copy.model == "a"


def test_it_says_what_was_lost(vectors, tmp_path):
    chosen = Compression.choose(vectors, 8, kinds=("product", "bit"), progress=False)
    taken = next(entry for entry in chosen.table if entry.taken)
    with Index.create(tmp_path / "i", compression=chosen) as index:
        index.add(vectors)
        about, text = index.describe(), repr(index)
    assert f"recall@10 {taken.quality:.1%}, at least {taken.lower:.1%}" in about.codes and about.codes in text
    assert "no full vectors: " in str(about) and about.to_dict()["codes"] == about.codes
    with Index.open(tmp_path / "i") as index:
        assert index.compression.table == chosen.table and str(index.compression) == str(chosen)


def test_a_plan_for_bytes_is_a_compression(vectors, tmp_path):
    with Index.create(tmp_path / "full", DIM) as index:
        index.add(vectors)
        chosen = index.plan(bytes_per_vector=8, progress=False)
        full = index.search(vectors[:50], 10).ids
        with Index.create(tmp_path / "small", compression=chosen) as small:
            small.add_batches(index.batches())
            near = small.search(vectors[:50], 10).ids
    assert chosen.bytes_per_vector <= 8 and chosen.code != "float16"
    found = np.mean([np.isin(some, right).mean() for some, right in zip(near, full, strict=True)])
    assert found > next(entry for entry in chosen.table if entry.taken).lower - 0.1


WRITER = """
import sys, numpy as np
from matryo import Index
from matryo.retrieve.store import Limits
vectors = np.load(sys.argv[2])
with Index.open(sys.argv[1], writable=True, limits=Limits(16 * 64, 16 * 1000)) as index:
    for start in range(0, 1500, 25):
        index.add(vectors[start : start + 25])
        print(start + 25, flush=True)
        if start == 700:
            index.compact()
    sys.stdin.read()
"""


@pytest.mark.parametrize("after", [50, 725, 1000])
def test_a_killed_writer_loses_no_acknowledged_row(vectors, compression, tmp_path, after):
    np.save(tmp_path / "v.npy", vectors)
    Index.create(tmp_path / "i", compression=compression).close()
    command = [sys.executable, "-c", WRITER, str(tmp_path / "i"), str(tmp_path / "v.npy")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as writer:
        for line in writer.stdout:
            if int(line) >= after:
                break
        writer.send_signal(signal.SIGKILL)
    with Index.open(tmp_path / "i", writable=True) as index:
        index.verify()
        count = len(index)
        assert count >= after and count % 25 == 0
        np.testing.assert_allclose(index.get(range(count))[0], compression.decode(compression.encode(vectors[:count])),
                                   atol=1e-6)  # fmt: skip
        assert index.add(vectors[count : count + 1]) == [count]


def test_vectors_that_the_code_suits_less_are_reported_once(vectors, compression, tmp_path):
    lost = np.square(vectors / np.linalg.norm(vectors, axis=1, keepdims=True) -
                     compression.decode(compression.encode(vectors))).sum() / 1500  # fmt: skip
    assert compression.provenance["lost"] == pytest.approx(lost, rel=0.02)
    with Index.create(tmp_path / "i", compression=compression) as index:
        index.add(made(3, 800))   # like those that it was fitted to
        with pytest.warns(ShiftWarning, match=r"lose \d+% of their squared norm, \d+% when the code was") as seen:
            for seed in range(4):
                index.add(np.random.default_rng(seed).normal(size=(400, DIM)))
        assert len(seen) == 1 and len(index) == 2400


def test_what_needs_full_vectors_is_refused(vectors, compression, tmp_path):
    with Index.create(tmp_path / "i", compression=compression) as index:
        index.add(vectors)
        calls = {
            "an exact search": lambda: index.search(vectors[:1], exact=True),
            "a plan": lambda: index.plan(0.9),
            "a guide": lambda: index.build(sketch=True),
            "a rotation": lambda: index.rotate(),
            "a check": lambda: index.check(vectors[:9], {"stages": [{"dim": DIM, "keep": 10}]}),
            "choosing a code": lambda: index.plan(bytes_per_vector=4),
        }
        for what, call in calls.items():
            with pytest.raises(MatryoError, match=f"{what} needs the full vectors.*codes of 16 bytes"):
                call()
        with pytest.raises(MatryoError, match="a plan needs the full vectors"):
            index.search(vectors[:1], plan={"stages": [{"dim": DIM, "keep": 10}]})


def test_bad_vectors_and_queries_are_refused_and_nothing_is_written(vectors, compression, tmp_path):
    broken, zero, large = vectors[:3].copy(), vectors[:3].copy(), vectors[:3] * np.float32(1e30)
    broken[1, 2], zero[2] = np.nan, 0
    with Index.create(tmp_path / "i", compression=compression) as index:
        for bad, message in ((broken, "finite"), (zero, "row 2 of zeros"), (large, "norm of at most"),
                             (vectors[:3, :5], f"{DIM} columns")):
            with pytest.raises(MatryoError, match=message):
                index.add(bad)
        assert len(index) == 0
        index.add(vectors)
        for bad, message in ((broken[1:2], "finite"), (zero[2:], "all zeros"), (vectors[:1, :5], f"{DIM} columns")):
            with pytest.raises(MatryoError, match=message):
                index.search(bad)


@pytest.mark.parametrize(("settings", "message"), [
    ({"compression": 64}, "must be a matryo.Compression.*got int"),
    ({"compression": "missing"}, "must be a matryo.Compression.*missing"),
    ({"dtype": "float16"}, "dtype and compression.*drop dtype"),
    ({"nesting": [8, DIM]}, "nesting and compression"),
    ({"metric": "l2"}, "metric and compression"),
    ({"rotation": "auto"}, "rotation and compression"),
])  # fmt: skip
def test_other_settings_are_refused_and_nothing_is_written(compression, tmp_path, settings, message):
    with pytest.raises(MatryoError, match=message):
        Index.create(tmp_path / "i", **{"compression": compression, **settings})
    assert not (tmp_path / "i").exists()


def test_codes_without_a_scan_are_refused(vectors, tmp_path):
    with pytest.raises(MatryoError, match=r"got float16.*dtype='float16'"):
        Index.create(tmp_path / "i", compression=Compression.fit(vectors, bits=16, progress=False))


def test_a_saved_compression_may_be_a_path(vectors, compression, tmp_path):
    compression.save(tmp_path / "c")
    with Index.create(tmp_path / "i", compression=tmp_path / "c") as index:
        index.add(vectors[:3])
        np.testing.assert_array_equal(index.get([0, 1, 2])[0], compression.decode(compression.encode(vectors[:3])))
