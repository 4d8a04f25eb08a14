"""Files are whole or absent: on errors, on a full disk, and under a kill."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from matryo.errors import InputError, StorageError
from matryo.files import lock, remove_temporaries, replacing, sha256, storage, write_json


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "file.bin"
    with replacing(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["file.bin"]


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_inside_leaves_the_old_file_and_no_other(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(failure)), replacing(path) as file:
        file.write(b"half of the ne")
        raise failure
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


def test_permissions_are_the_ordinary_ones(tmp_path: Path) -> None:
    with replacing(tmp_path / "ours") as file:
        file.write(b"x")
    (tmp_path / "plain").write_bytes(b"x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")}
    assert len(modes) == 1


def test_a_path_that_is_a_folder_keeps_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder is a folder"), replacing(tmp_path / "folder") as file:
        file.write(b"x")
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).symlink_to("/dev/null")])
def test_only_files_are_replaced(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "x")
    before = os.lstat(tmp_path / "x")
    with pytest.raises(InputError, match=r"choose the name of a file"), replacing(tmp_path / "x"):
        raise AssertionError("refused before the work")
    assert os.path.samestat(os.lstat(tmp_path / "x"), before)
    assert names(tmp_path) == ["x"]


def test_the_next_write_removes_what_killed_writers_left(tmp_path: Path) -> None:
    others = [".precious.tmp", ".y.0123abcd.tmp", ".x.0123ABCD.tmp", ".x.0123abcde.tmp"]
    for name in (".x.0123abcd.tmp", *others):
        (tmp_path / name).write_text("x")
    (tmp_path / ".x.89abcdef.tmp").mkdir()
    with replacing(tmp_path / "x") as first:
        first.write(b"first")
        with replacing(tmp_path / "x") as second:   # leaves that of the first, who is alive
            second.write(b"second")
        assert (tmp_path / "x").read_bytes() == b"second"
    assert (tmp_path / "x").read_bytes() == b"first"
    assert names(tmp_path) == sorted([*others, ".x.89abcdef.tmp", "x"])


def test_json_round_trips_and_is_readable(tmp_path: Path) -> None:
    value = {"name": "Ålesund", "dims": [8, 16], "deep": {"a": None}}
    write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "Ålesund" in text
    assert text.endswith("}\n")


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"new": object()})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"old": 1}
    assert names(tmp_path) == ["x.json"]


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "x").write_bytes(data)
    assert sha256(tmp_path / "x") == hashlib.sha256(data).hexdigest()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_named_with_its_cure() -> None:
    told = r"cannot write here \(got No space left.*: free some space and run"
    with (
        pytest.raises(StorageError, match=told) as error,
        storage(Path("here")),
        Path("/dev/full").open("wb") as file,
    ):
        file.write(b"x")
        file.flush()
    assert isinstance(error.value, OSError)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EBUSY])
def test_what_the_disk_refuses_becomes_one_error(number: int) -> None:
    with pytest.raises(StorageError, match="cannot write here"), storage(Path("here")):
        raise OSError(number, os.strerror(number))


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(InterruptedError), storage(Path("here")):
        raise InterruptedError(errno.EINTR, "a signal came")
    inner = StorageError("first")
    with pytest.raises(StorageError) as error, storage(Path("here")):
        raise inner
    assert error.value is inner


def test_replacing_on_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from matryo.errors import StorageError
        from matryo.files import replacing

        path = Path(sys.argv[1]) / "file.bin"
        path.write_bytes(b"old")
        try:
            with replacing(path) as file:
                file.write(bytes(1 << 20))
        except StorageError as error:
            print(error)
        print(path.read_bytes(), [entry.name for entry in path.parent.iterdir()])
    """
    told = run_on_small_disk(tmp_path, script)
    assert "cannot write" in told
    assert "No space left" in told
    assert "free some space" in told
    assert told.splitlines()[-1] == "b'old' ['file.bin']"


def run_on_small_disk(tmp_path: Path, script: str) -> str:
    """What ``script`` prints when its first argument is a folder on a real file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=256k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    attempt = [*apart, 'mount -t tmpfs tmpfs "$1"', "sh", str(disk)]
    try:
        subprocess.run(attempt, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system does not let tests mount a small disk")
    command = [*apart, mount, "sh", str(disk), sys.executable, textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_locking_removes_no_file_and_sweeping_only_our_temporaries(tmp_path: Path) -> None:
    ours, others = ".run.json.0123abcd.tmp", [".precious.tmp", ".mine.0123abcd.tmp", ".run.json.tmp", "run.json"]
    for name in (ours, *others):
        (tmp_path / name).write_text("x")
    os.close(lock(tmp_path))
    assert names(tmp_path) == sorted([ours, *others])
    remove_temporaries(tmp_path, ["run.json"])
    assert names(tmp_path) == sorted(others)
