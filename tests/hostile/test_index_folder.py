"""An index whose folder is moved or replaced, or whose path leads elsewhere, loses nothing and breaks nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo.errors import IndexFolderError, MatryoError, StorageError
from matryo.retrieve import Index
from matryo.retrieve.store import Limits
from matryo.retrieve.store.merging import merging

VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
LIMITS = Limits(pending_bytes=10 * 32)
MOVED = r"moved or replaced while the index was open .*open the index again where it is now"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def create(path: Path | str, count: int) -> Index:
    index = Index.create(path, [2, 8], limits=LIMITS)
    index.add(VECTORS[:count])
    return index


def check(path: Path, count: int) -> None:
    with Index.open(path) as index:
        index.verify()
        np.testing.assert_array_equal(index.get(range(count))[0], VECTORS[:count])
        assert len(index) == count


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with create("index", 5) as index:
        assert repr(index).startswith("Index('index')")
        with Index.open("index") as reader:
            monkeypatch.chdir(tmp_path / "b")
            index.add(VECTORS[5:40])
            assert len(reader) == len(reader.ids) == 40
            assert index.describe().bytes > 40 * 32
    assert names(tmp_path / "b") == []
    check(tmp_path / "a" / "index", 40)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_writer_of_a_folder_that_was_moved_refuses(tmp_path: Path, replaced: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    index = create(old, 30)
    index.add(VECTORS[30:33])
    reader = Index.open(old)
    old.rename(new)
    if replaced:
        other = create(old, 7)
        before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    calls: list[Any] = [lambda: index.add(VECTORS[33:]), lambda: index.add(VECTORS[33:34]), lambda: index.delete([0]),
                        index.compact, index.build]  # fmt: skip
    for call in calls:
        with pytest.raises(StorageError, match=MOVED):
            call()
    assert len(index) == len(reader) == 33
    index.close()
    if replaced:
        assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
        other.add(VECTORS[7:9])
        check(old, 9)
        other.close()
    else:
        assert names(tmp_path) == ["new"]
    with Index.open(new, writable=True, limits=LIMITS) as index:
        index.add(VECTORS[33:])
        index.compact()
    with pytest.raises(StorageError, match=MOVED):   # its new segments are elsewhere
        reader.get([0])
    reader.close()
    check(new, 60)


@pytest.mark.parametrize("late", [False, True])
def test_a_folder_that_moves_during_a_call_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    index, write = create(old, 30), merging.write_segment

    def move(*arguments: Any) -> Any:
        if late:
            record = write(*arguments)
        old.rename(new)
        return record if late else write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(merging, "write_segment", move)
        with pytest.raises(StorageError, match=MOVED if late else "cannot write"):
            index.add(VECTORS[30:])
    index.close()
    assert names(tmp_path) == ["new"]
    check(new, 30)
    new.rename(old)   # moved back, it is the same folder
    with Index.open(old, writable=True) as index:
        index.add(VECTORS[30:])
    check(old, 60)


def test_a_folder_that_comes_back_is_the_same(tmp_path: Path) -> None:
    with create(tmp_path / "old", 30) as index:
        (tmp_path / "old").rename(tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "old")
        index.add(VECTORS[30:])
    check(tmp_path / "old", 60)


def test_a_folder_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    with create(tmp_path / "index", 30) as index:
        shutil.rmtree(tmp_path / "index")
        with pytest.raises(StorageError, match=MOVED):
            index.add(VECTORS[30:])
    assert names(tmp_path) == []


def test_links_that_lead_in_a_circle_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for path in (tmp_path / "one", tmp_path / "one" / "index"):
        for call in (lambda path=path: Index.open(path), lambda path=path: Index.create(path, [2, 8])):
            with pytest.raises(MatryoError) as error:
                call()
            assert "\n" not in str(error.value)
        assert not Index.exists(path)


def test_creating_removes_nothing_of_others(tmp_path: Path) -> None:
    for name in (".precious.tmp", ".index.sqlite.0123abcd.tmp"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(IndexFolderError, match=r"must be empty for a new index .*precious"):
        Index.create(tmp_path, [2, 8])
    assert names(tmp_path) == [".index.sqlite.0123abcd.tmp", ".precious.tmp"]


def test_a_creation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("no")

    with monkeypatch.context() as patch:
        patch.setattr("matryo.retrieve.store.sql.records.create", refuse)
        with pytest.raises(StorageError, match="no"):
            Index.create(tmp_path / "deep" / "index", [2, 8])
    assert names(tmp_path) == []
    create(tmp_path / "deep" / "index", 3).close()
    check(tmp_path / "deep" / "index", 3)


def test_sweeping_keeps_folders_of_others(tmp_path: Path) -> None:
    with create(tmp_path / "index", 30) as index:
        for folder in ("segments/mine", "guides/mine"):
            (tmp_path / "index" / folder).mkdir(parents=True)
        index.delete([0])
        index.compact()
        assert (tmp_path / "index" / "segments" / "mine").is_dir()
        assert (tmp_path / "index" / "guides" / "mine").is_dir()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system has no /proc")
def test_closing_gives_back_every_handle_and_mapping(tmp_path: Path) -> None:
    create(tmp_path / "index", 30).close()
    index = Index.open(tmp_path / "index", writable=True)
    assert index.snapshot().vectors(np.arange(2)).shape == (2, 8)
    index.close()
    handles = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert not [path for path in handles if path.startswith(str(tmp_path))]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
