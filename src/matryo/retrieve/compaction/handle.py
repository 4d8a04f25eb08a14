"""Compaction: the handle of a compaction that runs in the background."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import matryo.errors
from matryo.errors import InputError, MatryoError, StorageError
from matryo.retrieve.store import forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.retrieve.compaction.task import Task

# The child finds the modules where this process found them, as in multiprocessing; no file of the user is run.
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from matryo.retrieve.compaction.worker import main
main(sys.argv[2])
"""
_ONE_THREAD = dict.fromkeys(
    ("MATRYO_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
_AGAIN = "call index.compact(background=True) again; the index is unchanged"


class Compaction:
    """A compaction in the background; :meth:`matryo.Index.compact` returns it.

    Its thread follows the child process, adopts the result, and ends. Without a ``task`` it is done from the start.
    """

    def __init__(
        self, task: Task | None = None, adopt: Callable[[], None] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._owner, self._progress, self._cancelled = os.getpid(), 0.0, False
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        if task is None or adopt is None or release is None:
            self._done.set()
            return
        self._process = _started(task)
        atexit.register(self.cancel)
        # The thread holds the index, and this object does not: when it ends, the index can be garbage-collected.
        args = (self._process, adopt, release)
        threading.Thread(target=self._run, args=args, name="matryo compaction", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has ended: with success, with an error, or because it was cancelled."""
        return self._done.is_set()

    @property
    def progress(self) -> float:
        """The part of the work that is done, from 0 to 1. If guides are built, they are the second half."""
        return 1.0 if self.done and self._error is None else self._progress

    @property
    def error(self) -> BaseException | None:
        """The error that ended it; None while it runs and after success."""
        return self._error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, at most ``timeout`` seconds; return whether it has. Its error is raised."""
        self._check_owner()
        if not self._done.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def cancel(self) -> None:
        """End it now, and wait until the scratch folder is removed. Once the result is being adopted, it succeeds."""
        if self._process is None or self.done or self._owner != os.getpid():   # a fork has no thread to wait for
            return
        self._cancelled = True
        self._process.kill()
        self._done.wait()

    def __repr__(self) -> str:
        state = "done" if self._error is None else f"failed: {self._error}"
        return f"Compaction({state if self.done else f'{self.progress:.0%}'})"

    def _run(self, process: subprocess.Popen[str], adopt: Callable[[], None], release: Callable[[], None]) -> None:
        try:
            self._follow(process)
            adopt()
        except BaseException as error:   # wait() raises it
            self._error = error
        finally:
            release()
            atexit.unregister(self.cancel)
            self._done.set()

    def _follow(self, process: subprocess.Popen[str]) -> None:
        """Read the reports of the child until it ends; raise if it has failed."""
        last: dict[str, Any] = {}
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                last = json.loads(line)
                self._progress = last.get("progress", self._progress)
        if self._cancelled:
            raise InputError("this compaction was cancelled", cure=_AGAIN)
        if "error" in last:
            raise _rebuilt(**last)
        if "done" not in last or process.returncode:
            got = f"exit status {process.returncode}"
            raise StorageError("the process that compacts the index was ended", got=got, cure=_AGAIN)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            got = f"process {os.getpid()}, a child of {self._owner}"
            raise InputError("this compaction belongs to the parent process", got=got, cure="wait for it there")


def _started(task: Task) -> subprocess.Popen[str]:
    if not sys.executable:
        raise StorageError("the Python of this program is unknown", cure="call index.compact() without background")
    command = [sys.executable, "-c", _START, json.dumps([*map(str, sys.path)]), task.to_json()]
    with forks.no_fork:   # a child that inherits the pipe would keep it open
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **_ONE_THREAD}, start_new_session=True,   # Ctrl-C is for the parent
        )  # fmt: skip


def _rebuilt(error: str, kind: str) -> BaseException:
    """The error that the child raised; an unexpected one becomes a StorageError."""
    known = getattr(matryo.errors, kind, None) if kind in matryo.errors.__all__ else None
    if isinstance(known, type) and issubclass(known, MatryoError) and kind not in ("MissingCore", "MissingExtra"):
        return known(error)
    return StorageError("the process that compacts the index failed", got=f"{kind}: {error}", cure=_AGAIN)
