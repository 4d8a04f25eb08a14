"""Check the inputs of nested losses, and convert them to the dtype of an autocast region."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from matryo.arguments import is_usable
from matryo.errors import InputError, shown
from matryo.nesting import Nesting, as_nesting


def check_dims(dims: Nesting | Iterable[int], *vectors: Tensor) -> Nesting:
    """Return ``dims`` as a nesting; raise if a vector has fewer columns than the largest dim."""
    nesting = as_nesting(dims)
    for rows in vectors:
        if not is_usable(rows) or rows.dim() == 0:
            got = f"{rows.dtype} of shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else shown(rows)
            rule = "embeddings must be dense tensors [batch, d], not float8"
            raise InputError(rule, got=got, cure="convert them with torch.as_tensor, .to_dense() or .float()")
        nesting.check_fits(rows.shape[-1])
    return nesting


def check_vectors(x: Tensor, y: Tensor, names: str, shapes: str) -> None:
    """Raise unless x and y are floating-point matrices on one device, of one dtype or under autocast."""
    if x.dim() != 2 or y.dim() != 2:
        got = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
        raise InputError(f"{names} must be {shapes}", got=got, cure="use reshape(-1, d)")
    if x.device != y.device:
        raise InputError(f"{names} must be on one device", got=f"{x.device} and {y.device}", cure="move one with .to()")
    got = f"{x.dtype} and {y.dtype}"
    if not (x.is_floating_point() and y.is_floating_point()):
        raise InputError(f"{names} must be floating-point numbers", got=got, cure="convert them with .float()")
    double = torch.float64 in (x.dtype, y.dtype)   # autocast does not convert float64
    if x.dtype != y.dtype and (double or not torch.is_autocast_enabled(x.device.type)):
        cure = "convert one with .to()" if double else "convert one with .to(), or use torch.autocast"
        raise InputError(f"{names} must have the same dtype", got=got, cure=cure)


def as_autocast(*vectors: Tensor) -> tuple[Tensor, ...]:
    """Convert the vectors to the dtype in which autocast would multiply them."""
    device = vectors[0].device.type
    if not torch.is_autocast_enabled(device) or any(rows.dtype == torch.float64 for rows in vectors):
        return vectors
    return tuple(rows.to(torch.get_autocast_dtype(device)) for rows in vectors)
