"""The streaming writer: killed at any moment it goes on where it was, and ends with the same bytes."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet, EmbeddingWriter, Head
from matryo.errors import EmbeddingsError, StorageError
from matryo.nesting import Nesting, truncate

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS = np.random.default_rng(1).standard_normal((24, 8)).astype(np.float32)
LABELS = np.arange(24) % 5
IDS = [f"row {'x' * (n % 7)}{n}" for n in range(24)]


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def fill(writer: EmbeddingWriter, stop: int = 24, step: int = 5) -> None:
    for start in range(writer.count, stop, step):
        rows = slice(start, min(start + step, stop))
        writer.append(VECTORS[rows], LABELS[rows], IDS[rows])


def interrupt(path: Path, after: int, **options: Any) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        EmbeddingWriter(path, dim=8, **{"fingerprint": "one", **options}) as writer,
    ):
        fill(writer, after)
        raise KeyboardInterrupt


@pytest.mark.parametrize("step", [1, 5, 24])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batches_of_any_size_give_what_one_write_gives(tmp_path: Path, step: int, dtype: str) -> None:
    about = {"nesting": Nesting([2, 8]), "model": "m", "dataset": "d", "split": "s"}
    head = Head.tied(np.ones((5, 8)), dims=(2, 8))
    with EmbeddingWriter(tmp_path / "streamed", dim=8, dtype=dtype, head=head, **about) as writer:
        assert writer.count == 0
        fill(writer, step=step)
        assert writer.count == 24
        assert not (tmp_path / "streamed").exists()
    EmbeddingSet.write(
        tmp_path / "at once", VECTORS, labels=LABELS, ids=IDS, dtype=dtype, head=head, **about
    )   # type: ignore[arg-type]
    assert contents(tmp_path / "streamed") == contents(tmp_path / "at once")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["at once", "streamed"]
    np.testing.assert_array_equal(EmbeddingSet.open(tmp_path / "streamed").vectors, VECTORS.astype(dtype))


def test_the_files_are_plain_numpy(tmp_path: Path) -> None:
    with EmbeddingWriter(tmp_path / "set", dim=8) as writer:
        fill(writer)
    np.testing.assert_array_equal(np.load(tmp_path / "set" / "vectors.npy"), VECTORS)
    np.testing.assert_array_equal(np.load(tmp_path / "set" / "labels.npy"), LABELS)
    assert np.load(tmp_path / "set" / "ids.npy").tolist() == IDS
    np.save(tmp_path / "numpy.npy", VECTORS)
    assert (tmp_path / "numpy.npy").read_bytes() == (tmp_path / "set" / "vectors.npy").read_bytes()


@pytest.mark.parametrize("after", [1, 5, 12, 23, 24])
def test_an_interrupted_write_continues(tmp_path: Path, after: int) -> None:
    interrupt(tmp_path / "set", after)
    with pytest.raises(EmbeddingsError, match=r"not finished .*set\.partial"):
        EmbeddingSet.open(tmp_path / "set")
    with EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="one") as writer:
        assert writer.count == after
        fill(writer)
    EmbeddingSet.write(tmp_path / "whole", VECTORS, labels=LABELS, ids=IDS)
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


def test_bytes_beyond_the_durable_rows_are_cut_off(tmp_path: Path) -> None:
    interrupt(tmp_path / "set", 10)
    for name in ("vectors.npy", "labels.npy", "ids.jsonl", ".progress.json.0123abcd.tmp"):
        with (tmp_path / "set.partial" / name).open("ab") as file:
            file.write(b"half a row")
    with EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="one") as writer:
        fill(writer)
    EmbeddingSet.write(tmp_path / "whole", VECTORS, labels=LABELS, ids=IDS)
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["vectors.npy", "labels.npy", "ids.jsonl"])
def test_a_partial_file_cut_short_is_named(tmp_path: Path, name: str) -> None:
    interrupt(tmp_path / "set", 10)
    path = tmp_path / "set.partial" / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(EmbeddingsError, match=rf"{name} must hold every row"):
        EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="one").__enter__()
    (tmp_path / "set.partial" / "progress.json").write_text("{", encoding="utf-8")
    with pytest.raises(EmbeddingsError, match=r"progress\.json is damaged .*delete"):
        EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="one").__enter__()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"fingerprint": {"model": "b", "size": 3}}, r"fingerprint\.model was 'a', is 'b'"),
        ({"fingerprint": {"model": "a"}}, r"fingerprint\.size was 3, is None"),
        ({"fingerprint": "other"}, r"fingerprint was None, is 'other'"),
        ({"fingerprint": None}, r"fingerprint\.model was 'a'"),
        ({"dim": 4}, r"dim was 8, is 4"),
        ({"dtype": "float16"}, r"dtype was 'float32', is 'float16'"),
        ({"split": "test"}, r"split was '', is 'test'"),
        ({"head": Head.tied(np.ones((5, 8)), dims=(8,))}, r"head was False, is True"),
    ],
)
def test_another_write_is_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    mark = {"model": "a", "size": 3}
    interrupt(tmp_path / "set", 10, fingerprint=mark)
    given = {"dim": 8, "fingerprint": mark, **options}
    with pytest.raises(EmbeddingsError, match=rf"holds 10 rows of another write.*{told}.*delete that folder"):
        EmbeddingWriter(tmp_path / "set", **given).__enter__()
    with EmbeddingWriter(tmp_path / "set", dim=8, fingerprint=mark) as writer:
        assert writer.count == 10
        fill(writer)


def test_without_a_fingerprint_nothing_is_continued(tmp_path: Path) -> None:
    interrupt(tmp_path / "set", 10, fingerprint=None)
    with pytest.raises(EmbeddingsError, match="no fingerprint"):
        EmbeddingWriter(tmp_path / "set", dim=8).__enter__()
    with EmbeddingWriter(tmp_path / "set", dim=8, overwrite=True) as writer:
        assert writer.count == 0
        writer.append(VECTORS)
    assert EmbeddingSet.open(tmp_path / "set").labels is None
    assert sorted(contents(tmp_path / "set")) == ["manifest.json", "vectors.npy"]


def test_overwrite_continues_its_own_rows_and_drops_others(tmp_path: Path) -> None:
    EmbeddingSet.write(tmp_path / "set", VECTORS[:3])
    interrupt(tmp_path / "set", 10, overwrite=True)
    assert len(EmbeddingSet.open(tmp_path / "set")) == 3   # the old one stays until the new one is whole
    with EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="two", overwrite=True) as writer:
        assert writer.count == 0
        fill(writer, 15)
        writer.flush()
        with pytest.raises(StorageError, match="one process at a time"):
            EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="two", overwrite=True).__enter__()
    assert len(EmbeddingSet.open(tmp_path / "set")) == 15


def test_a_finished_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    EmbeddingSet.write(tmp_path / "set", VECTORS)
    with pytest.raises(EmbeddingsError, match="pass overwrite=True"):
        EmbeddingWriter(tmp_path / "set", dim=8).__enter__()
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


def test_a_partial_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set.partial").mkdir()
    (tmp_path / "set.partial" / "thesis.tex").write_bytes(b"years")
    with pytest.raises(EmbeddingsError, match=r"nothing but unfinished embeddings \(got thesis\.tex"):
        EmbeddingWriter(tmp_path / "set", dim=8, overwrite=True).__enter__()
    assert contents(tmp_path / "set.partial") == {"thesis.tex": b"years"}


def test_bad_batches_change_nothing(tmp_path: Path) -> None:
    with EmbeddingWriter(tmp_path / "set", dim=8, classes=list("abcde")) as writer:
        fill(writer, 10)
        rows, labels = VECTORS[10:12], LABELS[10:12]
        for batch, told in [
            ((rows[:, :7], labels, IDS[10:12]), "must have 8 columns"),
            ((rows * np.nan, labels, IDS[10:12]), "finite"),
            ((rows, [0, 5], IDS[10:12]), "last of the classes"),
            ((rows, labels, [IDS[3], "new"]), r"unique \(got 'row xxx3' twice"),
            ((rows, labels, ["new", "new"]), "unique"),
            ((rows, labels, [1, 2]), "all integers or all strings"),
            ((rows, labels), r"columns of the first .*got vectors.npy, labels.npy after vectors"),
            ((rows, None, IDS[10:12]), "columns of the first"),
            ((rows, labels[:1], IDS[10:12]), "each of the 2 vectors"),
        ]:
            with pytest.raises(EmbeddingsError, match=told):
                writer.append(*batch)
            assert writer.count == 10
        writer.append(np.empty((0, 8)), np.empty(0, int), np.empty(0, int))
        fill(writer)
    mine = EmbeddingSet.open(tmp_path / "set")
    np.testing.assert_array_equal(mine.vectors, VECTORS)
    assert mine.ids.tolist() == IDS


def test_ids_stay_unique_across_a_resume(tmp_path: Path) -> None:
    interrupt(tmp_path / "set", 10)
    with EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="one") as writer:
        with pytest.raises(EmbeddingsError, match="unique"):
            writer.append(VECTORS[:1], LABELS[:1], IDS[:1])
        fill(writer)


def test_normalized_is_measured_over_every_batch(tmp_path: Path) -> None:
    unit = truncate(VECTORS, 8)
    with EmbeddingWriter(tmp_path / "unit", dim=8) as writer:
        writer.append(unit[:12])
        writer.append(unit[12:])
    assert EmbeddingSet.open(tmp_path / "unit").manifest.normalized is True
    with pytest.raises(RuntimeError), EmbeddingWriter(tmp_path / "mixed", dim=8, fingerprint="f") as writer:
        writer.append(VECTORS[:1])
        raise RuntimeError
    with EmbeddingWriter(tmp_path / "mixed", dim=8, fingerprint="f") as writer:
        writer.append(unit)   # the first row, written before the interruption, was not
    assert EmbeddingSet.open(tmp_path / "mixed").manifest.normalized is False
    with (
        pytest.raises(EmbeddingsError, match="norm 1"),
        EmbeddingWriter(tmp_path / "no", dim=8, normalized=True) as writer,
    ):
        writer.append(VECTORS)


def test_an_empty_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingsError, match="at least one row"), EmbeddingWriter(tmp_path / "set", dim=8):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_before_the_first_row_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingsError, match="8 columns"), EmbeddingWriter(tmp_path / "set", dim=8) as writer:
        writer.append(VECTORS[:, :3])
    assert list(tmp_path.iterdir()) == []


def test_rows_are_synced_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = tmp_path / "set.partial" / "progress.json"
    with EmbeddingWriter(tmp_path / "set", dim=8, fingerprint="f") as writer:
        writer.append(VECTORS[:5])
        assert json.loads(progress.read_text(encoding="utf-8"))["count"] == 0
        now[0] = 1.5
        writer.append(VECTORS[5:9])
        assert json.loads(progress.read_text(encoding="utf-8"))["count"] == 9
        writer.append(VECTORS[9:])
        assert json.loads(progress.read_text(encoding="utf-8"))["count"] == 9
        writer.flush()
        assert json.loads(progress.read_text(encoding="utf-8"))["count"] == 24


@pytest.mark.parametrize("path", ["/", ".."])
def test_a_path_needs_a_name(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EmbeddingsError):
        EmbeddingWriter(path, dim=8).__enter__()


CHILD = """
import sys
import numpy as np
from matryo.embeddings import EmbeddingWriter, Head

