"""A folder is replaced in one step; a kill, an error and a concurrent writer leave the old one or the new one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from matryo import folders
from matryo.errors import StorageError
from matryo.files import lock
from matryo.folders import foreign, replacing_folder, restore, swap_in, write_record


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def made(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True)
    (folder / name).touch()
    return folder


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the exchange of the system, if it has one, and without."""
    if request.param == "two renames":
        monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", ["../old", ".", "../link", "../free", "../empty"])
def test_a_folder_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    made(tmp_path / "old", "old")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    target = Path(path).resolve()
    with replacing_folder(Path(path)) as new:
        (new / "deep").mkdir()
        (new / "deep" / "new").write_text("x")
    assert names(target) == ["deep"]
    assert names(tmp_path) == sorted({"old", "empty", "link", target.name})
    swap_in(made(tmp_path / "beside", "other"), target)
    assert names(target) == ["other"]
    assert names(tmp_path) == sorted({"old", "empty", "link", target.name})


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_folder_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    made(tmp_path / "old", "old")
    with pytest.raises(error), replacing_folder(tmp_path / "old") as new:
        (new / "half").touch()
        raise error
    assert (names(tmp_path), names(tmp_path / "old")) == (["old"], ["old"])


def test_a_failure_between_two_renames_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "old", "old")
    rename = Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path.name == "new" and not target.exists():
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(KeyboardInterrupt), replacing_folder(tmp_path / "old") as new:
        (new / "new").touch()
    assert (names(tmp_path), names(tmp_path / "old")) == (["old"], ["old"])


def killed_between_the_renames(path: Path) -> None:
    """Replace ``path`` in a child that is killed when the old folder has gone and the new one has not come."""
    child = os.fork()
    if child == 0:
        folders._exchange = lambda *_: False   # type: ignore[assignment]
        rename = Path.rename

        def killed(old: Path, new: Path) -> Path:
            result = rename(old, new)
            if old == path:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        Path.rename = killed   # type: ignore[method-assign,assignment]
        with replacing_folder(path) as work:
            (work / "new").touch()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not path.exists()


def test_a_look_or_a_write_after_such_a_kill_brings_the_old_folder_back(tmp_path: Path) -> None:
    path = made(tmp_path / "old", "old")
    killed_between_the_renames(path)
    restore(path)
    assert (names(tmp_path), names(path)) == (["old"], ["old"])
    killed_between_the_renames(path)
    with pytest.raises(ValueError, match="no"), replacing_folder(path):
        assert names(path) == ["old"]
        raise ValueError("no")
    assert (names(tmp_path), names(path)) == (["old"], ["old"])


def test_only_work_folders_of_dead_writers_are_deleted(tmp_path: Path) -> None:
    dead = made(tmp_path / ".x.0123abcd.tmp" / "new", "half").parent
    live = made(tmp_path / ".x.89abcdef.tmp" / "new", "half").parent
    others = [
        made(tmp_path / ".x.fedcba98.tmp", "precious"),   # our name, but not what is in it
        made(tmp_path / ".x.89ABCDEF.tmp" / "new", "half"),
        made(tmp_path / ".x.0123abcde.tmp" / "new", "half"),
        made(tmp_path / ".xx.0123abcd.tmp" / "new", "half"),
        made(tmp_path / ".precious.tmp" / "new", "half"),
    ]
    (tmp_path / ".x.aaaaaaaa.tmp").symlink_to(others[0])
    handle = lock(live)
    with replacing_folder(tmp_path / "x"):
        assert not dead.exists()
        assert live.exists()
    os.close(handle)
    with replacing_folder(tmp_path / "x"):
        assert not live.exists()
    assert all(any(other.iterdir()) for other in others)
    assert (tmp_path / ".x.aaaaaaaa.tmp").is_symlink()


def test_two_writers_at_a_time_leave_one_whole_folder(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "x") as first:
        (first / "first").touch()
        with replacing_folder(tmp_path / "x") as second:
            (second / "second").touch()
        assert names(tmp_path / "x") == ["second"]
    assert (names(tmp_path), names(tmp_path / "x")) == (["x"], ["first"])


def test_a_file_in_the_way_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(StorageError, match="cannot write"), replacing_folder(tmp_path / "x") as new:
        (new / "new").touch()
    assert (tmp_path / "x").read_text() == "mine"
    assert names(tmp_path) == ["x"]


def test_a_record_finds_what_is_not_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_text("a")
    assert foreign(folder, "kind") == ["no matryo.json"]
    write_record(folder, "kind")
    assert foreign(folder, "kind") == []
    assert foreign(folder, "other") == ["a matryo.json of kind kind"]
    (folder / "deep" / "a").write_text("b")
    assert foreign(folder, "kind") == ["a changed deep/a"]
    (folder / "deep" / "a").unlink()
    assert foreign(folder, "kind") == []
    (folder / "deep" / "a").symlink_to(tmp_path)
    (folder / ".hidden").touch()
    (folder / "empty").mkdir()
    assert foreign(folder, "kind") == [".hidden", "deep/a"]
    record = (folder / "matryo.json").read_text()
    (folder / "matryo.json").write_text(record.replace("deep/a", "deep/b"))
    assert foreign(folder, "kind") == ["a damaged matryo.json"]
    (folder / "matryo.json").write_text("[]")
    assert foreign(folder, "kind") == ["a damaged matryo.json"]
