"""The folder of an open index: resolved once, and recognised again although its path may lead elsewhere later."""

from __future__ import annotations

import os
from pathlib import Path

from matryo.errors import StorageError
from matryo.files import lock, storage, unlock


class Folder:
    """A folder that exists. ``exclusive`` makes this process its only writer until it is closed."""

    def __init__(self, path: str | Path, *, exclusive: bool) -> None:
        self.given, self._exclusive = Path(path), exclusive
        self.path = Path(os.path.realpath(path))   # the working directory may change
        with storage(self.path, "write" if exclusive else "read"):
            if exclusive:
                self._handle = self._lock()
            else:   # systems without handles of folders do not rename open ones either
                self._handle = os.open(self.path, _LOOK) if hasattr(os, "O_DIRECTORY") else -1

    def _lock(self) -> int:
        try:
            return lock(self.path)
        except StorageError as error:
            raise StorageError(
                "an index has one writer at a time", got=self.given, cure="close the other, or open it for reading"
            ) from error

    def check(self) -> None:
        """Raise if the path leads to another folder, or to none: files written there would be lost."""
        if self._handle < 0:
            return
        with storage(self.path, "read"):
            try:
                same = os.path.samestat(self.path.stat(), os.fstat(self._handle))
            except (FileNotFoundError, NotADirectoryError):
                same = False
        if not same:
            raise StorageError(
                "the folder was moved or replaced while the index was open",
                got=self.path,
                cure="open the index again where it is now; all committed data is there",
            )

    def close(self) -> None:
        """Give up the lock; another call does nothing."""
        if self._exclusive and self._handle >= 0:
            unlock(self._handle)   # closing is not enough while a child process still has the handle
        self.leave()

    def leave(self) -> None:
        """Close the handle in a child process; the lock stays with the parent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)   # O_PATH needs no permission to list it
