"""The SQLite file of a store: atomic transactions, and errors that name the file and the cure.

SQLite runs in WAL mode with full syncs. A commit that returned survives a kill and a power cut. Readers see the last
commit and never wait for the writer. The write-ahead log has checksums of SQLite's own: damage ends the log at that
point, as a torn write does, and the commits before it remain.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Literal

from matryo.errors import IndexFolderError, StorageError
from matryo.retrieve.store.sql.where import compare_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATABASE = "index.sqlite"
_PATIENCE = 30.0   # seconds to wait for SQLite's locks, which are normally held for milliseconds
_WAL_BYTES = 64 << 20   # after a checkpoint, a longer log is truncated to this

_CACHE_KIB = 64 << 10   # string ids arrive in no order, so their B-tree is written at random positions


class Database:
    """One connection to the file; :meth:`reading` and :meth:`writing` are its transactions."""

    def __init__(self, path: Path, mode: Literal["ro", "rw", "rwc"]) -> None:
        self.path = path
        self._commits = 0
        options = f"mode={mode}"
        if mode == "ro" and not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
            options = "immutable=1"   # a read-only folder has no writer, and SQLite needs no shared memory
        with self.errors():
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?{options}",
                uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False,
            )  # fmt: skip
            self._connection.create_function("compare_exactly", 4, compare_exactly, deterministic=True)
            if mode != "ro":
                try:
                    self._prepare()
                except BaseException:
                    self._connection.close()
                    raise

    def _prepare(self) -> None:
        self.execute("PRAGMA auto_vacuum = INCREMENTAL")   # takes effect only in a new file
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = FULL")
        self.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        self.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(sql, parameters)

    def executemany(self, sql: str, rows: Any) -> None:
        """Run one statement per entry of ``rows``."""
        self._connection.executemany(sql, rows)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction in which all reads see one commit."""
        with self.errors(), self._transaction("BEGIN"):
            yield

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that is durable after the block, and rolled back if the block raises."""
        self._commits += 1   # before the commit, so that an interrupt cannot separate the two
        with self.errors(), self._transaction("BEGIN IMMEDIATE"):
            yield

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes with each commit of any process."""
        with self.errors():
            return int(self.execute("PRAGMA data_version").fetchone()[0]), self._commits

    def close(self) -> None:
        """Close the connection; the last connection moves the log into the file."""
        with self.errors():
            self._connection.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")   # an interrupt fell into the line before `try`, or into a rollback
        try:
            self.execute(begin)
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn an error of SQLite in this block into one that names the file and the cure."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise   # a bug of ours, not a problem of the disk
        except sqlite3.DatabaseError as error:
            name = getattr(error, "sqlite_errorname", None) or ""
            for start, cure in _CURES.items():
                if name.startswith(start):
                    raise StorageError(f"cannot use {self.path}", got=error, cure=cure) from error
            raise IndexFolderError.damaged(self.path, error) from error


_CURES = {
    "SQLITE_FULL": "free some space and try again; all committed data is intact",
    "SQLITE_IOERR": "check the disk; all committed data is intact",
    "SQLITE_BUSY": "another program locks the file: end it and try again",
    "SQLITE_READONLY": "choose a folder you may write to, or open the index for reading",
    "SQLITE_CANTOPEN": "choose a folder you may read and write",
    "SQLITE_PERM": "choose a folder you may read and write",
}
