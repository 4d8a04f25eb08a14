"""Progress bars: tqdm's, with a lock of threads instead of its lock of processes.

tqdm's own lock is a semaphore that a process shares with the processes that it forks. If one of them is killed while it
draws a bar, all others hang as soon as they make a bar, even a hidden one.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from tqdm import tqdm as _Bar

__all__ = ["tqdm", "trange"]


class tqdm(_Bar):   # type: ignore[misc]   # tqdm has no types; readers know it by this name
    """tqdm's bar.

    >>> list(tqdm(range(3), disable=True))
    [0, 1, 2]
    """

    _lock = threading.RLock()


def trange(*bounds: int, **options: Any) -> tqdm:
    """A bar over ``range(*bounds)``."""
    return tqdm(range(*bounds), **options)


def _unlock() -> None:
    """A thread of the parent may have held the lock."""
    tqdm._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
