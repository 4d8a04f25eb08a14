"""Arguments of the fused kernels: tile shapes, and x and y in the memory layout that TMA copies require.

They are computed once per pass, however often the kernels run.
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


@dataclass(frozen=True)
class Tile:
    """The tile shape of a program, with its launch parameters."""

    rows: int
    columns: int
    ragged: int
    """Columns per step in the ragged part."""
    step: int
    """Columns per step in the even part."""
    warps: int
    stages: int
    group: int = 16
    registers: int | None = None
    """Maximum registers per thread. Fewer than the compiler would use let more programs run at once."""

    @property
    def constants(self) -> dict[str, int | None]:
        """The fields under the kernels' names."""
        shape = {"BM": self.rows, "BN": self.columns, "BR": self.ragged, "BK": self.step, "GROUP": self.group}
        return shape | {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


class PrefixOperands:
    """The operands of the product loop over the columns of x and y, for a slice of the dims."""

    def __init__(self, scores: Scores, tile: Tile, levels: slice = slice(None)) -> None:
        dims, starts, x, y = scores.nesting.dims[levels], scores.starts[levels], scores.x, scores.y
        schedule = _schedule(dims, starts if not scores.tied else None, tile.ragged, tile.step, x.element_size())
        ragged = [
            _padded(side, ranges, tile.ragged) if ranges else None
            for side, ranges in ((x, schedule.x), (y, schedule.y))
        ]
        sides = list(zip(ragged, (x, y), (tile.rows, tile.columns), strict=True))
        ragged_steps = sum(schedule.steps[: len(schedule.x)])
        self.arguments: tuple[Any, ...] = (
            *(None if part is None else descriptor(part, count, tile.ragged) for part, _, count in sides),
            *(descriptor(side, count, tile.step) for _, side, count in sides),
            device_ints(schedule.ends, x.device), ragged_steps, sum(schedule.steps) - ragged_steps, schedule.start,
            scores.rows, scores.columns,
        )  # fmt: skip
        """The first arguments of ``lse_kernel`` and ``gradient_kernel``."""


@dataclass(frozen=True)
class _Schedule:
    """The order in which the product loop reads the columns."""

    x: tuple[tuple[int, int], ...]
    """The ragged part of x: one range of columns per dim."""
    y: tuple[tuple[int, int], ...]
    """The ragged part of y: one range of columns per dim."""
    steps: tuple[int, ...]
    """Steps per dim, those of the ragged part first."""
    start: int
    """The first column of the even part."""

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The number of steps after which each dim is complete; then −1, which no step count equals."""
        return *accumulate(self.steps), -1


@lru_cache(maxsize=256)
def _schedule(dims: tuple[int, ...], starts: tuple[int, ...] | None, ragged: int, step: int, size: int) -> _Schedule:
    """The schedule for these dims. ``starts`` is None for tied dims; ``size`` is the bytes per element."""
    blocks, whole = list(pairwise((0, *dims))), len(dims)
    if starts is None:
        while whole and (blocks[whole - 1][1] - blocks[whole - 1][0]) % step == 0:
            whole -= 1
        if whole and dims[whole - 1] * size % 16:   # TMA copies must start at a multiple of 16 bytes
            whole = len(dims)
        x = y = tuple(blocks[:whole])
    else:
        x = tuple((0, dim) for dim in dims)
        y = tuple((start, start + dim) for dim, start in zip(dims, starts, strict=True))
    steps = [ceil_div(high - low, ragged) for low, high in x] + [(high - low) // step for low, high in blocks[whole:]]
    return _Schedule(x, y, tuple(steps), dims[whole - 1] if whole else 0)


@cache   # never evicted: a recorded CUDA graph keeps reading the tensor
def device_ints(values: tuple[int, ...], device: torch.device) -> Tensor:
    """A small int32 tensor on the device, created once per value."""
    return torch.tensor(values, dtype=torch.int32, device=device)


def _padded(tensor: Tensor, ranges: tuple[tuple[int, int], ...], step: int) -> Tensor:
    """The given ranges of columns side by side, each padded with zeros to a multiple of ``step``."""
    sources = _sources(ranges, step, tensor.device)
    out = tensor.new_empty(len(tensor), len(sources))
    grid = ceil_div(len(tensor), 32), ceil_div(len(sources), 64)
    launch(
        padded_kernel, grid, tensor, tensor.stride(0), sources, out, len(tensor), len(sources),
        ROWS=32, COLUMNS=64, num_warps=4,
    )  # fmt: skip
    return out


@lru_cache(maxsize=256)
def _sources(ranges: tuple[tuple[int, int], ...], step: int, device: torch.device) -> Tensor:
    """The source column of each column of the padded matrix; −1 for padding."""
    out: list[int] = []
    for low, high in ranges:
        out += [*range(low, high), *[-1] * (-(high - low) % step)]
    return device_ints(tuple(out), device)


@triton.jit(do_not_specialize=["rows", "columns"])
def padded_kernel(tensor, stride, sources, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Copy each column from its source column; 0 for padding."""
    m, n = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    source, row = tl.load(sources + n, n < columns, -1)[None, :], m.to(tl.int64)[:, None]
    part = tl.load(tensor + row * stride + source, (m < rows)[:, None] & (source >= 0), 0.0)
    tl.store(out + row * columns + n[None, :], part, (m < rows)[:, None] & (n < columns)[None, :])


def aligned(scores: Scores) -> Scores:
    """Return ``scores`` with x and y laid out for TMA copies: rows start at multiples of 16 bytes.

    The columns of separate dims start at such multiples, too: a product with unaligned ones takes much longer than
    this copy.
    """
    multiple = 16 // scores.y.element_size()
    if any(start % multiple for start in scores.starts):
        scores = replace(scores, y=_padded(scores.y, _ranges(scores), multiple), alignment=multiple)
    return replace(scores, x=aligned_rows(scores.x), y=aligned_rows(scores.y))


def unaligned(scores: Scores, y: Tensor) -> Tensor:
    """Remove the padding between separate dims from ``y``, which has the layout of the aligned ``scores.y``."""
    return y if scores.alignment == 1 else _padded(y, _ranges(scores), 1)


def _ranges(scores: Scores) -> tuple[tuple[int, int], ...]:
    return tuple((of_y.start, of_y.stop) for _, of_y in spans(scores))


def aligned_rows(tensor: Tensor) -> Tensor:
    """A matrix whose rows start at multiples of 16 bytes; a copy if needed."""
    multiple = 16 // tensor.element_size()
    disjoint_rows = tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]   # contiguous, not overlapping
    if disjoint_rows and tensor.stride(0) % multiple == 0 and tensor.data_ptr() % 16 == 0:
        return tensor
    buffer = tensor.new_empty(tensor.shape[0], ceil_div(tensor.shape[1], multiple) * multiple)
    return buffer[:, : tensor.shape[1]].copy_(tensor)


def descriptor(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A TMA descriptor for copies of [rows, columns] tiles."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns])


def flags(scores: Scores) -> dict[str, Any]:
    """The compile-time flags common to all kernels."""
    precision = "ieee"
    if scores.x.dtype == torch.float32:   # TF32 if torch is set to it, else three TF32 products for full precision
        precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
    return {
        "SCALED": scores.left is not None, "BIAS": scores.bias is not None, "SEPARATE": not scores.tied,
        "PRECISION": precision,
    }  # fmt: skip


def padded_width(dim: int) -> int:
    """The columns a kernel loads to cover ``dim``: a power of two, at least the 16 that tl.dot needs."""
    return max(16, 1 << (dim - 1).bit_length())


def ceil_div(length: int, size: int) -> int:
    """⌈length / size⌉. (triton.cdiv has a high call overhead.)"""
    return -(-length // size)
