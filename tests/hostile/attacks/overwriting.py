"""Overwrite a folder while the process is killed, or while a call of the system fails.

A kill comes at a random time, or right before a random call. A failure is a disk error or an interrupt at that call.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from attacks.outcome import Outcome, ended
from matryo import folders

_CALLS = {
    "open", "mkdir", "rename", "replace", "unlink", "rmdir", "stat", "lstat", "fstat", "listdir", "scandir", "fsync",
    "flock", "write", "read", "readinto", "seek", "truncate", "readlink",
}  # fmt: skip


def overwrite(
    count: int, seed: int, path: Path, write: Callable[[Path, int], Any], read: Callable[[Path], int]
) -> Outcome:
    """Kill ``count`` writers of ``path``, which ``write`` fills with a version; ``read`` returns it if it is whole.

    Half of the writers do without the exchange of two folders, as on a system that has none. After each kill the path
    must hold the old version or the new one, and after one more write there must be nothing beside it.
    """
    chance, outcome, version = random.Random(seed), Outcome(0), 0
    write(path, version)
    begin = time.monotonic()
    calls = _calls_of(write, path, version)
    seconds = time.monotonic() - begin
    cut = 0
    for attempt in range(count):
        exchange, at_call = bool(attempt & 1), attempt % 4 < 3
        last, wait = chance.randrange(calls), chance.random() * seconds
        child = os.fork()
        if child == 0:
            try:
                if not exchange:
                    folders._exchange = lambda *_: False
                if at_call:
                    sys.setprofile(_Saboteur(last))
                write(path, version + 1)
                os._exit(0)
            finally:
                os._exit(1)
        if not at_call:
            time.sleep(wait)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        cut += code == -signal.SIGKILL
        end = ended(read, path)
        allowed = (version + 1,) if code == 0 else (version, version + 1)
        problem = ""
        if code not in (0, -signal.SIGKILL):
            problem = f"the writer ended with {code}"
        elif end.kind != "returned" or end.value not in allowed:
            problem = f"found {end.value if end.kind == 'returned' else end.text}, not version {allowed}"
        version += 2
        again = ended(write, path, version)
        beside = sorted(entry.name for entry in path.parent.iterdir() if entry != path)
        if not problem and (again.kind != "returned" or beside or read(path) != version):
            problem = f"the next write left {beside or again.text or 'another version'}"
        if problem:
            outcome.failures.append(f"attempt {attempt}, seed {seed}, exchange {exchange}: {problem}")
            path = path.parent.with_name(f"{path.parent.name} after {attempt}") / path.name
            write(path, version)
        outcome.attempts += 1
    if cut < count // 3:
        outcome.failures.append(f"only {cut} of {count} writers were killed: nothing was proved")
    return outcome


def fail(
    count: int, seed: int, path: Path, write: Callable[[Path, int], Any], read: Callable[[Path], int]
) -> Outcome:
    """Make ``count`` writers of ``path`` fail: an error must have changed nothing, and say so in one line of ours."""
    chance, outcome, version = random.Random(seed), Outcome(0), 0
    write(path, version)
    calls, exchange = _calls_of(write, path, version), folders._exchange
    raised = 0
    for attempt in range(count):
        causes: list[BaseException] = [OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "Input/output error")]
        cause, last = chance.choice([*causes, KeyboardInterrupt()]), chance.randrange(calls)
        folders._exchange = exchange if attempt & 1 else lambda *_: False
        sys.setprofile(_Saboteur(last, cause))
        try:
            end = ended(write, path, version + 1)
        finally:
            sys.setprofile(None)
            folders._exchange = exchange
        raised += end.kind != "returned"
        expected = version + (end.kind == "returned")
        kept = ended(read, path)
        problem = ""
        if end.kind == "bare" and not end.text.startswith("KeyboardInterrupt"):
            problem = f"it ended with {end.text}"
        elif kept.value != expected and not (end.text.startswith("KeyboardInterrupt") and kept.value == version + 1):
            problem = f"found {kept.value} {kept.text}, not version {expected}, after {end.text}"
        version += 2
        write(path, version)
        beside = sorted(entry.name for entry in path.parent.iterdir() if entry != path)
        if problem or beside:
            problem = problem or f"the next write left {beside}"
            outcome.failures.append(f"attempt {attempt}, seed {seed}, call {last} of {calls}: {problem}")
        outcome.attempts += 1
    if raised < count // 3:
        outcome.failures.append(f"only {raised} of {count} writers failed: nothing was proved")
    return outcome


class _Saboteur:
    """A profiler that kills its process right before a call of the system, or raises, or only counts the calls."""

    def __init__(self, last: int | None = None, cause: BaseException | None = None) -> None:
        self.count, self.last, self.cause = 0, last, cause

    def __call__(self, _: Any, event: str, function: Any) -> None:
        if event != "c_call" or function.__name__ not in _CALLS or isinstance(function.__self__, (BytesIO, str)):
            return
        self.count += 1
        if self.count - 1 == self.last:
            if self.cause is not None:
                raise self.cause
            os.kill(os.getpid(), signal.SIGKILL)


def _calls_of(write: Callable[[Path, int], Any], path: Path, version: int) -> int:
    counter = _Saboteur()
    sys.setprofile(counter)
    try:
        write(path, version)
    finally:
        sys.setprofile(None)
    return counter.count
