"""Open an index folder: any number of readers, at most one writer."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matryo.errors import IndexFolderError, StorageError
from matryo.files import lock, storage, sync_folder
from matryo.retrieve.store.about import About
from matryo.retrieve.store.segments.segment import sweep
from matryo.retrieve.store.sql import records
from matryo.retrieve.store.sql.database import DATABASE, Database

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Opened:
    """An open folder; ``lock`` is the handle that excludes other writers, None for a reader."""

    path: Path
    about: About
    database: Database
    lock: int | None


def index_exists(path: Path) -> bool:
    """Whether ``path`` holds an index, and not only the files of a creation that was killed."""
    if not _is_laid_out(path):
        return False
    with contextlib.closing(Database(path / DATABASE, "ro")) as database, database.reading():
        return records.exists(database)


def open_reader(path: Path) -> Opened:
    """Open the index at ``path`` for reading; this takes no lock."""
    _check_there(path)
    with contextlib.ExitStack() as undo:
        database = undo.enter_context(contextlib.closing(Database(path / DATABASE, "ro")))
        opened = Opened(path, _about(database), database, None)
        undo.pop_all()
    return opened


def open_writer(path: Path, new: About | None = None) -> Opened:
    """Open the index at ``path`` as its only writer, or create it with the settings ``new``."""
    if new is None:
        _check_there(path)
    else:
        with storage(path):
            path.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo:
        handle = _lock(path)
        undo.callback(os.close, handle)
        if new is not None:
            _check_free(path)
        database = undo.enter_context(contextlib.closing(Database(path / DATABASE, "rw" if new is None else "rwc")))
        if new is not None:
            _lay_out(database, new)
        opened = Opened(path, _about(database), database, handle)
        with database.errors():
            sweep(path, records.read_segments(database))
        undo.pop_all()
    return opened


def _about(database: Database) -> About:
    with database.reading():
        return records.read_about(database)


def _lay_out(database: Database, about: About) -> None:
    with database.writing():
        if records.exists(database):
            raise IndexFolderError(
                f"{database.path.parent} already holds an index", cure="use Index.open, or choose another folder"
            )
        records.create(database, about)
    sync_folder(database.path.parent)
    sync_folder(database.path.parent.resolve().parent)


def _is_laid_out(path: Path) -> bool:
    # The rollback journal exists only until a new file is in WAL mode. After a kill a reader cannot roll it back.
    return (path / DATABASE).is_file() and not (path / f"{DATABASE}-journal").exists()


def _check_there(path: Path) -> None:
    if not _is_laid_out(path):
        cure = "check the path, or create one: matryo index FOLDER SOURCE"
        raise IndexFolderError("there is no index in this folder", got=path, cure=cure)


def _check_free(path: Path) -> None:
    ours = {DATABASE + end for end in ("", "-journal", "-wal", "-shm")}   # left by a creation that was killed
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    if foreign and not (path / DATABASE).exists():
        listed = ", ".join(foreign[:4])
        raise IndexFolderError(f"{path} must be empty for a new index", got=listed, cure="choose another folder")


def _lock(path: Path) -> int:
    with storage(path):
        try:
            return lock(path)
        except StorageError as error:
            raise StorageError(
                "an index has one writer at a time", got=path, cure="close the other, or open it for reading"
            ) from error
