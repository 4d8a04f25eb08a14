"""What the fused kernels are called with: tiles, vectors as the hardware copies them, numbers by row and column.

Everything here is computed once for a loss, however often its kernels run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from matryo.losses.kernels.scores import Pull, Scores

__all__ = ["HIT", "Stats", "Sweep", "Tile", "descriptor", "flags", "lying", "pieces", "readable"]

HIT = 64   # rows and columns a side of what is known to hold a target or none; divides every tile


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

    @property
    def constants(self) -> dict[str, int]:
        """As the kernels call them."""
        shape = {"BM": self.rows, "BN": self.columns, "BR": self.ragged, "BK": self.step, "GROUP": self.group}
        return shape | {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True, eq=False)
class Stats:
    """What rows and columns bring to their pulls: soft · exp(s − l) = sign · 2^(s·log₂e − top), one exponential."""

    left: Tensor | None
    right: Tensor | None
    bias: Tensor | None
    sign: Tensor
    top: Tensor
    hard: Tensor
    target: Tensor
    hits: Tensor
    """Which squares of the scores hold a target."""
    hits_stride: int
    top_right: Tensor | None
    even: Tensor | None
    share: Tensor | None

    @classmethod
    def of(cls, scores: Scores, pull: Pull) -> Stats:
        """In the units of the kernels."""
        low, right = pull.soft.amin(1, keepdim=True), None
        if pull.by_column is not None and pull.soft_right is not None:
            low = torch.minimum(low, pull.soft_right.amin(1, keepdim=True))
            right = _top(pull.by_column, pull.soft_right)
        sign = torch.where(low < 0, -1.0, 1.0)
        even = None if pull.even is None else pull.even * sign
        hits = _hits(pull.target, scores.columns)
        return cls(
            scores.left, scores.right, scores.bias, sign, _top(pull.by_row, pull.soft), pull.hard * sign,
            pull.target.int(), hits, hits.stride(0), right, even, pull.share,
        )  # fmt: skip

    @cached_property
    def arguments(self) -> tuple[Tensor | int | None, ...]:
        """In the order of the kernels' arguments."""
        return tuple(getattr(self, field.name) for field in fields(self))


def _top(logs: Tensor, soft: Tensor) -> Tensor:
    return logs * math.log2(math.e) - soft.abs().log2()


def _hits(target: Tensor, columns: int) -> Tensor:
    """Which squares of the scores, [rows / 64, columns / 64], hold a target. Tiles may reach one square further."""
    squares = target.new_zeros(pieces(len(target), HIT) + 1, pieces(columns, HIT) + 2, dtype=torch.int8)
    rows = torch.arange(len(target), device=target.device) // HIT
    squares[rows, target // HIT] = 1   # −1, which is none, is the last column: no tile reaches so far
    return squares


class Sweep:
    """The operands of a sweep over the columns, as the kernels read them."""

    def __init__(self, scores: Scores, tile: Tile) -> None:
        self.scores, self.tile = scores, tile
        dims, widths = scores.nesting.dims, [high - low for low, high in scores.nesting.blocks]
        even = len(dims)   # the first dim of the even part
        while scores.tied and even and widths[even - 1] % tile.step == 0:
            even -= 1
        if even and dims[even - 1] * scores.x.element_size() % 16:   # the hardware's copies would not begin there
            even = len(dims)
        self.start = dims[even - 1] if even else 0
        if scores.tied:
            ranges = [(low, high, low, high) for low, high in scores.nesting.blocks[:even]]
        else:
            ranges = [(0, dim, start, start + dim) for dim, start in zip(dims, scores.starts, strict=True)]
        steps = [pieces(high - low, tile.ragged) for low, high, _, _ in ranges]
        self.ragged_steps = sum(steps)
        steps += [width // tile.step for width in widths[even:]]
        self.even_steps = sum(steps) - self.ragged_steps
        self.ends = _ends(tuple(steps), scores.x.device)
        self.x_ragged = _padded(scores.x, [(low, high) for low, high, _, _ in ranges], tile.ragged)
        self.y_ragged = _padded(scores.y, [(low, high) for _, _, low, high in ranges], tile.ragged)

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """What both sweeping kernels begin with."""
        tile, scores = self.tile, self.scores
        return (
            None if self.x_ragged is None else descriptor(self.x_ragged, tile.rows, tile.ragged),
            None if self.y_ragged is None else descriptor(self.y_ragged, tile.columns, tile.ragged),
            descriptor(scores.x, tile.rows, tile.step), descriptor(scores.y, tile.columns, tile.step),
            self.ends, self.ragged_steps, self.even_steps, self.start, scores.rows, scores.columns,
        )  # fmt: skip


@lru_cache(maxsize=256)   # a recorded CUDA graph must find it on the device, not copy it from memory long gone
def _ends(steps: tuple[int, ...], device: torch.device) -> Tensor:
    """After how many steps each dim ends; −1 for never."""
    return torch.tensor([*accumulate(steps), -1], dtype=torch.int32, device=device)


def _padded(tensor: Tensor, ranges: list[tuple[int, int]], step: int) -> Tensor | None:
    """Ranges of columns side by side, each padded with zeros to whole steps."""
    if not ranges:
        return None
    zeros, parts = tensor.new_zeros(tensor.shape[0], step), []
    for low, high in ranges:
        parts += [tensor[:, low:high], zeros[:, : -(high - low) % step]]
    return torch.cat(parts, 1)


def readable(scores: Scores) -> Scores:
    """The same with x and y lying as the hardware's copies of tiles want them: rows begin at multiples of 16 bytes."""
    return replace(scores, x=lying(scores.x), y=lying(scores.y))


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


def flags(scores: Scores, stats: Stats | None = None, bias_sum: bool = False) -> dict[str, Any]:
    """What a kernel is compiled for."""
    precision = "ieee"
    if scores.x.dtype == torch.float32:   # by tensor cores as torch would, or three times over for full precision
        precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
    found: dict[str, Any] = {
        "SCALED": scores.left is not None, "BIAS": scores.bias is not None, "RESTART": not scores.tied,
        "PRECISION": precision,
    }  # fmt: skip
    if stats is not None:
        found |= {"OVER_ROWS": stats.top_right is not None, "EVEN": stats.even is not None, "BIAS_SUM": bias_sum}
        found["HIT"] = HIT
    return found


def pieces(length: int, size: int) -> int:
    """How many pieces of a size a length takes. (Triton's own takes longer to call than to compute.)"""
    return -(-length // size)
