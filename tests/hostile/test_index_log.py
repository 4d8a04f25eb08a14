"""A lost write-ahead log is noticed and nothing is removed for it; a backup is whole, under load too."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from attacks.outcome import forked

from matryo.errors import IndexFolderError, MatryoError, StorageError
from matryo.retrieve import Index
from matryo.retrieve.store import Limits
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from pathlib import Path

VECTORS = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
LIMITS = Limits(pending_bytes=10 * 32)


def killed(path: Path, *counts: int) -> None:
    """A writer that adds as many rows as these, one call each, and is killed."""
    def die() -> None:
        index, start = Index.create(path, [2, 8], limits=LIMITS), 0
        for count in counts:
            index.add(VECTORS[start : start + count])
            start += count
        os.kill(os.getpid(), signal.SIGKILL)
        index.close()

    assert forked(die).text == "SIGKILL"


def lose_log(path: Path) -> None:
    for end in ("-wal", "-shm"):
        (path / f"index.sqlite{end}").unlink(missing_ok=True)


def segments(path: Path) -> set[str]:
    return {entry.name for entry in (path / "segments").iterdir()}


@pytest.mark.parametrize("empty", [False, True])
def test_a_lost_log_is_noticed_and_what_it_named_is_kept(tmp_path: Path, empty: bool) -> None:
    path = tmp_path / "index"
    killed(path, 20, 5)
    lose_log(path)
    if empty:
        (path / "index.sqlite-wal").touch()
    before = segments(path)
    for writable in (False, True, False):
        with pytest.raises(IndexFolderError, match=r"changes .*index\.sqlite-wal, which is missing .*recover\('/"):
            Index.open(path, writable=writable)
    with pytest.raises(IndexFolderError, match="already holds an index"):
        Index.create(path, [2, 8])
    assert segments(path) == before
    with Index.recover(path) as index:   # the segment is in the file, the five recent rows were in the log
        np.testing.assert_array_equal(index.get(range(20))[0], VECTORS[:20])
        assert len(index) == 20
        index.add(VECTORS[20:40], list(range(20, 40)))
    with Index.open(path) as index:
        index.verify()
        assert len(index) == 40


def test_segments_that_only_the_lost_log_named_are_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "index"
    killed(path, 20)
    lose_log(path)
    orphan = path / "segments" / "0123456789abcdef"
    shutil.copytree(next((path / "segments").iterdir()), orphan)
    with Index.recover(path) as index:
        index.add(VECTORS[20:40])
        index.delete([0])
        index.compact()
        assert len(index) == 39
    assert (path / "segments" / "lost-0123456789abcdef" / "rows.npy").is_file()


def test_the_file_alone_names_every_segment_on_disk(tmp_path: Path) -> None:
    """Copied without the log after any call, it is a whole index with segments that exist."""
    path, copy = tmp_path / "index", tmp_path / "copy"
    with Index.create(path, [2, 8], limits=Limits(pending_bytes=3 * 32)) as index:
        for step in range(7):
            index.upsert(VECTORS[step : step + 6], list(range(step, step + 6)))
            if step % 3 == 2:
                index.delete([step])
                index.compact()
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
            Index.recover(copy).close()   # verifies
            shutil.rmtree(copy)


def test_old_segments_stay_while_the_file_names_them(tmp_path: Path) -> None:
    """A reader in a transaction keeps the log from the file; what the file names must not be removed then."""
    path, copy = tmp_path / "index", tmp_path / "copy"
    with Index.create(path, [2, 8], limits=LIMITS) as index, Index.open(path) as reader:
        index.add(VECTORS[:20])
        index.add(VECTORS[20:40])

        def amid() -> list[str]:
            names = [record.name for record in records.read_segments(reader._database)]
            index.delete([0])
            index.compact()
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
            return names

        names = reader._database.read(amid)
        assert {*names} < segments(path)
        with Index.recover(copy) as recovered:
            assert len(recovered) == 40
        index.add(VECTORS[40:60])   # removes what is left over
        assert not {*names} & segments(path)


def test_an_index_is_not_created_over_the_vectors_of_another(tmp_path: Path) -> None:
    killed(tmp_path / "index", 20)
    for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
        (tmp_path / "index" / name).unlink()
    before = segments(tmp_path / "index")
    with pytest.raises(IndexFolderError, match=r"holds the vectors of an index .*restore index.sqlite"):
        Index.create(tmp_path / "index", [2, 8])
    assert segments(tmp_path / "index") == before


def test_closed_indexes_and_those_of_earlier_versions_need_no_log(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with Index.create(path, [2, 8]) as index:
        index.add(VECTORS[:20])
    assert sorted(entry.name for entry in path.glob("index.sqlite*")) == ["index.sqlite"]
    with Index.open(path, writable=True) as index:
        with index._database.writing():
            index._database.execute("DELETE FROM meta WHERE key = 'open'")
        index._database.checkpoint()
        shutil.copytree(path, tmp_path / "old", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    with Index.open(tmp_path / "old") as index:
        assert len(index) == 20
    with Index.open(tmp_path / "old", writable=True) as index:
        index.verify()


def test_a_backup_is_an_index_of_its_own(tmp_path: Path) -> None:
    path, copy = tmp_path / "index", tmp_path / "deep" / "copy"
    with Index.create(path, [2, 8], limits=LIMITS) as index:
        index.add(VECTORS[:40], payload=[{"n": n} for n in range(40)])
        index.delete([3])
        index.backup(copy)
        index.add(VECTORS[40:44])
        for bad in (copy, path):
            with pytest.raises(IndexFolderError, match="a backup needs a new folder"):
                index.backup(bad)
        with pytest.raises(IndexFolderError, match="a backup must not be inside its index"):
            index.backup(path / "deep" / "copy")
        with Index.open(copy, writable=True, limits=LIMITS) as again:
            again.verify()
            assert again.ids.tolist() == [n for n in range(40) if n != 3]
            again.compact()
        shutil.rmtree(copy)
        index.verify()   # no bytes are shared
        assert len(index) == 43
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == []


def test_a_backup_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    left = tmp_path / "deep" / ".copy.0123abcd.tmp" / "new"
    left.mkdir(parents=True)
    (left / "index.sqlite").touch()
    with Index.create(tmp_path / "index", [2, 8]) as index:
        index.backup(tmp_path / "deep" / "copy")
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["copy"]


@pytest.mark.parametrize("path", [3, None, b"copy", "", ".", "a\0b", "x" * 300])
def test_the_path_of_a_backup_is_checked(tmp_path: Path, path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine").touch()
    monkeypatch.chdir(tmp_path / "here")
    with Index.create(tmp_path / "index", [2, 8]) as index:
        for call in (index.backup, Index.recover):
            with pytest.raises(MatryoError):
                call(path)
    assert [entry.name for entry in (tmp_path / "here").iterdir()] == ["mine"]


def test_a_backup_of_a_damaged_index_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", [2, 8], limits=LIMITS) as index:
        index.add(VECTORS[:40])
        file = next((tmp_path / "index").glob("segments/*/blocks/block-00.npy"))
        bad = bytearray(file.read_bytes())
        bad[-3] ^= 1
        file.write_bytes(bad)
        with pytest.raises((IndexFolderError, StorageError), match=rf"^{file} is damaged"):
            index.backup(tmp_path / "copy")
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_backups_while_another_process_writes_are_whole(tmp_path: Path) -> None:
    """Every commit has all ids with one version; a backup has those of one commit."""
    path = tmp_path / "index"
    stop = threading.Event()
    with Index.create(path, [2, 8], limits=LIMITS) as index:
        index.upsert(np.ones((15, 8)), list(range(15)))

        def write() -> None:
            version = 1
            while not stop.is_set():
                version += 1
                index.upsert(np.full((15, 8), version), list(range(15)))
                if version % 3 == 0:
                    index.compact()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            with Index.open(path) as reader:   # with a connection of its own, like another process
                for number in range(6):
                    reader.backup(tmp_path / f"copy-{number}")
        finally:
            stop.set()
            thread.join()
    for number in range(6):
        with Index.open(tmp_path / f"copy-{number}") as copy:
            copy.verify()
            assert len({*copy.get(list(range(15)))[0].ravel().tolist()}) == 1
