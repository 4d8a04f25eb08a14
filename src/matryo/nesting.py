"""Prefix arithmetic. A nesting is the ordered list of dims at which an embedding must work, with weights.

This module defines what "the first m dimensions" means. Kernels and block storage may restate it for speed and are
tested against it.

>>> nesting = Nesting.halving(64, smallest=8)
>>> nesting.dims
(8, 16, 32, 64)
>>> nesting.blocks                      # the columns each dim adds
((0, 8), (8, 16), (16, 32), (32, 64))
>>> Nesting([8, 64], weights=[2, 1]).weights
(2.0, 1.0)
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import numpy as np

from matryo.arguments import checked, is_dense
from matryo.arrays import as_array
from matryo.errors import NestingError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    Array = TypeVar("Array", np.ndarray[Any, np.dtype[Any]], torch.Tensor)

_MOST_DIMS = 1 << 20

__all__ = ["Nesting", "as_nesting", "prefix_norms", "truncate"]


@dataclass(frozen=True, init=False)
class Nesting:
    """The dims m₁ < … < m_k at which an embedding is trained or read, each with its weight c_m."""

    dims: tuple[int, ...]
    weights: tuple[float, ...]

    def __init__(self, dims: Iterable[int], weights: Iterable[float] | None = None) -> None:
        checked = _check_dims(dims)
        object.__setattr__(self, "dims", checked)
        object.__setattr__(self, "weights", _check_weights(weights, len(checked)))

    @classmethod
    @checked
    def halving(cls, dim: int, smallest: int = 8, weights: Iterable[float] | None = None) -> Nesting:
        """Halve ``dim`` while the result is an integer ≥ ``smallest``. This is the paper's usual choice.

        >>> Nesting.halving(768, smallest=12).dims
        (12, 24, 48, 96, 192, 384, 768)
        """
        if not 1 <= smallest <= dim:
            raise NestingError(
                "smallest must lie in 1 … dim",
                got=f"smallest={smallest}, dim={dim}",
                cure="use smallest=1, or a larger dim",
            )
        dims = [dim]
        while dims[0] % 2 == 0 and dims[0] // 2 >= smallest:
            dims.insert(0, dims[0] // 2)
        return cls(dims, weights)

    @classmethod
    @checked
    def uniform(cls, dim: int, count: int, smallest: int = 8) -> Nesting:
        """Space ``count`` dims evenly from ``smallest`` to ``dim`` (the paper's MRL-Uniform ablation).

        >>> Nesting.uniform(2048, count=11).dims
        (8, 212, 416, 620, 824, 1028, 1232, 1436, 1640, 1844, 2048)
        """
        if count < 1:
            raise NestingError("count must be at least 1", got=count, cure="use count=1 or more")
        if count == 1:
            return cls([dim])
        return cls(round(float(m)) for m in np.linspace(smallest, dim, count))

    @property
    def dim(self) -> int:
        """The largest dim: the number of columns that this nesting reads."""
        return self.dims[-1]

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """The half-open column range that each dim adds to the previous dim."""
        return tuple(zip((0, *self.dims[:-1]), self.dims, strict=True))

    def between(self) -> tuple[int, ...]:
        """Return the dims midway between neighbouring dims: never trained, but expected to interpolate well.

        >>> Nesting.halving(64).between()
        (12, 24, 48)
        """
        midpoints = ((low + high) // 2 for low, high in pairwise(self.dims))
        return tuple(m for m in midpoints if m not in self.dims)

    @checked
    def check_fits(self, dim: int) -> None:
        """Raise if a dim of this nesting exceeds ``dim``, the number of columns."""
        if self.dim > dim:
            raise NestingError(
                f"the largest dim must not exceed the {dim} dimensions of the embedding",
                got=self.dims,
                cure=f"drop the dims above {dim}, or use a wider encoder",
            )

    def __len__(self) -> int:
        return len(self.dims)


def as_nesting(dims: Nesting | Iterable[int]) -> Nesting:
    """Return a nesting unchanged, or a list of dims as a nesting with equal weights.

    >>> as_nesting([8, 64]).dims
    (8, 64)
    """
    return dims if isinstance(dims, Nesting) else Nesting(dims)


class _Table(Protocol):
    """A pandas or polars table or column."""

    def to_numpy(self) -> Any: ...


@overload
def truncate(z: Array, dim: int, normalize: bool = True) -> Array: ...
@overload
def truncate(z: Sequence[Any] | _Table, dim: int, normalize: bool = True) -> np.ndarray[Any, np.dtype[Any]]: ...
def truncate(z: Any, dim: int, normalize: bool = True) -> Any:
    """Return the first ``dim`` columns of ``z``, scaled to norm 1 again unless ``normalize=False``.

    ``z`` may be a numpy array or a torch tensor of any leading shape (gradients flow), lists, or a pandas or polars
    table or column. All but tensors give numpy arrays. Normalised integers become float32. A zero vector stays zero.

    >>> truncate(np.array([[3.0, 4.0, 12.0]]), 2)
    array([[0.6, 0.8]])
    >>> truncate([[3, 4, 12]], 2, normalize=False)
    array([[3, 4]])
    """
    if not _is_integer(dim):
        raise NestingError("dim must be an integer, the columns to keep", got=shown(dim), cure="use for example 8")
    if not isinstance(normalize, (bool, int, np.bool_)):
        raise NestingError("normalize must be True or False", got=shown(normalize), cure="pass normalize=True")
    z = _as_vectors(z)
    if not 1 <= dim <= z.shape[-1]:
        raise NestingError(
            f"dim must lie in 1 … {z.shape[-1]}, the columns of the vectors",
            got=dim,
            cure=f"use dim={z.shape[-1]} or less",
        )
    prefix = z[..., :dim]
    return _unit(prefix) if normalize else prefix


def prefix_norms(z: Any, dims: Nesting | Sequence[int]) -> Any:
    """Return the Euclidean norm of each prefix, ``out[..., i] = ‖z[..., :dims[i]]‖``, from one norm per block.

    ``z`` is as in :func:`truncate`. No square overflows or underflows: values of 1e30 and 1e-30 have their norms.

    >>> prefix_norms(np.array([3.0, 4.0, 12.0]), [1, 2, 3])
    array([ 3.,  5., 13.])
    """
    z, nesting = _as_vectors(z), as_nesting(dims)
    nesting.check_fits(z.shape[-1])
    if isinstance(z, np.ndarray) and z.dtype in (np.float32, np.float64) and not _is_extreme(_peaks(z, nesting)).any():
        sums = [np.square(z[..., low:high]).sum(-1, keepdims=True) for low, high in nesting.blocks]
        return np.sqrt(np.cumsum(np.concatenate(sums, -1), -1))   # as below, without scaling
    blocks = [_scaled(z[..., low:high]) for low, high in nesting.blocks]
    if not isinstance(z, np.ndarray):
        torch = _torch()
        norms = [torch.linalg.vector_norm(rows, dim=-1, keepdim=True) * factor for rows, factor in blocks]
        return torch.cat(list(accumulate(norms, torch.hypot)), -1)
    squares = np.concatenate([np.square(rows).sum(-1, keepdims=True) for rows, _ in blocks], -1)
    factors = np.concatenate([factor for _, factor in blocks], -1)
    unscaled = np.sqrt(np.cumsum(squares, -1))   # exact for small integers, unlike a chain of roots
    with np.errstate(over="ignore"):
        return np.where((factors == 1).all(-1, keepdims=True), unscaled,
                        np.hypot.accumulate(np.sqrt(squares) * factors, -1))  # fmt: skip


def _peaks(z: Any, nesting: Nesting) -> Any:
    """The largest absolute value of each block of each row."""
    return np.maximum.reduceat(np.abs(z[..., : nesting.dim]), [low for low, _ in nesting.blocks], axis=-1)


def _as_vectors(z: Any) -> Any:
    """``z`` as an array or a tensor of real numbers with at least one axis; a tensor stays a tensor."""
    tensor = hasattr(z, "detach")
    if tensor and not is_dense(z):
        raise NestingError("vectors must be dense", got=z.layout, cure="pass z.to_dense()")
    z = z if tensor else as_array(z, error=NestingError)
    real = not z.is_complex() if tensor else z.dtype.kind in "fiub"
    if z.ndim == 0 or not real:
        raise NestingError(
            "vectors must be real numbers, one row per vector",
            got=f"{z.dtype}, shape {tuple(z.shape)}",
            cure="select the numeric columns, or the column of vectors, first",
        )
    return z


def _unit(z: Any) -> Any:
    rows, _ = _scaled(z)
    if isinstance(z, np.ndarray):
        norm = np.sqrt(np.square(rows).sum(-1, keepdims=True))
        with np.errstate(invalid="ignore"):   # the norm of a row with infinity
            unit = rows / np.where(norm == 0, 1, norm)
        return unit.astype(z.dtype, copy=False) if z.dtype.kind == "f" else unit
    norm = _torch().linalg.vector_norm(rows, dim=-1, keepdim=True)
    unit = rows / norm.where(norm != 0, 1)
    return unit.to(z.dtype) if z.is_floating_point() else unit


def _scaled(z: Any) -> tuple[Any, Any]:
    """Return rows and a factor per row with z = rows · factor, such that no sum of squares over- or underflows.

    The factor is 1 for ordinary numbers, whose bits are kept. Integers and half precision become float32, because
    300² already overflows float16.
    """
    if isinstance(z, np.ndarray):
        wide = z.astype(np.float32) if z.dtype.kind != "f" or z.dtype.itemsize < 4 else z
        peak = np.maximum(wide.max(-1, keepdims=True), -wide.min(-1, keepdims=True))
        factor = np.where(_is_extreme(peak), peak, wide.dtype.type(1))
        return (wide if (factor == 1).all() else wide / factor), factor
    wide = z if z.dtype in (_torch().float32, _torch().float64) else z.float()
    peak = wide.detach().abs().amax(-1, keepdim=True)   # detached: the factor cancels in every gradient
    factor = peak.where(_is_extreme(peak), 1)
    return wide / factor, factor


def _is_extreme(peak: Any) -> Any:
    """Whether the largest absolute value of a row is too large or too small to be squared in float32."""
    return ((peak > 0) & (peak < 2.0**-40)) | ((peak > 2.0**40) & (peak < math.inf))


def _torch() -> Any:
    # The caller passed a tensor, so torch is imported already; this module must not import it.
    return sys.modules["torch"]


def _check_dims(dims: Iterable[int]) -> tuple[int, ...]:
    rule, cure = "dims must be positive integers in increasing order", "list each dim once, smallest first"
    try:
        listed = tuple(islice(dims, _MOST_DIMS))   # an iterator may be endless
    except Exception:   # most likely a number
        raise NestingError(rule, got=dims, cure=f"pass a list, even for a single dim: [{shown(dims)}]") from None
    if not listed or not all(map(_is_integer, listed)) or any(low >= high for low, high in pairwise((0, *listed))):
        raise NestingError(rule, got=listed, cure=cure)
    return tuple(int(m) for m in listed)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def _check_weights(weights: Iterable[float] | None, count: int) -> tuple[float, ...]:
    if weights is None:
        return (1.0,) * count
    try:
        listed = tuple(float(w) for w in islice(weights, _MOST_DIMS))
    except Exception:   # not a list, or not numbers
        cure = f"pass a list of {count} numbers"
        raise NestingError("weights must be numbers, one per dim", got=shown(weights), cure=cure) from None
    if len(listed) != count:
        raise NestingError(
            f"there must be one weight for each of the {count} dims", got=listed, cure=f"pass {count} weights"
        )
    if not all(math.isfinite(w) and w >= 0 for w in listed) or sum(listed) == 0:
        raise NestingError(
            "weights must be finite, none negative, not all zero", got=listed, cure="leave weights out for c_m = 1"
        )
    return listed
