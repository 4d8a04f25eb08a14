"""The pace of a process: it uses a share of one core, and ends when the process that started it ends.

A timer that counts CPU time interrupts the process every 50 ms of work, and the handler sleeps until the share is
reached. It runs between two instructions of Python, so a long call of compiled code is followed by a long pause. The
process is never stopped from outside, so nothing has to continue it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICK = 0.05   # seconds of CPU time
_LOOK = 0.2   # seconds between two looks at the parent


@contextlib.contextmanager
def keeping_share(share: float) -> Iterator[None]:
    """Let this process use a ``share`` of one core in the block, and give way to others; only for the main thread.

    The time since the process started counts, too. Without such timers, only the priority is lowered.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.nice(19)
    if share >= 1 or not hasattr(signal, "setitimer"):
        yield
        return
    cpu, wall = 0.0, time.monotonic()

    def pause(*_: object) -> None:
        nonlocal cpu, wall
        used, passed = time.process_time() - cpu, time.monotonic() - wall
        time.sleep(max(0.0, used / share - passed))
        cpu, wall = time.process_time(), time.monotonic()

    signal.signal(signal.SIGPROF, pause)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _TICK, _TICK)
    try:
        yield
    finally:   # a process that exits has no handlers any more, and the signal would end it
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)


def end_with(parent: int, clean: Callable[[], None]) -> None:
    """End this process, after calling ``clean``, as soon as its parent is no longer the process ``parent``."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        clean()
        os._exit(1)

    threading.Thread(target=look, name="end with the parent", daemon=True).start()
