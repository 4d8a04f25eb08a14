"""The compiled core, ``matryo._core``, where it is installed; without it, numpy does the work.

A wheel contains the core for its platform. An installation from source builds it if it finds a C++ compiler. The
environment variable ``MATRYO_ISA`` selects the instruction set: ``avx512``, ``avx2``, ``baseline``, or ``numpy`` to run
without the core.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any

from matryo.errors import MissingCore

NUMPY = "numpy"
"""The value of MATRYO_ISA that selects numpy."""


@cache
def core() -> Any | None:
    """Return the module ``matryo._core``, or None; the first call warns if it is missing."""
    try:
        return require_core()
    except MissingCore as error:
        if os.environ.get("MATRYO_ISA") != NUMPY:
            warnings.warn(
                f"searches run in numpy and are slower: {error}; MATRYO_ISA=numpy hides this message", stacklevel=2
            )
        return None


def require_core() -> Any:
    """Return the module ``matryo._core``; raise if it is missing."""
    if os.environ.get("MATRYO_ISA") == NUMPY:
        raise MissingCore("MATRYO_ISA=numpy")
    try:
        from matryo import _core
    except ImportError as error:
        raise MissingCore(str(error)) from error
    return _core


def default_threads() -> int:
    """Return ``MATRYO_THREADS``, or the number of processors that this process may use."""
    found = core()
    if found is not None:
        return int(found.default_threads())
    given = os.environ.get("MATRYO_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def isa() -> str:
    """Return the instruction set of the core, or "numpy"."""
    found = core()
    return NUMPY if found is None else str(found.ISA)
