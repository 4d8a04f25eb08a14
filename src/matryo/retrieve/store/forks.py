"""Stores and ``fork``: a child inherits no connection, no lock and no transaction of its parent.

SQLite remembers in memory which locks its process holds. A child inherits that memory, but not the locks, and would
read and write without any. So the connections that a child inherits are closed before it runs: readers reconnect when
they are used, and writers refuse, because their lock stays with the parent.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matryo.retrieve.store.session import Session


_live: weakref.WeakSet[Session] = weakref.WeakSet()
_held: list[Session] = []   # between the hooks before and after a fork
no_fork = threading.RLock()
"""Held while an index is opened: until it is watched, a child would keep its lock."""


def watch(store: Session) -> None:
    """Let ``store`` know about forks as long as it exists."""
    _live.add(store)


def _before() -> None:
    """Wait until no store is in a transaction, and keep all of them out of one."""
    while True:
        no_fork.acquire()
        for store in list(_live):
            if not store._guard.acquire(timeout=0.1):   # its thread may wait for something that is held here
                _in_parent()
                break
            _held.append(store)
        else:
            return


def _in_parent() -> None:
    while _held:
        _held.pop()._guard.release()
    no_fork.release()


def _in_child() -> None:
    for store in _held:
        with contextlib.suppress(Exception):   # nobody could catch it here, and the guards must be released
            store._after_fork()
    _in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
