"""Vectors as a nested loss takes them: two axes, one dtype, and in an autocast region the dtype it multiplies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from matryo.errors import InputError, NestingError
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["as_autocast", "check_dims", "check_vectors"]


def check_dims(nesting: object, *vectors: Tensor) -> None:
    """Raise unless it is a nesting, and all vectors hold its dims."""
    if not isinstance(nesting, Nesting):
        raise NestingError("dims must come as a Nesting", got=nesting, cure="pass Nesting([8, 16, 64]), say")
    for one in vectors:
        nesting.check_fits(one.shape[-1])


def check_vectors(x: Tensor, y: Tensor, names: str, shapes: str) -> None:
    """Raise unless the vectors can be multiplied."""
    if x.dim() != 2 or y.dim() != 2:
        got = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
        raise InputError(f"{names} must be {shapes}", got=got, cure="flatten or add axes")
    if x.device != y.device:
        raise InputError(f"{names} must be on one device", got=f"{x.device} and {y.device}", cure="move one of them")
    got = f"{x.dtype} and {y.dtype}"
    if not (x.is_floating_point() and y.is_floating_point()):
        raise InputError(f"{names} must be floating-point numbers", got=got, cure="convert them with .float()")
    double = torch.float64 in (x.dtype, y.dtype)   # which autocast leaves as it is
    if x.dtype != y.dtype and (double or not torch.is_autocast_enabled(x.device.type)):
        cure = "convert one" if double else "convert one, or use torch.autocast"
        raise InputError(f"{names} must be of one dtype", got=got, cure=cure)


def as_autocast(*vectors: Tensor) -> tuple[Tensor, ...]:
    """The vectors in the dtype in which autocast would multiply them."""
    device = vectors[0].device.type
    if not torch.is_autocast_enabled(device) or any(one.dtype == torch.float64 for one in vectors):
        return vectors
    return tuple(one.to(torch.get_autocast_dtype(device)) for one in vectors)
