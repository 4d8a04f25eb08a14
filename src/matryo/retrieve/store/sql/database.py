"""The SQLite file of a store: atomic transactions, and errors that name the file and the cure.

SQLite runs in WAL mode with full syncs. A commit that returned survives a kill and a power cut. Readers see the last
commit and never wait for the writer. The write-ahead log has checksums of SQLite's own: damage ends the log at that
point, as a torn write does, and the commits before it remain.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Literal

from matryo.errors import IndexFolderError, MatryoError, StorageError
from matryo.files import storage
from matryo.retrieve.store.sql.log_header import map_log_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeVar

    Result = TypeVar("Result")

Version = tuple[int, "int | bytes", int]
_Files = list[tuple[int, int, int] | None]
DATABASE = "index.sqlite"
_PATIENCE = 30.0   # seconds to wait for SQLite's locks, which are normally held for milliseconds
_WAL_BYTES = 64 << 20   # after a checkpoint, a longer log is truncated to this

_CLOCK_TICK = 20_000_000   # nanoseconds; more than the resolution of modification times
_CACHE_KIB = 64 << 10   # string ids arrive in no order, so their B-tree is written at random positions


class Database:
    """One connection to the file; :meth:`read` and :meth:`writing` are its transactions.

    A reader that SQLite gives no shared memory, because it may not write or the disk is full, connects without locks.
    That is sound as long as no file changes, so its reads are repeated on a new connection when one did.
    """

    def __init__(self, path: Path, mode: Literal["ro", "rw", "rwc"]) -> None:
        self.path, self._mode = path.absolute(), mode
        self._commits = self._connects = 0
        self._connection: sqlite3.Connection | None = None
        self._unlocked: _Files | None = None   # the state of the files, for a connection without locks
        self._log: memoryview | None = None   # the header of the log's index, for a reader
        self._seen = b""   # these bytes, before the current transaction began
        with self.errors():
            self._connect()

    def _connect(self) -> None:
        self._connects += 1
        self._unlocked = self._log = None
        if self._mode != "ro":
            self._connection = self._opened(f"mode={self._mode}", self._prepare)
            return
        try:
            self._connection = self._opened("mode=ro", _touch)
            self._log = map_log_header(self._file("-shm"))
        except sqlite3.OperationalError as error:
            if not _name(error).startswith(_NO_SHARED_MEMORY):
                raise
            self._unlocked = self._settled_files()
            options = "immutable=1" if self._unlocked[1] is None else "mode=ro&vfs=unix-none"
            # An exclusive lock keeps the index of the log in the memory of this process; this VFS takes no real lock.
            self._connection = self._opened(options, _alone)

    def _opened(self, options: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?{options}",
            uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._mode == "rwc":
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")   # of a new file; in others this writes to the log
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")

    @property
    def connected(self) -> bool:
        """Whether the connection is open: neither closed, nor lost in a fork."""
        return self._connection is not None

    def _files(self) -> _Files:
        """Inode, size and modification time of each file of the database."""
        return [_state(self._file(end)) for end in ("", "-wal", "-shm")]

    def _settled_files(self) -> _Files:
        """These states, so old that any later change shows: times have a resolution of milliseconds."""
        end = time.monotonic() + _PATIENCE
        while True:
            states = self._files()
            newest = max((state[2] for state in states if state), default=0)
            if not 0 <= time.time_ns() - newest < _CLOCK_TICK:
                return states
            self._check_patience(end)
            time.sleep(_CLOCK_TICK / 1e9)

    def _check_patience(self, end: float) -> None:
        if time.monotonic() > end:
            raise StorageError(
                f"{self.path} changes faster than it can be read without locks",
                cure="read it as a user who may write to the folder",
            )

    def _changed(self) -> bool:
        return self._unlocked is not None and self._unlocked != self._files()

    def _file(self, end: str) -> Path:
        return self.path.with_name(self.path.name + end)

    def _refresh(self) -> None:
        """Connect again after a fork, or if a connection without locks has become old."""
        if self._connection is None or (not self._connection.in_transaction and self._changed()):
            self.close()
            self._connect()

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Run one statement."""
        assert self._connection is not None   # transactions connect
        return self._connection.execute(sql, parameters)

    def executemany(self, sql: str, rows: Any) -> None:
        """Run one statement per entry of ``rows``."""
        assert self._connection is not None
        self._connection.executemany(sql, rows)

    def read(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` in a transaction in which all reads see one commit. It may run several times."""
        end = time.monotonic() + _PATIENCE
        while True:
            with self.errors():
                self._refresh()
                if self._log is not None:
                    self._seen = self._log.tobytes()
                try:
                    with self._transaction("BEGIN"):
                        result = work()
                except (MatryoError, OSError, sqlite3.DatabaseError):
                    if not self._changed():
                        raise
                else:
                    if not self._changed():
                        return result
            self._check_patience(end)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that is durable after the block, and rolled back if the block raises."""
        self._commits += 1   # before the commit, so that an interrupt cannot separate the two
        with self.errors(), self._transaction("BEGIN IMMEDIATE"):
            yield

    @property
    def version(self) -> Version:
        """A value that changes with each commit of any process; its first entry changes with each connection."""
        try:   # not inside errors(), which takes longer than the statement: every search asks for the version
            self._refresh()
            return self._connects, self._others(), self._commits
        except (sqlite3.Error, OSError):
            with self.errors():
                raise

    def _others(self) -> int | bytes:
        """A value that changes with each commit of other processes."""
        if self._mode != "ro":
            return 0   # the only writer, which counts its commits
        if self._log is None:
            return int(self.execute("PRAGMA data_version").fetchone()[0])
        assert self._connection is not None
        # A transaction may see an older commit than the log has now, but none older than when it began.
        return self._seen if self._connection.in_transaction else self._log.tobytes()

    def checkpoint(self) -> bool:
        """Move the log into the file; False if a reader still needs the old pages of the file."""
        with self.errors():
            busy, logged, moved = self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            return not busy and bool(logged == moved)

    def copy_to(self, path: Path) -> None:
        """Copy the commit that the current transaction reads to a new file."""
        assert self._connection is not None
        with self.errors(), contextlib.closing(sqlite3.connect(path)) as copy:
            self._connection.backup(copy)

    def close(self) -> None:
        """Close the connection; the last connection moves the log into the file. Another call does nothing.

        In a child process after a fork, this moves nothing: the parent is connected.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            with self.errors():
                connection.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        assert self._connection is not None
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
            name = _name(error)
            for start, cure in _CURES.items():
                if name.startswith(start):
                    if start == "SQLITE_CANTOPEN":
                        self._find_cause()
                    raise StorageError(f"cannot use {self.path}", got=error, cure=cure) from error
            raise IndexFolderError.damaged(self.path, error) from error

    def _find_cause(self) -> None:
        """SQLite does not say why it cannot open its files: open them as it does, all at once."""
        with contextlib.ExitStack() as files:
            for end in ("", "-wal", "-shm", ""):
                with storage(self._file(end), "read"), contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    files.enter_context(self._file(end).open("rb"))


def has_log(path: Path) -> bool:
    """Whether the database at ``path`` has a write-ahead log that is not empty."""
    state = _state(path.with_name(f"{path.name}-wal"))
    return state is not None and state[1] > 0


def _touch(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT 1 FROM sqlite_schema").fetchone()   # connecting opens no file before the first read


def _alone(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    _touch(connection)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


_NO_SHARED_MEMORY = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR_SHM", "SQLITE_FULL")
_CURES = {
    "SQLITE_FULL": "free some space and try again; all committed data is intact",
    "SQLITE_IOERR": "check the disk; all committed data is intact",
    "SQLITE_BUSY": "another program locks the file: end it and try again",
    "SQLITE_READONLY": "choose a folder you may write to, or open the index for reading",
    "SQLITE_CANTOPEN": "choose a folder you may read and write",
    "SQLITE_PERM": "choose a folder you may read and write",
}
