"""A store keeps what it is given, refuses what it must with nothing changed, and lets readers be."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo.errors import IndexFolderError, InputError, StorageError
from matryo.nesting import Nesting, prefix_norms
from matryo.retrieve.store import Batch, Limits, Store
from matryo.retrieve.store.snapshot import load

if TYPE_CHECKING:
    from collections.abc import Iterator

NESTING = Nesting([2, 4, 8], weights=[1, 2, 3])
VECTORS = np.random.default_rng(7).standard_normal((60, 8)).astype(np.float32)
SMALL = Limits(pending_bytes=10 * 32, segment_bytes=25 * 32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "index", NESTING, limits=SMALL) as made:
        yield made


def lengths(store: Store) -> list[int]:
    return [len(segment) for segment in store.snapshot().segments]


def test_what_is_fixed_is_kept(tmp_path: Path) -> None:
    Store.create(tmp_path / "deep" / "index", NESTING, dtype="float16", int8_up_to=4, metric="l2").close()
    for writable in (False, True):
        with Store.open(tmp_path / "deep" / "index", writable=writable) as store:
            about = store.about
            assert (about.nesting, about.dtype, about.int8_up_to, about.metric) == (NESTING, "float16", 4, "l2")
            assert (store.count, lengths(store), store.snapshot().ids().tolist()) == (0, [], [])
            assert store.get([])[0].shape == (0, 8)
            assert store.where({"a": 1}).count == 0
            store.verify()
    with Store.open(tmp_path / "deep" / "index", writable=True) as store:
        store.compact()
        store.delete([])


def test_rows_move_from_the_database_to_segments(store: Store) -> None:
    store.add(VECTORS[:9])
    assert (lengths(store), list(store.path.glob("segments/*"))) == ([9], [])
    store.add(VECTORS[9:10])
    assert len(list(store.path.glob("segments/*"))) == 1
    store.add(VECTORS[10:50])
    store.add(VECTORS[50:55])
    assert lengths(store) == [10, 25, 15, 5]
    store.compact()
    assert lengths(store) == [25, 25, 5]
    segments = {entry.name for entry in store.path.glob("segments/*")}
    store.compact()   # there is nothing to do
    assert {entry.name for entry in store.path.glob("segments/*")} == segments
    np.testing.assert_array_equal(store.get(range(55))[0], VECTORS[:55])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_segment_is_what_blocks_need(tmp_path: Path, dtype: str) -> None:
    with Store.create(tmp_path / "index", NESTING, dtype=dtype, int8_up_to=4, limits=SMALL) as store:
        store.add(VECTORS[:40])
        store.add(VECTORS[40:45])
        stored = VECTORS.astype(dtype).astype(np.float32)
        for one in store.snapshot().segments:
            right = stored[one.rows]
            np.testing.assert_array_equal(one.blocks.rows(np.arange(len(one)), 8), right)
            np.testing.assert_allclose(one.blocks.norms, prefix_norms(right, NESTING.dims), rtol=1e-6)
            assert sorted(one.blocks.int8) == ([] if one.rows[-1] == 44 else [0, 1])   # recent rows have no copies
        np.testing.assert_array_equal(store.get([44, 0, 44])[0], stored[[44, 0, 44]])


def test_default_ids_go_on_and_are_never_given_twice(store: Store) -> None:
    assert store.add(VECTORS[:3]) == [0, 1, 2]
    store.delete([2])
    assert store.add(VECTORS[:1]) == [3]
    assert store.add(VECTORS[:2], ids=[100, -5]) == [100, -5]
    assert store.add(VECTORS[:1]) == [101]
    store.add(VECTORS[:1], ids=np.array([2**63 - 1]))
    with pytest.raises(InputError, match="ids must fit in 64"):
        store.add(VECTORS[:1])
    assert store.count == 7


def test_ids_in_every_guise(store: Store) -> None:
    store.add(VECTORS[:4], ids=np.array(["a", "bb", "ccc", "ünï"]))
    store.add(VECTORS[4:5], ids=[np.str_("e")])
    np.testing.assert_array_equal(store.get(np.array([["e", "a"], ["ünï", "a"]]))[0], VECTORS[[4, 0, 3, 0]])
    store.compact()
    assert store.snapshot().text_ids
    (segment,) = store.snapshot().segments
    assert segment.ids.take([[0, 3], [4, 2]]).tolist() == [["a", "ünï"], ["e", "ccc"]]
    assert segment.ids.take([]).tolist() == []
    assert len(segment.ids) == 5


def test_a_zero_vector_may_be_added(store: Store) -> None:
    store.add(np.zeros((1, 8)))
    np.testing.assert_array_equal(store.get([0])[0], np.zeros((1, 8)))


def test_the_callers_arrays_are_copied(store: Store) -> None:
    mine, payload = VECTORS[:30].copy(), [{"a": [1]}] * 30
    store.add(mine[:3], payload=payload[:3])
    store.add(mine[3:], payload=payload[3:])
    mine[:] = 0
    payload[0]["a"].append(2)
    np.testing.assert_array_equal(store.get(range(30))[0], VECTORS[:30])
    assert store.get([0])[1] == [{"a": [1]}]


def test_batches_are_durable_before_the_next_is_asked_for(store: Store) -> None:
    seen = []

    def batches() -> Iterator[Any]:
        with Store.open(store.path) as reader:
            for start in range(0, 40, 8):
                seen.append(reader.count)
                yield VECTORS[start : start + 8]
            yield Batch(VECTORS[40:42], payload=[{"n": 1}, {}])
            seen.append(reader.count)
            yield np.full((1, 8), np.nan)

    with pytest.raises(InputError, match="finite"):
        store.add_batches(batches())
    assert seen == [0, 8, 16, 24, 32, 42]
    assert store.count == 42
    assert store.add_batches([]) == 0


BAD = [
    ({"vectors": VECTORS[:, :5]}, "must have 8 columns"),
    ({"vectors": VECTORS[0]}, "two-dimensional"),
    ({"vectors": np.full((2, 8), np.nan)}, "must be finite"),
    ({"vectors": np.full((2, 8), 1e39)}, "must be finite in float32"),
    ({"vectors": np.full((2, 8), 1e30)}, "norm of at most"),
    ({"vectors": [["a"] * 8]}, "real numbers"),
    ({"ids": [7]}, "one entry for each of the 2"),
    ({"ids": [7, 7]}, "ids must be unique"),
    ({"ids": [7, "x"]}, "use all integers or all strings"),
    ({"ids": ["x", "y"]}, "the ids of this index are integers"),
    ({"ids": [1.5, 2.5]}, "use all integers or all strings"),
    ({"ids": [True, False]}, "use all integers or all strings"),
    ({"payload": [{}]}, "one entry for each of the 2"),
    ({"payload": {"a": 1}}, "payload must be a list of dicts"),
    ({"payload": "ab"}, "payload must be a list of dicts"),
    ({"payload": [{}, 3]}, r"a payload must be a dict \(got 3 in row 1\)"),
    ({"payload": [{}, {1: 2}]}, r"payload keys must be valid text \(got 1 in row 1\): use str"),
    ({"payload": [{}, {"a": float("nan")}]}, r"finite numbers.* \(got nan in field 'a' of row 1\): convert"),
    ({"payload": [{}, {"a": [{"b": (1, 2)}]}]}, r"\(got \(1, 2\) in field 'a\[0\].b' of row 1\)"),
    ({"payload": [{}, {"a": np.float32("inf")}]}, "in field 'a' of row 1"),
    ({"payload": [{}, {"a": "\ud800"}]}, "valid text"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_bad_rows_are_refused_and_change_nothing(store: Store, bad: dict[str, Any], message: str) -> None:
    store.add(VECTORS[:3], payload=[{"n": n} for n in range(3)])
    before = store.snapshot()
    given = {"vectors": VECTORS[:2], **bad}
    with pytest.raises(InputError, match=message):
        store.add(**given)
    with pytest.raises(InputError, match=message):
        store.upsert(**{"ids": [0, 1], **given})
    assert store.snapshot() is before   # not even a commit
    assert store.add(VECTORS[:1]) == [3]


def test_ids_that_are_there_or_are_not(store: Store) -> None:
    store.add(VECTORS[:3], ids=["a", "b", "c"])
    before = store.snapshot()
    with pytest.raises(InputError, match=r"ids must be new .*'b', which exists.*upsert"):
        store.add(VECTORS[:2], ids=["x", "b"])
    with pytest.raises(InputError, match=r"the index has no such id .*'x'"):
        store.delete(["a", "x"])
    with pytest.raises(InputError, match=r"the index has no such id .*'x'"):
        store.get(["a", "x"])
    with pytest.raises(InputError, match="are strings"):
        store.add(VECTORS[:1])
    with pytest.raises(InputError, match=r"the index has no such id .*1"):
        store.get([1])
    with pytest.raises(InputError, match="upsert needs ids"):
        store.upsert(VECTORS[:1], None)
    for bad in ("a", 3, [["a"]], [None], [b"a"], None, [1, "a"], [2.5], ["\ud800"]):
        with pytest.raises(InputError, match=r"ids must be a list of integers or of strings.*into a list: \[id\]"):
            store.delete(bad)
    store.get(one for one in ["a", "b"])
    for bad in (["", "y"], ["\ud800", "y"]):
        with pytest.raises(InputError, match="ids must be non-empty strings of valid Unicode"):
            store.add(VECTORS[:2], ids=bad)
    with pytest.raises(InputError, match="without NUL"):
        store.add(VECTORS[:1], ids=["a\0"])
    assert store.snapshot() is before


def test_a_payload_may_be_deep_but_not_bottomless(store: Store) -> None:
    deep: Any = {"x": 1}
    for _ in range(98):
        deep = {"x": deep}
    store.add(VECTORS[:1], payload=[deep])
    assert store.get([0])[1] == [deep]
    assert store.where({".".join("x" * 99): 1}).count == 1
    with pytest.raises(InputError, match="at most 100 levels deep"):
        store.add(VECTORS[:1], payload=[{"x": {"x": deep}}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype must be float32 or float16"),
        ({"metric": "dot"}, "metric must be cosine, ip or l2"),
        ({"int8_up_to": 3}, r"int8_up_to must be 0 or one of the dims \(2, 4, 8\)"),
    ],
)
def test_a_store_that_cannot_be_is_not_created(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Store.create(tmp_path / "index", NESTING, **options)
    assert not (tmp_path / "index").exists()


def test_nothing_foreign_is_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(IndexFolderError, match=r"must be empty for a new index .*mine\.txt"):
        Store.create(tmp_path, NESTING)
    with pytest.raises(IndexFolderError, match=r"there is no index in this folder"):
        Store.open(tmp_path)
    with pytest.raises(IndexFolderError, match=r"there is no index in this folder"):
        Store.open(tmp_path / "none", writable=True)
    with pytest.raises(StorageError, match=r"mine\.txt"):
        Store.create(tmp_path / "mine.txt", NESTING)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_an_index_is_not_created_over_another(store: Store) -> None:
    store.add(VECTORS[:20])
    store.close()
    with pytest.raises(IndexFolderError, match="already holds an index"):
        Store.create(store.path, NESTING)
    with Store.open(store.path) as reader:
        assert reader.count == 20
        reader.verify()


def test_one_writer_and_many_readers(store: Store) -> None:
    store.add(VECTORS[:3])
    with pytest.raises(StorageError, match=r"one writer at a time .*close the other, or open it for reading"):
        Store.open(store.path, writable=True)
    code = "import sys; from matryo.retrieve.store import Store; Store.open(sys.argv[1], writable=True)"
    other = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=False)
    assert "StorageError: an index has one writer at a time" in other.stderr
    with Store.open(store.path) as one, Store.open(store.path) as two:
        for change in (store.add, store.upsert):
            with pytest.raises(InputError, match=r"open for reading .*writable=True"):
                getattr(one, change.__name__)(VECTORS[:1], [0])
        for call in (lambda: one.delete([0]), one.compact):
            with pytest.raises(InputError, match="open for reading"):
                call()
        assert one.count == two.count == 3
        store.add(VECTORS[3:5])
        assert one.count == two.count == 5
    store.close()
    Store.open(store.path, writable=True).close()


def test_a_snapshot_outlives_compaction_and_closing(store: Store) -> None:
    store.add(VECTORS[:40], payload=[{"even": n % 2 == 0} for n in range(40)])
    with Store.open(store.path) as reader:
        old, even = reader.snapshot(), reader.where({"even": True})
        assert reader.snapshot() is old   # nothing changed
        store.delete(list(range(30)))
        store.upsert(-VECTORS[30:40], list(range(30, 40)))
        store.compact()
        store.add(VECTORS[:5])
        assert reader.count == 15
        new = reader.snapshot()
    store.close()
    assert (old.count, even.count, new.count) == (40, 20, 15)
    np.testing.assert_array_equal(old.vectors(np.arange(40)), VECTORS[:40])
    assert even.ids().tolist() == list(range(0, 40, 2))
    np.testing.assert_array_equal(np.concatenate([piece.vectors for piece in new.pieces()])[:10], -VECTORS[30:40])


def test_a_reader_that_loses_the_race_against_compaction_looks_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(VECTORS[:20])
    store.add(VECTORS[20:40])
    with Store.open(store.path) as reader:
        lost = []

        def late(root: Path, about: Any, database: Any, opened: Any) -> Any:
            if opened is reader._loaded and not lost:   # in its transaction, before it opens a segment
                lost.append(lengths(store))
                store.delete(list(range(5)))
                store.compact()
            return load(root, about, database, opened)

        # As for a reader without locks; segments that others read are removed later.
        monkeypatch.setattr(store._database, "checkpoint", lambda: True)
        monkeypatch.setattr("matryo.retrieve.store.session.load", late)
        assert reader.snapshot().ids().tolist() == list(range(5, 40))
        assert lost == [[20, 20]]


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    for call in (store.snapshot, store.compact, store.verify, lambda: store.count, lambda: store.add(VECTORS)):
        with pytest.raises(InputError, match=r"this index is closed .*open it again"):
            call()


def test_a_writer_that_was_dropped_keeps_nobody_out(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "index", NESTING)
    assert not store.snapshot().text_ids
    del store
    gc.collect()
    Store.open(tmp_path / "index", writable=True).close()


def test_the_next_writer_removes_what_no_commit_names(store: Store) -> None:
    store.add(VECTORS[:20])
    store.close()
    (known,) = store.path.glob("segments/*")
    orphan = known.with_name("0123456789abcdef")
    orphan.mkdir()
    (orphan / "block").write_bytes(b"half")
    (known.parent / "mine").mkdir()   # not a name of ours
    with Store.open(store.path):
        assert orphan.exists()   # a reader removes nothing
    with Store.open(store.path, writable=True) as again:
        assert sorted(known.parent.iterdir()) == sorted([known, known.parent / "mine"])
        again.verify()


def test_a_segment_that_cannot_be_written_changes_nothing(store: Store) -> None:
    store.add(VECTORS[:5])
    (store.path / "segments").write_text("in the way")
    before = store.snapshot()
    with pytest.raises(StorageError, match="cannot write"):
        store.add(VECTORS[5:30])
    assert store.snapshot() is before
    (store.path / "segments").unlink()
    assert store.add(VECTORS[5:30]) == list(range(5, 30))
    store.verify()


def test_threads_share_a_store(store: Store) -> None:
    failed = []

    def work(number: int) -> None:
        try:
            for start in range(0, 12, 3):
                ids = [100 * number + start + i for i in range(3)]
                store.add(VECTORS[start : start + 3], ids, [{"by": number}] * 3)
                np.testing.assert_array_equal(store.get(ids)[0], VECTORS[start : start + 3])
                assert store.where({"by": number}).count == start + 3
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert store.count == 48
    store.verify()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    script = """
