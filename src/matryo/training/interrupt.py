"""Ctrl-C during training: the first one stops after the running step and saves, the second one stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def stopping_text(seconds: float) -> str:
    """The answer to the first Ctrl-C, where a step takes ``seconds`` (0 if no step has been measured yet)."""
    about = f" (about {max(1, round(seconds))} s)" if seconds else ""
    return f"stopping after this step{about} and saving; press Ctrl-C again to stop now without saving"


@contextlib.contextmanager
def interruptible(step_seconds: Callable[[], float], *, quiet: bool = False) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, after printing :func:`stopping_text`; later ones act as outside the block.

    ``quiet`` processes print nothing.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():   # only the main thread may handle signals
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        interrupted.set()
        if not quiet:   # unbuffered, because the signal may have interrupted a print
            os.write(2, f"\n{stopping_text(step_seconds())}\n".encode())

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
