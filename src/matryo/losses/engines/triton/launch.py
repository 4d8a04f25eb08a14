"""Launches of Triton kernels without the compiler's look at every argument.

Triton asks of each argument, at every launch, what a kernel could be compiled for; on a slow host that takes longer
than many a kernel runs. Here the few answers that tell our launches apart are looked up instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

__all__ = ["launch"]

_COMPILED: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """``kernel[grid](*arguments, **constants)``, where the kernel's constants come after its arguments.

    A block of a descriptor must be among the constants.
    """
    if not isinstance(kernel, JITFunction):   # interpreted, on a CPU
        kernel[grid](*arguments, **constants)
        return
    key = (id(kernel), torch.cuda.current_device(), *constants.values(), *map(_kind, arguments))
    found = _COMPILED.get(key)
    if found is None:
        names = [one.name for one in kernel.params if one.is_constexpr]
        _COMPILED[key] = kernel[grid](*arguments, **constants), tuple(constants[name] for name in names)
    else:
        compiled, last = found
        compiled[(*grid, 1, 1)[:3]](*arguments, *last)


def _kind(argument: Any) -> Any:
    """All that Triton compiles a kernel for, of one argument."""
    if argument is None:
        return None
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, argument >> 31
    return argument.base.dtype   # of a descriptor
