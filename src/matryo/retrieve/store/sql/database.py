"""The SQLite file of a store: transactions that happen or do not, and errors that name the file and the cure.

SQLite runs in WAL mode with full syncs. A commit that returned survives a kill and a power cut; readers see
the last commit and never wait for the writer. What is in the log but not yet in the file has SQLite's own
checksums: damage there ends the log, as a torn write does, and the commits before it stand.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Literal

from matryo.errors import StorageError
from matryo.retrieve.store.damage import damaged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["DATABASE", "Database"]

DATABASE = "index.sqlite"
_PATIENCE = 30.0   # seconds; SQLite's own locks are held for moments only
_WAL_BYTES = 64 << 20   # a longer log is cut back to this once its pages are in the file

_CACHE_KIB = 64 << 10   # ids that are strings come in no order, so their index is written all over


class Database:
    """One connection to the file; :meth:`reading` and :meth:`writing` are its transactions."""

    def __init__(self, path: Path, mode: Literal["ro", "rw", "rwc"]) -> None:
        self.path = path
        self._commits = 0
        options = f"mode={mode}"
        if mode == "ro" and not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
            options = "immutable=1"   # a disk that takes no writes has no writer, and SQLite needs no shared memory
        with self.errors():
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?{options}",
                uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False,
            )  # fmt: skip
            if mode != "ro":
                try:
                    self._prepare()
                except BaseException:
                    self._connection.close()
                    raise

    def _prepare(self) -> None:
        self.execute("PRAGMA auto_vacuum = INCREMENTAL")   # only has a say in a new file
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = FULL")
        self.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        self.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(sql, parameters)

    def executemany(self, sql: str, rows: Any) -> None:
        """Run one statement for each of ``rows``."""
        self._connection.executemany(sql, rows)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction in which every read sees one and the same commit."""
        with self.errors(), self._transaction("BEGIN"):
            yield

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that is durable when the block ends well, and never was when it does not."""
        self._commits += 1   # beforehand: nothing must come between a commit and this
        with self.errors(), self._transaction("BEGIN IMMEDIATE"):
            yield

    @property
    def version(self) -> tuple[int, int]:
        """Another one after each commit, whoever made it."""
        with self.errors():
            return int(self.execute("PRAGMA data_version").fetchone()[0]), self._commits

    def close(self) -> None:
        """Close the connection; the last one moves what is in the log into the file."""
        with self.errors():
            self._connection.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self.execute(begin)
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what SQLite says in this block into an error that names the file and the cure."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise   # a mistake of ours, not of the disk
        except sqlite3.DatabaseError as error:
            name = getattr(error, "sqlite_errorname", None) or ""
            for start, cure in _CURES.items():
                if name.startswith(start):
                    raise StorageError(f"cannot use {self.path}", got=error, cure=cure) from error
            raise damaged(self.path, error) from error


_CURES = {
    "SQLITE_FULL": "free some space and try again; what was acknowledged is intact",
    "SQLITE_IOERR": "check the disk; what was acknowledged is intact",
    "SQLITE_BUSY": "another program holds the file for long: end it and try again",
    "SQLITE_READONLY": "choose a folder you may write to, or open the index for reading",
    "SQLITE_CANTOPEN": "choose a folder you may read and write",
    "SQLITE_PERM": "choose a folder you may read and write",
}
