"""Opening an index folder: any number of readers, and a writer that no other can join."""

from __future__ import annotations

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

__all__ = ["Opened", "open_reader", "open_writer"]


@dataclass(frozen=True)
class Opened:
    """What a store works with; ``lock`` is the handle that keeps other writers out, None for a reader."""

    path: Path
    about: About
    database: Database
    lock: int | None


def open_reader(path: Path) -> Opened:
    """Open the index at ``path`` for reading, which needs no lock."""
    _check_there(path)
    database = Database(path / DATABASE, "ro")
    try:
        return Opened(path, _about(database), database, None)
    except BaseException:
        database.close()
        raise


def open_writer(path: Path, new: About | None = None) -> Opened:
    """Open the index at ``path`` as its only writer, or create it there as ``new``."""
    if new is None:
        _check_there(path)
    else:
        with storage(path):
            path.mkdir(parents=True, exist_ok=True)
    handle, database = _lock(path), None
    try:
        if new is not None:
            _check_free(path)
        database = Database(path / DATABASE, "rw" if new is None else "rwc")
        if new is not None:
            _lay_out(database, new)
        about = _about(database)
        with database.errors():
            sweep(path, records.read_segments(database))
        return Opened(path, about, database, handle)
    except BaseException:
        if database is not None:
            database.close()
        os.close(handle)
        raise


def _about(database: Database) -> About:
    with database.reading():
        return records.read_about(database)


def _lay_out(database: Database, about: About) -> None:
    with database.writing():
        if records.exists(database):
            raise IndexFolderError(
                f"{database.path.parent} holds an index, which is kept", cure="open it, or choose another folder"
            )
        records.create(database, about)
    sync_folder(database.path.parent)
    sync_folder(database.path.parent.resolve().parent)


def _check_there(path: Path) -> None:
    if not (path / DATABASE).is_file():
        raise IndexFolderError(f"an index must have a file {DATABASE}", got=path, cure="check the path, or create it")


def _check_free(path: Path) -> None:
    ours = {DATABASE + end for end in ("", "-wal", "-shm")}   # a creation that was killed leaves these
    strange = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    if strange and not (path / DATABASE).exists():
        found = ", ".join(strange[:4])
        raise IndexFolderError(f"{path} must be free for an index", got=found, cure="choose another folder")


def _lock(path: Path) -> int:
    with storage(path):
        try:
            return lock(path)
        except StorageError as error:
            raise StorageError(
                "an index has one writer at a time", got=path, cure="close the other, or open it for reading"
            ) from error
