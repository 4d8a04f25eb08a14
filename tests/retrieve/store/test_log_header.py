"""The header of the log's index changes with each acknowledged commit, and reading it keeps the locks of SQLite."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from matryo.nesting import Nesting
from matryo.retrieve.store import Store
from matryo.retrieve.store.sql.log_header import map_log_header

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

pytestmark = pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="descriptors are not listed here")
COUNT = 300


def write(folder: Path, first: int, pipe: Connection) -> None:
    with Store.open(folder, writable=True) as store:
        for row in range(first, first + COUNT):
            store.add([[row, 1]])
            pipe.send(row + 1)   # acknowledged
            if row % 100 == 50:
                store._database.checkpoint()
            pipe.recv()
        pipe.send(None)
        pipe.recv()   # killed here


def test_a_reader_sees_every_acknowledged_commit_at_once(tmp_path: Path) -> None:
    Store.create(tmp_path / "index", Nesting([1, 2])).close()
    with Store.open(tmp_path / "index") as reader, Store.open(tmp_path / "index") as other:
        assert reader._database._log is not None
        for turn in range(2):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=write, args=(tmp_path / "index", turn * COUNT, theirs)
            )
            process.start()
            while (count := ours.recv()) is not None:
                assert reader.snapshot().count == count
                assert reader.snapshot() is reader.snapshot()
                if count % 50 == 0:
                    other.close()   # gives up its descriptors: the locks of the process must stay
                    other = Store.open(tmp_path / "index")
                ours.send(None)
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            assert reader.snapshot().count == (turn + 1) * COUNT
        other.close()


def test_the_header_changes_when_sqlite_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second = (sqlite3.connect(path, isolation_level=None) for _ in range(2))
    first.execute("PRAGMA journal_mode = WAL")
    first.execute("CREATE TABLE numbers (number)")
    second.execute("SELECT * FROM numbers").fetchall()
    header = map_log_header(tmp_path / "file-shm")
    assert header is not None

    def state() -> tuple[Any, bytes]:
        return second.execute("PRAGMA data_version").fetchone(), header.tobytes()

    before = state()
    for statement in ("INSERT INTO numbers VALUES (1)", "SELECT * FROM numbers", "DELETE FROM numbers", "SELECT 1",
                      "PRAGMA wal_checkpoint(TRUNCATE)", "INSERT INTO numbers VALUES (2)", "DELETE FROM numbers",
                      "PRAGMA wal_checkpoint(PASSIVE)", "VACUUM"):   # fmt: skip
        first.execute(statement).fetchall()
        after = state()
        assert after[0] == before[0] or after[1] != before[1], statement
        before = after
    first.close()
    assert (tmp_path / "file-shm").exists()   # the lock of the second connection keeps it
    second.close()
    assert map_log_header(tmp_path / "file-shm") is None
