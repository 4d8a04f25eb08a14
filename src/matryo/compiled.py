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

from matryo.errors import MatryoError

NUMPY = "numpy"
"""The value of MATRYO_ISA that selects numpy."""


@cache
def core() -> Any | None:
    """Return the module ``matryo._core``, or None; the first call warns if it is missing."""
    if os.environ.get("MATRYO_ISA") == NUMPY:
        return None
    try:
        from matryo import _core
    except ImportError as error:
        warnings.warn(
            f"the compiled core of matryo is not installed ({error}): searches run in numpy and are slower. "
            "Reinstall matryo where a C++ compiler is available, or set MATRYO_ISA=numpy to hide this message",
            stacklevel=2,
        )
        return None
    return _core


def require_core() -> Any:
    """Return the module ``matryo._core``; raise if it is missing."""
    found = core()
    if found is None:
        raise MatryoError(
            "this needs the compiled core of matryo",
            cure="install a C++ compiler, then: pip install --force-reinstall --no-deps matryo",
        )
    return found


def isa() -> str:
    """Return the instruction set of the core, or "numpy"."""
    found = core()
    return NUMPY if found is None else str(found.ISA)
