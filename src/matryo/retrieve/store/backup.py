"""Backups: a consistent copy of an index, made while it is used."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import IndexFolderError
from matryo.files import new_file, resolve, sync_folder
from matryo.folders import replacing_folder
from matryo.retrieve.store.guides import guide_folder
from matryo.retrieve.store.segments.segment import segment_folder
from matryo.retrieve.store.sql import records
from matryo.retrieve.store.sql.database import DATABASE, Database
from matryo.retrieve.store.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_new(path: str | Path) -> None:
    """Raise if there is anything at ``path``."""
    if os.path.lexists(Path(path)):   # "" is the working directory
        raise IndexFolderError("a backup needs a new folder", got=path, cure="choose a path that does not exist")


@contextlib.contextmanager
def new_backup(path: str | Path, index: Path) -> Iterator[Path]:
    """A working folder that becomes ``path`` when the block succeeds, and is removed otherwise."""
    check_new(path)
    if index in resolve(path).parents:
        raise IndexFolderError("a backup must not be inside its index", got=path, cure="choose a path elsewhere")
    with replacing_folder(Path(path)) as work:
        yield work
        check_new(path)   # again, because copying takes a while


def copy_index(root: Path, database: Database, work: Path) -> None:
    """Copy the commit that the current transaction reads to ``work``, and verify every byte of the copy.

    If an earlier attempt was interrupted by a compaction, its copies of segments that still count are used again.
    """
    for old in work.glob(f"{DATABASE}*"):
        old.unlink()
    database.copy_to(work / DATABASE)
    segments, guides = records.read_segments(database), records.read_guides(database)
    wanted = [segment_folder(root, record.name) for record in segments]
    wanted += [guide_folder(root, record.name) for record in guides]
    folders = [work / folder.relative_to(root) for folder in wanted]
    for old in work.glob("*/*"):
        if old not in folders:
            shutil.rmtree(old)
    for source, target in zip(wanted, folders, strict=True):
        if not target.exists():
            _copy_folder(source, target)
    _settle(work)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder durably; it appears whole."""
    work = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(work, ignore_errors=True)
    for folder, _, files in os.walk(source, onerror=_raise):
        here = work / Path(folder).relative_to(source)
        here.mkdir(parents=True)
        for name in files:
            with (Path(folder) / name).open("rb") as read, new_file(here / name) as written:
                shutil.copyfileobj(read, written, 1 << 20)
        sync_folder(here)
    work.rename(target)
    sync_folder(target.parent)


def _raise(error: OSError) -> None:
    raise error


def _settle(work: Path) -> None:
    """Mark the copy as closed, and verify it."""
    with contextlib.closing(Database(work / DATABASE, "rw")) as copy:
        with copy.writing():
            records.mark_open(copy, False)
        copy.read(lambda: verify(work, copy, records.read_about(copy)))
    sync_folder(work)