path, total, step, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
vectors = np.random.default_rng(5).standard_normal((total, 32)).astype(np.float32)
head = Head.tied(np.ones((7, 32)), dims=(8, 32))
with EmbeddingWriter(path, dim=32, fingerprint={"seed": 5}, sync_seconds=seconds, head=head) as writer:
    print("from", writer.count, flush=True)
    while writer.count < total:
        rows = slice(writer.count, min(writer.count + step, total))
        names = [f"image-{n:0{1 + n % 5}}" for n in range(rows.start, rows.stop)]
        sys.stdin.readline()   # the parent sets the pace, so that it can strike where it means to
        writer.append(vectors[rows], np.arange(rows.start, rows.stop) % 7, names)
        print("at", writer.count, flush=True)
    print("all", writer.count, flush=True)
"""


def lines_of(child: subprocess.Popen[str]) -> Iterator[tuple[str, int]]:
    """What the child says; each line is answered with leave to write the next batch, before it is looked at."""
    assert child.stdout is not None
    assert child.stdin is not None
    for line in child.stdout:
        word, number = line.split()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write("\n")
            child.stdin.flush()
        yield word, int(number)


@pytest.mark.parametrize(("seed", "seconds"), [(0, 0.0), (1, 0.0), (2, 0.005)])
def test_killed_at_random_it_ends_as_if_never_stopped(tmp_path: Path, seed: int, seconds: float) -> None:
    chance = random.Random(seed)
    total, step = 400, 10

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, str(tmp_path / name), str(total), str(step), str(seconds)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start("straight") as child:
        assert [word for word, _ in lines_of(child)][-1] == "all"
    assert child.returncode == 0

    known, kills = 0, 0
    for attempt in range(30):
        with start("killed") as child:
            last = attempt >= 6   # the later ones are killed while finishing, or not at all
            patience = 10**6 if last else chance.randint(1, 9)
            for word, number in lines_of(child):
                if word == "from":
                    assert number >= known   # what was durable is still there
                if word == "at" and seconds == 0:
                    known = number   # synced before it was printed
                patience -= word == "at"
                if patience <= 0 or (word == "all" and chance.random() < 0.8):
                    time.sleep(chance.random() * (0.004 if patience <= 0 else 0.02))
                    child.send_signal(signal.SIGKILL)
                    break
        if (tmp_path / "killed").exists():
            break   # the rename is the last word, whether or not the kill came after it
        kills += child.returncode == -signal.SIGKILL
    assert kills >= 5
    # The two files a kill just after the rename may leave behind are no part of the embeddings.
    rest = {name: data for name, data in contents(tmp_path / "killed").items() if name not in LEFTOVERS}
    assert rest == contents(tmp_path / "straight")
    EmbeddingSet.open(tmp_path / "killed").verify()


LEFTOVERS = ("progress.json", "ids.jsonl")


def test_a_full_disk_loses_no_durable_row(tmp_path: Path) -> None:
    script = """
