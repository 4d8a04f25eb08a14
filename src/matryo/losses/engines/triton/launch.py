"""A cache of compiled Triton kernels that makes launches cheaper on the host.

At every launch Triton inspects each argument to choose a specialisation. On a slow host that takes longer than many
kernels run. ``launch`` computes a smaller key, sufficient for the kernels of this package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

_COMPILED: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run ``kernel[grid](*arguments, **constants)``; the kernel must declare its constants after its arguments.

    The block shape of every descriptor must be among the constants, because it is not part of the key otherwise.
    """
    if not isinstance(kernel, JITFunction):   # interpreted, on a CPU
        kernel[grid](*arguments, **constants)
        return
    key = (id(kernel), torch.cuda.current_device(), *constants.values(), *map(_specialization, arguments))
    cached = _COMPILED.get(key)
    if cached is None:
        names = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
        _COMPILED[key] = kernel[grid](*arguments, **constants), tuple(constants[name] for name in names)
    else:
        compiled, constant_values = cached
        compiled[(*grid, 1, 1)[:3]](*arguments, *constant_values)


def _specialization(argument: Any) -> Any:
    """The properties of an argument that select a Triton specialisation."""
    if argument is None:
        return None
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, argument >> 31
    return argument.base.dtype   # a TensorDescriptor
