"""Folders that are replaced in one step: a reader or a kill, at any moment, meets the old folder or the new one.

A folder for ``path`` is written to ``.NAME.<8 hex digits>.tmp/new`` beside it and then exchanged with the one at
``path``. The writer holds a lock on the work folder, so a work folder whose lock is free belongs to a writer that was
killed; the next write to ``path`` deletes it. Systems that cannot exchange two folders need two renames: the old folder
goes to ``old`` in the work folder first, and :func:`restore` brings it back after a kill between the two.

A folder with a record (:func:`write_record`) lists its files, so that :func:`foreign` finds those of other programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from matryo.errors import InputError, StorageError
from matryo.files import json_digest, lock, parse_json, resolve, sha256, storage, sync_folder, write_json

RECORD = "matryo.json"
_NEW, _OLD = "new", "old"   # the only names in a work folder
_AT_FDCWD, _EXCHANGE = -100, 2   # of renameat2 on Linux; renamex_np of macOS has the same 2


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Create a folder that replaces ``path``, if the block succeeds, in one step that survives a power cut.

    On any error ``path`` is unchanged and the new folder is deleted. The caller checks that the folder at ``path`` may
    be deleted: before the work, and again at the end of the block.
    """
    with storage(path), _working(path := resolve(path)) as work:   # "." and links cannot be renamed
        new = work / _NEW
        new.mkdir()
        yield new
        _swap(new, path, work)


def swap_in(new: Path, path: Path) -> None:
    """Rename the folder ``new``, which lies beside ``path``, to ``path``; an older folder there is deleted."""
    path = resolve(path)
    with _working(path) as work:
        _swap(new, path, work)
        with contextlib.suppress(OSError):   # absent, unless an older folder was exchanged with it
            new.rename(work / _NEW)


def restore(path: Path) -> None:
    """Bring the folder ``path`` back if a writer was killed between two renames. Call this before a look at it."""
    path = Path(path)
    if path.exists() or not path.name:
        return
    for work in _work_folders(path):
        import fcntl  # not available on every system

        with contextlib.suppress(OSError):   # a reader may not be allowed to rename
            if (work / _OLD).is_dir():
                handle = os.open(work, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX)   # waits for a writer that is alive: it is about to finish
                    _settle(work, path)
                finally:
                    os.close(handle)


def write_record(folder: Path, kind: str) -> None:
    """Write the size and the checksum of every file in ``folder``, which is of this ``kind``, to a file in it."""
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    record = {"kind": kind, "files": files}
    write_json(folder / RECORD, {**record, "sha256": json_digest(record)})


def foreign(folder: Path, kind: str) -> list[str]:
    """Return what is in ``folder`` besides the files of its record, unchanged. Hidden files and links count.

    Empty folders do not: some libraries write them. Without a sound record of this ``kind``, all of it is foreign.
    """
    try:
        record = parse_json((folder / RECORD).read_bytes())
        digest, files = record.pop("sha256"), record["files"]
        if digest != json_digest(record):
            return [f"a damaged {RECORD}"]
        if record["kind"] != kind:
            return [f"a {RECORD} of kind {record['kind']}"]
        strange = []
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name == RECORD or (path.is_dir() and not path.is_symlink()):
                continue
            if path.is_symlink() or name not in files:
                strange.append(name)
            elif path.stat().st_size != files[name]["size"] or sha256(path) != files[name]["sha256"]:
                strange.append(f"a changed {name}")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return [f"no {RECORD}"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return [f"a damaged {RECORD}"]
    return strange


def verify_record(folder: Path) -> None:
    """Raise unless every file in the record of ``folder`` is there, with the bytes that were written."""
    try:
        record = parse_json((folder / RECORD).read_bytes())
        sound = record.pop("sha256") == json_digest(record)
        files = {folder / name: (file["size"], file["sha256"]) for name, file in record["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        sound, files = False, {}
    damaged = None if sound else folder / RECORD
    for path, (size, digest) in files.items():
        if damaged is None and not (path.is_file() and path.stat().st_size == size and sha256(path) == digest):
            damaged = path
    if damaged is not None:
        got = "other bytes than were written" if damaged.is_file() else "no such file"
        raise InputError(f"{damaged} is damaged", got=got, cure="restore it from a backup, or write the folder again")


@contextlib.contextmanager
def _working(path: Path) -> Iterator[Path]:
    """Create and lock a work folder for ``path``, and delete it afterwards; those of killed writers are deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for work in _work_folders(path):
        with contextlib.suppress(OSError):   # a lock that is taken: its writer is alive
            if {entry.name for entry in work.iterdir()} <= {_NEW, _OLD}:
                handle = lock(work)
                try:
                    _settle(work, path)
                finally:
                    os.close(handle)
    with contextlib.ExitStack() as stack:
        work = _claim(path, stack)
        stack.callback(_settle, work, path)
        yield work


def _work_folders(path: Path) -> list[Path]:
    names = path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp")
    return [work for work in names if work.is_dir() and not work.is_symlink()]


def _claim(path: Path, stack: contextlib.ExitStack) -> Path:
    """Create a work folder and lock it until the end of ``stack``."""
    while True:
        work = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        work.mkdir()
        try:
            stack.callback(os.close, lock(work))
        except (FileNotFoundError, StorageError):   # another writer deletes it, unlocked, as that of a killed one
            continue
        except BaseException:
            work.rmdir()
            raise
        if work.is_dir():
            return work


def _settle(work: Path, path: Path) -> None:
    """Delete a work folder. An old folder in it returns to ``path`` if no new one has taken its place.

    After a disk error the rest is left to the next write: by now ``path`` is what it is to be.
    """
    with contextlib.suppress(OSError):
        if (work / _OLD).is_dir() and not path.exists():
            (work / _OLD).rename(path)
        shutil.rmtree(work, ignore_errors=True)


def _swap(new: Path, path: Path, work: Path) -> None:
    for entry in (*new.rglob("*"), new):   # other libraries do not flush: a power cut could leave empty files
        sync_folder(entry)
    exchanged = False
    try:
        new.rename(path)   # in the place of nothing, or of an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        exchanged = _exchange(new, path)
        if not exchanged:
            path.rename(work / _OLD)
            new.rename(path)   # should this fail, _settle brings the old folder back
    try:
        sync_folder(path.parent)
    except BaseException:   # a call that raises has changed nothing
        _exchange(new, path) if exchanged else path.rename(new)
        raise


def _exchange(new: Path, path: Path) -> bool:
    """Exchange two folders in one step; return False where the system or the file system cannot."""
    libc, names = ctypes.CDLL(None, use_errno=True), (os.fsencode(new), os.fsencode(path))
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, _EXCHANGE)
    else:
        return False
    if failed and ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return not failed
