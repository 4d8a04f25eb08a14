"""Compaction in a process of its own: it uses its share, it can be killed, and it dies with the writer."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from matryo import Index
from matryo.errors import InputError, StorageError
from matryo.retrieve.store import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIM = 16
LIMITS = Limits(pending_bytes=64 * DIM * 4)
SLOW = 0.01   # the child sleeps from its first moments on, so that it is there when it is killed

# A writer that begins a compaction, and is killed: by the test, or by itself in the middle of the commit.
WRITER = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from test_compaction_processes import SLOW
from matryo import Index
from matryo.retrieve.store.sql import records

index = Index.open(sys.argv[2], writable=True)
if sys.argv[3] in ("waits", "works"):
    handle = index.compact(background=True, share=SLOW if sys.argv[3] == "waits" else 1)
    print(handle._process.pid, flush=True)
    while sys.argv[3] == "works" and handle.progress == 0:
        time.sleep(0.01)
    index.add([[1.0] * 16] * 3, ["a", "b", "c"])
    index.delete(["0"])
    print("acknowledged", flush=True)
else:
    records.insert_dead = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    handle = index.compact(background=True, share=1)
time.sleep(60)
"""


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Index.create(tmp_path / "index", [4, DIM], limits=LIMITS) as index:
        for part in range(4):
            index.add(rows(200, part), [str(200 * part + n) for n in range(200)])
        index.delete([str(n) for n in range(1, 800, 7)])
    return tmp_path / "index"


@pytest.fixture
def index(path: Path) -> Iterator[Index]:
    with Index.open(path, writable=True, limits=LIMITS) as opened:
        yield opened


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def is_clean(path: Path) -> bool:
    with Index.open(path) as index:
        index.verify()
        used = {segment.name for segment in index.snapshot().segments if segment.name}
        used |= {folder.name for segment in index.snapshot().segments for folder in segment.guides.values()}
    return used == {entry.name for entry in path.glob("*/*") if entry.is_dir()} and not [*path.glob("compact-*")]


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_it_compacts_at_its_share_while_the_index_changes(index: Index) -> None:
    index.build(sketch=True, partition=4)
    expected = set(index.ids.tolist())
    cpu, start = cpu_of_children(), time.monotonic()
    compaction = index.compact(background=True, share=0.5)
    assert index.compact(background=True) is compaction
    changes = 0
    while not compaction.wait(0.1):
        assert 0 <= compaction.progress <= 1
        assert compaction.error is None
        changes += 1
        index.add(rows(1, 99 + changes), [f"new {changes}"])
        index.delete([str(7 * changes)])
        expected ^= {f"new {changes}", str(7 * changes)}
        assert index.search(rows(1, 99 + changes), k=1).ids[0, 0] == f"new {changes}"
    share = (cpu_of_children() - cpu) / (time.monotonic() - start)
    assert share < 0.75   # it stays below on a busy machine, and above only while it ends
    assert changes
    assert (compaction.done, compaction.progress, str(compaction)) == (True, 1.0, "Compaction(done)")
    assert set(index.ids.tolist()) == expected
    assert sorted(index.snapshot().segments[0].guides) == ["partition", "sketch"]
    assert is_clean(index.path)


def test_a_compact_index_needs_no_process(index: Index) -> None:
    index.compact()
    compaction = index.compact(background=True)
    assert compaction.done
    assert compaction.wait(0)
    assert compaction._process is None


def test_a_killed_child_changes_nothing(index: Index) -> None:
    ids, count = index.ids.tolist(), len(index.snapshot().segments)
    compaction = index.compact(background=True, share=SLOW)
    assert not compaction.wait(0)
    os.kill(compaction._process.pid, signal.SIGKILL)
    with pytest.raises(StorageError, match=r"was ended \(got exit status -9\): call index.*the index is unchanged"):
        compaction.wait(60)
    assert compaction.done
    assert isinstance(compaction.error, StorageError)
    assert index.ids.tolist() == ids
    assert len(index.snapshot().segments) == count
    assert is_clean(index.path)


def test_a_child_killed_midway_leaves_no_folder(index: Index) -> None:
    index.build(sketch=True, partition=4)
    ids = index.ids.tolist()
    compaction = index.compact(background=True, share=1)
    until(lambda: compaction.progress > 0)
    os.kill(compaction._process.pid, signal.SIGKILL)
    with contextlib.suppress(StorageError):   # it may have ended just before
        compaction.wait(60)
    assert index.ids.tolist() == ids
    assert is_clean(index.path)


@pytest.mark.parametrize("how", ["cancel", "close", "compact"])
def test_it_is_cancelled(index: Index, how: str) -> None:
    ids = index.ids.tolist()
    compaction = index.compact(background=True, share=SLOW)
    pid = compaction._process.pid
    getattr(compaction if how == "cancel" else index, how)()
    assert is_gone(pid)
    with pytest.raises(InputError, match="this compaction was cancelled: call index"):
        compaction.wait()
    assert is_clean(index.path)
    with Index.open(index.path) as reader:
        assert reader.ids.tolist() == ids
        assert (len(reader.snapshot().segments) == 1) == (how == "compact")


@pytest.mark.parametrize("how", ["waits", "works"])
def test_a_killed_writer_takes_its_child_with_it(path: Path, how: str) -> None:
    if how == "works":
        with Index.open(path, writable=True) as index:
            index.build(sketch=True, partition=4)
    with writer(path, how) as process:
        child = int(process.stdout.readline())
        assert process.stdout.readline() == "acknowledged\n"
        process.kill()
    with Index.open(path, writable=True) as index:   # at once: the child may still run
        assert {"a", "b", "c", "7"} <= {*index.ids.tolist()}
        assert "0" not in index
    until(lambda: is_gone(child))
    assert is_clean(path)


def test_a_writer_killed_in_the_commit_leaves_the_old_segments(path: Path) -> None:
    with Index.open(path) as reader:
        ids, names = reader.ids.tolist(), [segment.name for segment in reader.snapshot().segments]
    with writer(path, "kills itself") as process:
        assert process.wait() == -signal.SIGKILL
    assert not is_clean(path)   # the new segment was moved, and is not committed
    with Index.open(path, writable=True) as index:
        assert index.ids.tolist() == ids
        assert [segment.name for segment in index.snapshot().segments] == names
    assert is_clean(path)


def writer(path: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(path), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("share", [0, 1.5, -1, "much"])
def test_a_share_is_a_part_of_a_core(index: Index, share: float) -> None:
    with pytest.raises(InputError, match=r"share must be a number from 0\.01 to 1 .*: pass share=0\.25"):
        index.compact(share=share)
