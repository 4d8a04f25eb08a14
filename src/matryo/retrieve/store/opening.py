"""Open an index folder: any number of readers, at most one writer.

While a writer has the index open, the file says so. A file that says so without its write-ahead log has lost the
commits in the log, so that it is not opened. Every commit that names new segments is moved from the log into the file
before old segments are removed: the file alone is always a whole, if older, index.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.errors import IndexFolderError, MatryoError
from matryo.files import resolve, storage, sync_folder
from matryo.retrieve.store import forks
from matryo.retrieve.store.folder import Folder
from matryo.retrieve.store.guides import GUIDES, sweep_guides
from matryo.retrieve.store.merging.scratch import sweep_scratch
from matryo.retrieve.store.segments.segment import SEGMENTS, set_aside, sweep
from matryo.retrieve.store.sql import origin, records
from matryo.retrieve.store.sql.database import DATABASE, Database, has_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from matryo.retrieve.store.about import About

_DATABASE_FILES = tuple(DATABASE + end for end in ("", "-journal", "-wal", "-shm"))
_LOST_LOG = (
    "restore {log} from the same copy; if it is gone, Index.recover({folder!r}) opens the index without these changes"
)


@dataclass(frozen=True)
class Opened:
    """An open index; a writer has its folder for itself."""

    folder: Folder
    about: About
    database: Database
    writable: bool

    def close(self) -> None:
        """Close the files; another call does nothing."""
        try:
            with contextlib.suppress(MatryoError):   # the next writer finds the log, and reads on from there
                if self.writable and self.database.connected:
                    self.folder.check()
                    with self.database.writing():
                        records.mark_open(self.database, False)
                    self.database.checkpoint()
            self.database.close()
        finally:
            self.folder.close()

    def after_fork(self) -> None:
        """Let go of what a child process inherited; a reader connects again when it is used."""
        self.database.close()
        if self.writable:
            self.folder.leave()


def index_exists(path: Path) -> bool:
    """Whether ``path`` holds an index, and not only the files of a creation that was killed."""
    with storage(path, "read"):
        root = Path(os.path.realpath(path))
    if not _is_laid_out(root):
        return False
    with forks.no_fork, contextlib.closing(Database(root / DATABASE, "ro")) as database:
        return database.read(lambda: records.exists(database))


def open_reader(path: Path) -> Opened:
    """Open the index at ``path`` for reading; this takes no lock."""
    _check_there(path)
    with contextlib.ExitStack() as undo:
        folder = undo.enter_context(contextlib.closing(Folder(path, exclusive=False)))
        database = undo.enter_context(contextlib.closing(Database(folder.path / DATABASE, "ro")))
        opened = Opened(folder, _about(database), database, writable=False)
        undo.pop_all()
    return opened


def open_writer(path: Path, *, recover: bool = False) -> Opened:
    """Open the index at ``path`` as its only writer; ``recover`` accepts that the write-ahead log is lost.

    Segments that nothing names are removed, or set aside by ``recover``: commits in the lost log may have named them.
    """
    _check_there(path)
    with contextlib.ExitStack() as undo:
        folder = undo.enter_context(contextlib.closing(Folder(path, exclusive=True)))
        database = undo.enter_context(contextlib.closing(Database(folder.path / DATABASE, "rw")))
        opened = Opened(folder, _about(database, may_lack_log=recover), database, writable=True)
        with database.errors():
            (set_aside if recover else sweep)(folder.path, records.read_segments(database))
            if not recover:
                sweep_guides(folder.path, records.read_guides(database))
            sweep_scratch(folder.path)
        _mark_open(database)
        undo.pop_all()
    return opened


def create(
    path: Path, about: About, model: str | Mapping[str, Any] = "", also: Callable[[Database], None] | None = None
) -> Opened:
    """Create an empty index at ``path``, a new or empty folder, and open it as its only writer.

    ``also`` writes more in the transaction that makes the tables.
    """
    root = resolve(path)
    with contextlib.ExitStack() as undo:
        undo.enter_context(_new_folder(root))
        folder = undo.enter_context(contextlib.closing(Folder(path, exclusive=True)))
        _check_free(root)
        undo.callback(_remove_database, root)
        database = undo.enter_context(contextlib.closing(Database(root / DATABASE, "rwc")))
        with database.writing():
            records.create(database, about)
            if model:
                origin.write_model(database, model)
            if also is not None:
                also(database)
        _mark_open(database)
        sync_folder(root)
        sync_folder(root.parent)
        undo.pop_all()
    return Opened(folder, about, database, writable=True)


def _mark_open(database: Database) -> None:
    with database.writing():
        records.mark_open(database, True)
    database.checkpoint()


def _about(database: Database, *, may_lack_log: bool = False) -> About:
    def read() -> tuple[About, bool]:
        # The log of an open index is never empty, and a closed one needs none.
        return records.read_about(database), records.is_marked_open(database) and not has_log(database.path)

    about, lacks_log = database.read(read)
    if lacks_log and not may_lack_log:
        log = f"{database.path.name}-wal"
        raise IndexFolderError(
            f"the latest changes of this index are in {log}, which is missing",
            got=database.path.parent,
            cure=_LOST_LOG.format(log=log, folder=str(database.path.parent)),
        )
    return about


def _is_laid_out(path: Path) -> bool:
    # The rollback journal exists only until a new file is in WAL mode. After a kill a reader cannot roll it back.
    with storage(path, "read"):
        return (path / DATABASE).is_file() and not (path / f"{DATABASE}-journal").exists()


def _check_there(path: Path) -> None:
    if not _is_laid_out(path):
        cure = "check the path, or create one: matryo index FOLDER SOURCE"
        raise IndexFolderError("there is no index in this folder", got=path, cure=cure)


@contextlib.contextmanager
def _new_folder(path: Path) -> Iterator[None]:
    """Make the folder and its parents; those that are new are removed again if the block raises and they are empty."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    with storage(path):
        path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise


def _remove_database(path: Path) -> None:
    for name in _DATABASE_FILES:
        with contextlib.suppress(OSError):
            (path / name).unlink()


def _check_free(path: Path) -> None:
    """Raise if there is an index, or any file but those of a creation that was killed."""
    if index_exists(path):
        raise IndexFolderError(f"{path} already holds an index", cure="use Index.open, or choose another folder")
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _DATABASE_FILES)
    if {SEGMENTS, GUIDES} & {*foreign}:
        raise IndexFolderError(
            f"{path} holds the vectors of an index whose {DATABASE} is missing or empty",
            got=", ".join(foreign[:4]),
            cure=f"restore {DATABASE} and {DATABASE}-wal from the same copy, or choose another folder",
        )
    if foreign:
        listed = ", ".join(foreign[:4])
        raise IndexFolderError(f"{path} must be empty for a new index", got=listed, cure="choose another folder")
