"""Kill -9 a process that overwrites a folder: at a random time, or right before a random call of the system."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.outcome import Outcome, ended
from matryo import folders

_CALLS = {"posix", "_io", "io", "fcntl"}   # modules whose functions call the system


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
                    sys.setprofile(_Killer(last))
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


class _Killer:
    """A profiler that kills its process right before a call of the system, or only counts the calls."""

    def __init__(self, last: int | None = None) -> None:
        self.count, self.last = 0, last

    def __call__(self, _: Any, event: str, function: Any) -> None:
        if event != "c_call" or _module(function) not in _CALLS:
            return
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def _module(function: Any) -> str:
    return function.__module__ or type(function.__self__).__module__


def _calls_of(write: Callable[[Path, int], Any], path: Path, version: int) -> int:
    counter = _Killer()
    sys.setprofile(counter)
    try:
        write(path, version)
    finally:
        sys.setprofile(None)
    return counter.count