import subprocess, sys
from pathlib import Path
import numpy as np
from matryo.errors import StorageError
from matryo.nesting import Nesting
from matryo.retrieve.store import Limits, Store

vectors = np.random.default_rng(0).standard_normal((40000, 16)).astype(np.float32)
disk, step, count = Path(sys.argv[1]), int(sys.argv[2]), 0
with Store.create(disk / "index", Nesting([4, 16]), limits=Limits(pending_bytes=64 << 10)) as store:
    try:
        for start in range(0, len(vectors), step):
            count += len(store.add(vectors[start : start + step]))
    except StorageError as error:
        print(error)
    assert 0 < store.count == count < len(vectors)
    store.verify()
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    store.add(vectors[count:])
    store.verify()
with Store.open(disk / "index") as store:
    store.verify()
    print((store.get(range(len(vectors)))[0] == vectors).all())
"""
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=2m tmpfs "$1"'
    if subprocess.run([*apart, mount, "sh", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let tests mount a small disk")
    for step in ("100", "3000"):
        command = [*apart, f'{mount} && exec "$2" -c "$3" "$1" "$4"', "sh", str(tmp_path), sys.executable, script, step]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        error, last = done.stdout.splitlines()
        assert "free some space" in error
        assert last == "True"


def test_a_disk_that_takes_no_writes_can_be_read(tmp_path: Path) -> None:
    with Store.create(tmp_path / "index", NESTING, limits=SMALL) as store:
        store.add(VECTORS)
    script = """
import sys
from matryo.errors import StorageError
from matryo.retrieve.store import Store
with Store.open(sys.argv[1]) as store:
    store.verify()
    print(store.count)
"""
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*apart, mount, "sh", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let tests mount a disk")
    command = [*apart, f'{mount} && exec "$2" -c "$3" "$1/index"', "sh", str(tmp_path), sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "60\n"), done.stderr
