"""Atomic file writes, locks and checksums, the rule about overwriting, and disk errors with advice."""

from __future__ import annotations

import contextlib
import csv
import errno
import glob
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from matryo.errors import InputError, StorageError

__all__ = ["alone_with", "check_is_file", "check_may_write", "is_below", "is_plain_name", "json_digest", "lock",
           "new_file", "next_record", "parse_json", "remove_temporaries", "replacing", "resolve", "sha256", "storage",
           "sync_folder", "unlock", "write_json"]  # fmt: skip

_LONGEST_FIELD = 2**31 - 1   # characters


def check_may_write(path: Path, *, force: bool = False, is_ours: Callable[[Path], bool] | None = None) -> None:
    """Raise unless a command may write the file ``path``: the one rule about overwriting.

    A path that does not exist and an empty file are free. An existing file is replaced only if ``is_ours`` recognises
    its content as an earlier result of the same kind, or if the user passed ``--force``. A folder is never replaced
    by a file. Call this before the work that produces the file, so that nothing is lost by a late refusal.

    >>> check_may_write(Path(__file__))
    Traceback (most recent call last):
    ...
    matryo.errors.InputError: ...files.py exists: choose another name, or --force to overwrite
    """
    check_is_file(path)
    if force or not path.exists():
        return
    if path.stat().st_size > 0 and not (is_ours and is_ours(path)):
        raise InputError(f"{path} exists", cure="choose another name, or --force to overwrite")


def check_is_file(path: Path) -> None:
    """Raise if ``path`` is a folder or a device, which a file must not replace: root could replace /dev/null."""
    with storage(path):
        other = path.exists() and not path.is_file()
    if other:
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise InputError(f"{path} is {kind}", cure="choose the name of a file")


def resolve(path: str | Path, verb: str = "write") -> Path:
    """Return ``path`` as an absolute path without links. The path need not exist, but its links must not form a loop.

    `Path.resolve` raises a RuntimeError for a loop, or returns it, depending on the version of Python. A relative path
    in a working directory that was deleted is an error too.
    """
    with storage(path, verb):
        with contextlib.suppress(FileNotFoundError):
            Path(path).stat()
        return Path(os.path.realpath(path))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` when the block succeeds; the result survives a power cut.

    On any error the old file is unchanged and the new one is removed. Only files are replaced: a device such as
    /dev/null, a pipe or a folder is an error.
    """
    path = Path(path)
    check_is_file(path)
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for stray in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
            _remove_if_dead(stray)
        new, file = _new_temporary(path)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _new_temporary(path: Path) -> tuple[Path, BinaryIO]:
    """Create a temporary file for ``path``, locked until it is closed, so that other writers see that it is in use."""
    while True:
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        file = new.open("xb")
        if _try_lock(file) and new.exists():
            return new, file
        file.close()   # another writer removed it before it was locked


def _remove_if_dead(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        if temporary.is_file() and not temporary.is_symlink():
            with temporary.open("rb") as file:
                if _try_lock(file):   # its writer was killed
                    temporary.unlink()


def _try_lock(file: BinaryIO) -> bool:
    try:
        import fcntl
    except ImportError:   # a system without file locks
        return file.writable()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:   # a file system without locks
        return file.writable()
    return True


def remove_temporaries(folder: Path, names: Collection[str]) -> None:
    """Remove the temporary files that `replacing` left in ``folder``, for files of these ``names``, when it was killed.

    Call this only for a folder that is known to be ours and that no other process writes to.
    """
    for entry in folder.iterdir():
        name = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.tmp", entry.name)
        if name and name[1] in names and entry.is_file():
            entry.unlink()


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file that is durable after the block. Its folder must exist, and is not synced."""
    with storage(path), path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def storage(path: object, verb: str = "write") -> Iterator[None]:
    """Turn an OSError in this block into a StorageError with ``path`` and advice, where the cause is known."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        few_files = "raise the limit of open files (ulimit -n 65536), or close some; the files are intact"
        cures = {
            **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"choose a folder that you may {verb}"),
            **dict.fromkeys((errno.EMFILE, errno.ENFILE), few_files),
            errno.ENOMEM: "free some memory, or raise the limit of mappings (vm.max_map_count); the files are intact",
            errno.EIO: "check the disk; nothing else was changed",
            errno.ELOOP: "choose another path: the links of this one form a loop",
            errno.ENAMETOOLONG: "choose a shorter name",
            errno.ENOSPC: "free some space and run the same command again; earlier files are intact",
            errno.EFBIG: "raise the file-size limit and run the same command again; earlier files are intact",
            errno.EDQUOT: "free some quota and run the same command again; earlier files are intact",
            errno.EEXIST: "choose another name",
            errno.ENOENT: "create the parent folder, or choose another path" if verb == "write" else "check the path",
            errno.ENOTDIR: "choose another path: a part of this one is a file",
            errno.EISDIR: "choose the name of a file: this is a folder",
            errno.EBUSY: "choose a folder inside it: it is a mount point",
        }
        if error.errno not in cures:
            raise
        raise StorageError(f"cannot {verb} {path}", got=error.strerror, cure=cures[error.errno]) from error


def lock(folder: Path) -> int:
    """Lock ``folder`` against other writers until the returned handle is closed or this process ends."""
    import fcntl  # not available on every system; readers do not need it

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StorageError(
            "only one process at a time may write to a folder", got=folder, cure="wait for the other process to end"
        ) from error
    except BaseException:
        os.close(handle)
        raise
    return handle


def unlock(handle: int) -> None:
    """Release the lock of ``handle``, for child processes that inherited it too."""
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file ``path``; other callers wait. An empty file is created if there is none."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    try:
        import fcntl
    except ImportError:   # a system without file locks
        yield
        return
    with storage(path):
        while True:
            file = path.open("ab")
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):   # not replaced while this process waited
                    break
            file.close()
    with file:
        yield


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from outside; raises ValueError for every text that is not JSON, or too deep for Python.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, which does not depend on the order of keys or on white space.

    >>> json_digest({"a": 1, "b": (2, 3)}) == json_digest(json.loads('{"b": [2, 3], "a": 1}'))
    True
    """
    plain = json.loads(json.dumps(value))   # integer keys become strings before they are sorted
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def is_plain_name(name: str) -> bool:
    """Whether ``name``, read from a file, can be the name of one file or folder and leads nowhere else.

    >>> [is_plain_name(name) for name in ("demo", "my run.v2", "", "..", "../demo", "/demo", "a\\nb")]
    [True, True, False, False, False, False, False]
    """
    return (
        name not in ("", ".", "..")
        and not any(character in "/\\" or ord(character) < 32 or ord(character) == 127 for character in name)
        and len(name.encode(errors="surrogatepass")) <= 255
    )


def is_below(path: str) -> bool:
    """Whether ``path``, read from a file, stays below the folder that it is relative to. Links are not followed.

    >>> [is_below(path) for path in ("a/b.jpg", "a..b.jpg", "../b.jpg", "a/../../b.jpg", "/b.jpg")]
    [True, True, False, False, False]
    """
    return not path.startswith("/") and ".." not in path.split("/")


def next_record(reader: Iterator[list[str]]) -> list[str] | None:
    """Return the next record of a ``csv.reader``, whose fields may be long; None at the end.

    The limit of ``csv``, 131,072 characters per field, is too short for documents and lists of numbers. It is global,
    so it is restored after each record.
    """
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: a rename is not until its folder is synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
