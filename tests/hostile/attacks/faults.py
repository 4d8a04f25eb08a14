"""A disk that fails on command: ``failing_disk.c`` compiled and loaded before libc, and its controls."""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "failing_disk.c"
CALLS = {"write": 1, "sync": 2, "rename": 4, "mmap": 8, "open": 16, "read": 32, "truncate": 64}
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "half": 0}
"""EIO and ENOSPC, and for a write half of the bytes."""


def require() -> None:
    """Raise where the disk cannot be built."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        raise NotImplementedError("needs Linux and a C compiler (cc)")


def on_failing_disk(module: str, function: str, *arguments: Any, folder: Path) -> Any:
    """Call a function of an attack in a new process whose disk can fail, and return its result."""
    library, answer = folder / "failing_disk.so", folder / "answer"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    code = f"import sys; sys.path[:] = {sys.path!r}; from attacks import faults; faults.answer()"
    given = pickle.dumps((module, function, arguments, answer))
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    subprocess.run([sys.executable, "-c", code], input=given, env=environment, check=True)
    return pickle.loads(answer.read_bytes())


def answer() -> None:
    """Do the call that is described on the standard input."""
    warnings.simplefilter("ignore")   # failures of a clean-up are warnings
    module, function, arguments, path = pickle.load(sys.stdin.buffer)
    result = getattr(importlib.import_module(module), function)(*arguments)
    path.write_bytes(pickle.dumps(result))


def arm(folder: Path, call: str, countdown: int, error: str, *, lasting: bool) -> None:
    """Let the ``countdown``-th call of a kind below ``folder`` fail, and all later ones if ``lasting``."""
    ctypes.CDLL(None).fault_arm(str(folder).encode(), CALLS[call], countdown, ERRORS[error], int(lasting))


def fill_after(folder: Path, size: int) -> None:
    """Let writes below ``folder`` fail with ENOSPC after ``size`` bytes."""
    ctypes.CDLL(None).fault_budget(str(folder).encode(), ctypes.c_longlong(size))


def disarm() -> int:
    """Let the disk work again; return how many calls failed."""
    return int(ctypes.CDLL(None).fault_disarm())
