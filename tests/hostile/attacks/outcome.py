"""The outcome of an attack, and the end of one attempt in a forked child."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matryo.errors import MatryoError


@dataclass
class Outcome:
    """The number of attempts, and one line per attempt that broke the promise."""

    attempts: int
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class End:
    """The end of a call in a child process."""

    kind: str
    """returned; refused (a MatryoError); bare (any other exception); killed (by a signal); hung."""
    text: str = ""
    """The message of the error, or the name of the signal."""
    value: Any = None
    """The value that was returned."""

    @property
    def clean(self) -> bool:
        """Whether the call returned, or raised an error of matryo."""
        return self.kind in ("returned", "refused")


def forked(call: Callable[..., Any], *arguments: Any, seconds: float = 60) -> End:
    """Run ``call`` in a forked child and return how it ended; a child that runs longer than ``seconds`` is killed.

    Warm the parent (imports, compiled kernels) before, so that an attempt is cheap.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        with os.fdopen(writes, "wb") as file:
            end = ended(call, *arguments)
            with contextlib.suppress(BrokenPipeError):
                pickle.dump(end, file)
                file.flush()
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        hung = not select.select([file], [], [], seconds)[0]
        if hung:
            os.kill(child, signal.SIGKILL)
        answer = file.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if hung:
        return End("hung", f"no end after {seconds:g} s")
    if code or not answer:
        return End("killed", signal.Signals(-code).name if code < 0 else f"exit code {code}")
    end: End = pickle.loads(answer)
    return end


def ended(call: Callable[..., Any], *arguments: Any) -> End:
    """Run ``call`` here and return how it ended."""
    try:
        return End("returned", value=call(*arguments))
    except MatryoError as error:
        return End("refused", f"{type(error).__name__}: {error}")
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return End("bare", f"{type(error).__name__}: {error} at {where.filename.rpartition('/')[2]}:{where.lineno}")
