"""What the fused kernels are called with: tiles, and vectors as the hardware copies them.

Everything here is computed once for a loss, however often its kernels run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from matryo.losses.engines.contract import Scores, spans
from matryo.losses.engines.triton.launch import launch

__all__ = ["Sweep", "Tile", "as_given", "descriptor", "flags", "lying", "numbers", "pieces", "readable", "width_of"]


@dataclass(frozen=True)
class Tile:
    """The shape of a program's work."""

    rows: int
    columns: int
    ragged: int
    """Columns of a step in the ragged part,"""
    step: int
    """and in the even part."""
    warps: int
    stages: int
    group: int = 16
    registers: int | None = None
    """At most so many a thread, where fewer than the compiler would take let more programs run at a time."""

    @property
    def constants(self) -> dict[str, int | None]:
        """As the kernels call them."""
        shape = {"BM": self.rows, "BN": self.columns, "BR": self.ragged, "BK": self.step, "GROUP": self.group}
        return shape | {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


class Sweep:
    """The operands of a sweep over the columns, as the kernels read them, for some of the dims."""

    def __init__(self, scores: Scores, tile: Tile, levels: slice = slice(None)) -> None:
        dims, starts, x, y = scores.nesting.dims[levels], scores.starts[levels], scores.x, scores.y
        plan = _plan(dims, starts if not scores.tied else None, tile.ragged, tile.step, x.element_size())
        ragged = [_padded(one, ranges, tile.ragged) if ranges else None for one, ranges in ((x, plan.x), (y, plan.y))]
        sides = list(zip(ragged, (x, y), (tile.rows, tile.columns), strict=True))
        self.arguments: tuple[Any, ...] = (
            *(None if one is None else descriptor(one, count, tile.ragged) for one, _, count in sides),
            *(descriptor(one, count, tile.step) for _, one, count in sides),
            numbers(plan.ends, x.device), sum(plan.steps[: len(plan.x)]), sum(plan.steps[len(plan.x) :]), plan.start,
            scores.rows, scores.columns,
        )  # fmt: skip
        """What both sweeping kernels begin with."""


@dataclass(frozen=True)
class _Plan:
    """How a sweep goes through the columns."""

    x: tuple[tuple[int, int], ...]
    """What the ragged part takes of x: a range of columns a dim,"""
    y: tuple[tuple[int, int], ...]
    """and of y."""
    steps: tuple[int, ...]
    """How many steps each dim takes, in the ragged part first."""
    start: int
    """Where the even part begins."""

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """After how many steps each dim ends; −1 for never."""
        return *accumulate(self.steps), -1


@lru_cache(maxsize=256)
def _plan(dims: tuple[int, ...], starts: tuple[int, ...] | None, ragged: int, step: int, size: int) -> _Plan:
    """Of these dims, which have columns of their own in y where there are ``starts``; numbers take ``size`` bytes."""
    blocks, even = list(pairwise((0, *dims))), len(dims)
    if starts is None:
        while even and (blocks[even - 1][1] - blocks[even - 1][0]) % step == 0:
            even -= 1
        if even and dims[even - 1] * size % 16:   # the hardware's copies would not begin there
            even = len(dims)
        x = y = tuple(blocks[:even])
    else:
        x = tuple((0, dim) for dim in dims)
        y = tuple((start, start + dim) for dim, start in zip(dims, starts, strict=True))
    steps = [pieces(high - low, ragged) for low, high in x] + [(high - low) // step for low, high in blocks[even:]]
    return _Plan(x, y, tuple(steps), dims[even - 1] if even else 0)


@cache   # a recorded CUDA graph must find them on the device, whatever came after it
def numbers(given: tuple[int, ...], device: torch.device) -> Tensor:
    """A few numbers, where kernels read them."""
    return torch.tensor(given, dtype=torch.int32, device=device)


def _padded(tensor: Tensor, ranges: tuple[tuple[int, int], ...], step: int) -> Tensor:
    """Ranges of columns side by side, each padded with zeros to whole steps."""
    sources = _sources(ranges, step, tensor.device)
    found = tensor.new_empty(len(tensor), len(sources))
    grid = pieces(len(tensor), 32), pieces(len(sources), 64)
    launch(
        padded_kernel, grid, tensor, tensor.stride(0), sources, found, len(tensor), len(sources),
        ROWS=32, COLUMNS=64, num_warps=4,
    )  # fmt: skip
    return found


@lru_cache(maxsize=256)
def _sources(ranges: tuple[tuple[int, int], ...], step: int, device: torch.device) -> Tensor:
    """Which column each one of a padded matrix comes from; −1 for none."""
    found: list[int] = []
    for low, high in ranges:
        found += [*range(low, high), *[-1] * (-(high - low) % step)]
    return numbers(tuple(found), device)


@triton.jit(do_not_specialize=["rows", "columns"])
def padded_kernel(tensor, stride, sources, found, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Copy columns from where they come from."""
    m, n = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    source, row = tl.load(sources + n, n < columns, -1)[None, :], m.to(tl.int64)[:, None]
    part = tl.load(tensor + row * stride + source, (m < rows)[:, None] & (source >= 0), 0.0)
    tl.store(found + row * columns + n[None, :], part, (m < rows)[:, None] & (n < columns)[None, :])


def readable(scores: Scores) -> Scores:
    """The same with x and y lying as the hardware's copies of tiles want them: rows begin at multiples of 16 bytes.

    So do separate dims, as every product with one that does not takes much longer than this copy.
    """
    whole = 16 // scores.y.element_size()
    if any(start % whole for start in scores.starts):
        scores = replace(scores, y=_padded(scores.y, _ranges(scores), whole), apart=whole)
    return replace(scores, x=lying(scores.x), y=lying(scores.y))


def as_given(scores: Scores, y: Tensor) -> Tensor:
    """A matrix that lies as y does in readable ``scores``, with nothing between the dims again."""
    return y if scores.apart == 1 else _padded(y, _ranges(scores), 1)


def _ranges(scores: Scores) -> tuple[tuple[int, int], ...]:
    return tuple((of_y.start, of_y.stop) for _, of_y in spans(scores))


def lying(tensor: Tensor) -> Tensor:
    """A matrix, copied if it does not lie so."""
    whole = 16 // tensor.element_size()
    own = tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]   # rows that share no memory
    if own and tensor.stride(0) % whole == 0 and tensor.data_ptr() % 16 == 0:
        return tensor
    room = tensor.new_empty(tensor.shape[0], pieces(tensor.shape[1], whole) * whole)
    return room[:, : tensor.shape[1]].copy_(tensor)


def descriptor(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """For copies of tiles of so many rows and columns."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns])


def flags(scores: Scores) -> dict[str, Any]:
    """What all kernels are compiled for."""
    precision = "ieee"
    if scores.x.dtype == torch.float32:   # by tensor cores as torch would, or three times over for full precision
        precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
    return {
        "SCALED": scores.left is not None, "BIAS": scores.bias is not None, "RESTART": not scores.tied,
        "PRECISION": precision,
    }  # fmt: skip


def width_of(dim: int) -> int:
    """How many columns a kernel reads at once that reads all of so many: a power of two, as much as a product takes."""
    return max(16, 1 << (dim - 1).bit_length())


def pieces(length: int, size: int) -> int:
    """How many pieces of a size a length takes. (Triton's own takes longer to call than to compute.)"""
    return -(-length // size)