import subprocess, sys
from pathlib import Path
import numpy as np
from matryo.embeddings import EmbeddingSet, EmbeddingWriter
from matryo.errors import StorageError

disk, vectors = Path(sys.argv[1]), np.random.default_rng(0).standard_normal((8000, 16)).astype(np.float32)

def write():
    with EmbeddingWriter(disk / "mine", dim=16, fingerprint="f", sync_seconds=0) as writer:
        print(writer.count)
        for start in range(writer.count, len(vectors), 500):
            writer.append(vectors[start : start + 500])

try:
    write()
except StorageError as error:
    print(error)
subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
write()
mine = EmbeddingSet.open(disk / "mine")
mine.verify()
print((mine.vectors == vectors).all(), [entry.name for entry in disk.iterdir()])
"""
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=256k tmpfs "$1"'
    if subprocess.run([*apart, mount, "sh", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let tests mount a small disk")
    command = [*apart, f'{mount} && exec "$2" -c "$3" "$1"', "sh", str(tmp_path), sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, error, again, last = done.stdout.splitlines()
    assert first == "0"
    assert "No space left" in error
    assert int(again) >= 2500   # 256 KiB hold 4096 rows
    assert int(again) % 500 == 0
    assert last == "True ['mine']"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_failed_batch_can_be_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddingWriter(tmp_path / "set", dim=8) as writer:
        fill(writer, 10)
        column = writer._columns["labels.npy"]
        good = column.file
        with monkeypatch.context() as patch, open("/dev/full", "r+b", buffering=0) as full:   # noqa: PTH123
            patch.setattr(column, "file", full)
            with pytest.raises(StorageError, match="free some space"):
                writer.append(VECTORS[10:12], LABELS[10:12], IDS[10:12])
        assert column.file is good
        fill(writer)
    np.testing.assert_array_equal(EmbeddingSet.open(tmp_path / "set").labels, LABELS)
    assert EmbeddingSet.open(tmp_path / "set").ids.tolist() == IDS
