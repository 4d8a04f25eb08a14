"""A session with an open index: transactions, snapshots, and its end by closing, a fork or a moved folder."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING

from matryo.errors import InputError, MatryoError
from matryo.files import storage
from matryo.retrieve.store import forks
from matryo.retrieve.store.snapshot import Loaded, Snapshot, load
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self, TypeVar

    from matryo.retrieve.store.opening import Opened
    from matryo.retrieve.store.sql.database import Version
    from matryo.retrieve.store.sql.records import State

    Result = TypeVar("Result")


class Session:
    """An open index in this process. Threads may share it; each call is atomic."""

    def __init__(self, opened: Opened) -> None:
        self.path, self.given, self.about = opened.folder.path, opened.folder.given, opened.about
        self._opened, self._database = opened, opened.database
        self._forked_from: int | None = None   # the process of a writer, in a child that inherited it
        self._loaded = Loaded()
        self._latest: tuple[Version, Snapshot] | None = None
        self._guard = threading.RLock()   # held in every transaction
        # Also closes a store that is garbage-collected: its lock would exclude writers until the process ends.
        self._closing = weakref.finalize(self, opened.close)
        forks.watch(self)

    def snapshot(self) -> Snapshot:
        """The current rows; later writes do not change the snapshot."""
        with self._guard:
            self._check_open()
            if self._latest is not None:   # every search calls this, and usually nothing has changed
                version, known = self._database.version, self._latest
                if known[0] == version:
                    return known[1]
                followed = self._loaded.follow(known[1], known[0], version)
                if followed is not None:
                    self._latest = version, followed
                    return followed
            return self._read(lambda snapshot: snapshot)

    @property
    def is_current(self) -> bool:
        """Whether a snapshot can be returned at once: no commit since the last one, and no transaction now."""
        if not self._guard.acquire(blocking=False):
            return False
        try:
            return not self.closed and self._latest is not None and self._latest[0] == self._database.version
        finally:
            self._guard.release()

    def close(self) -> None:
        """Close the files; snapshots in use stay valid."""
        with self._guard:
            self._closing()
            self._latest = None   # unmap the files that no snapshot uses
            self._loaded = Loaded()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, work: Callable[[Snapshot], Result]) -> Result:
        """Run ``work`` on the snapshot of one transaction; retry if a segment was compacted away meanwhile."""
        names: list[str] = []

        def look() -> Result:
            names[:] = self._names()
            return work(self._snapshot())

        with self._guard:
            while True:
                try:
                    return self._read_records(look)
                except (MatryoError, OSError):
                    if names == self._read_records(self._names):
                        raise

    def _read_records(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` in one transaction."""
        with self._guard:
            self._check_open()
            try:
                with storage(self.path, "read"):
                    return self._database.read(work)
            except (MatryoError, OSError):
                self._opened.folder.check()   # what seems to be missing may be in another place
                raise

    def _snapshot(self) -> Snapshot:
        version = self._database.version
        if self._latest is not None and self._latest[0][0] != version[0]:
            self._loaded = Loaded()   # read by another connection, perhaps while the files changed
        if self._latest is None or self._latest[0] != version:
            self._latest = version, load(self.path, self.about, self._database, self._loaded)
        return self._latest[1]

    def _names(self) -> list[str]:
        return [record.name for record in records.read_segments(self._database)]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        with self._guard:
            self._check_open()
            if not self._opened.writable:
                raise InputError("this index is open for reading", got=self.path, cure="open it with writable=True")
            self._opened.folder.check()
            with self._database.errors(), storage(self.path, "change"):
                yield records.read_state(self._database)

    @contextlib.contextmanager
    def _committing(self) -> Iterator[None]:
        """One commit, refused if the folder was moved or replaced: its new segments would be in another place."""
        with self._database.writing():
            yield
            self._opened.folder.check()

    @contextlib.contextmanager
    def _tidying(self, left: str = "old segments remain for now") -> Iterator[None]:
        """Work after a commit. A failure is only a warning: the call has succeeded, and the next one tries again."""
        try:
            with self._database.errors():
                yield
        except (MatryoError, OSError) as error:
            warnings.warn(f"the change is committed, but {left}: {error}", stacklevel=5)

    @property
    def closed(self) -> bool:
        """Whether the store has been closed."""
        return not self._closing.alive

    def _check_open(self) -> None:
        if self.closed:
            raise InputError("this index is closed", got=self.path, cure="open it again")
        if self._forked_from is not None:
            raise InputError(
                "this index was opened for writing by the parent process",
                got=f"process {os.getpid()}, a child of {self._forked_from}",
                cure="open it again in this process, for reading",
            )

    def _after_fork(self) -> None:
        """Let go of what this process, a child, inherited; called with the guard held."""
        self._opened.after_fork()
        if self._opened.writable and not self.closed:
            self._forked_from = os.getppid()
