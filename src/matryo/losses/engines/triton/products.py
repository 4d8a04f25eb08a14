"""The gradients of x and y from stored score gradients: one matrix product per block, batched over equal widths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.losses.engines.contract import Scores


@dataclass(frozen=True, eq=False)
class Buffers:
    """The tensors in which the gradients accumulate."""

    x: Tensor | None
    """[rows, width of x], float32."""
    y: Tensor | None
    """In the shape and dtype of y. Each element is written once, with the sum over all large dims."""
    y_small: Tensor | None
    """The part of the small dims, [columns, largest small dim], float32."""
    bias: Tensor | None
    left: Tensor | None
    right: Tensor | None


class Products:
    """Multiplies score gradients with x and y and adds the products to the gradients, one piece of columns at a time.

    All views are made in advance: on a slow host, making a view takes as long as launching a product.
    """

    def __init__(self, scores: Scores, buffers: Buffers, grads: Tensor, lowest: int) -> None:
        runs = _runs(scores.nesting.dims[lowest:], scores.starts[lowest:], scores.tied)
        self.parts = [_Part.of(run, scores, buffers, grads) for run in runs]

    def add(self, number: int) -> None:
        """Add the products of the ``number``-th piece of columns, whose score gradients are in place."""
        for part in self.parts:
            part.add(number)


@dataclass(frozen=True, eq=False)
class _Part:
    """The operands of one run of blocks; y and its gradient are split into pieces of columns."""

    x: Tensor
    into_x: Tensor | None
    y: tuple[Tensor, ...]
    into_y: tuple[Tensor, ...] | None
    grads: tuple[Tensor, Tensor]
    """The score gradients of a full piece, and of the last one, which may be narrower."""

    @classmethod
    def of(cls, run: _Run, scores: Scores, buffers: Buffers, grads: Tensor) -> _Part:
        width, grad = grads.shape[2], grads[run.first : run.first + run.count]
        if run.count == 1:
            grad = grad[0]
        return cls(
            _run_columns(scores.x, run.x, run),
            None if buffers.x is None else _run_columns(buffers.x, run.x, run),
            _run_columns(scores.y, run.y, run).split(width, -2),
            None if buffers.y is None else _run_columns(buffers.y, run.y, run).split(width, -2),
            (grad, grad[..., : scores.columns % width or width]),
        )

    def add(self, number: int) -> None:
        grad = self.grads[number == len(self.y) - 1]
        if self.into_x is not None:
            _add_product(self.into_x, grad, self.y[number])
        if self.into_y is not None:
            (torch.mm if grad.dim() == 2 else torch.bmm)(grad.mT, self.x, out=self.into_y[number])


@dataclass(frozen=True)
class _Run:
    """Adjacent blocks of equal width."""

    first: int
    """The index of the dim that adds the first block."""
    count: int
    x: int
    """The first column in x."""
    y: int
    """The first column in y."""
    width: int


@lru_cache(maxsize=256)
def _runs(dims: tuple[int, ...], starts: tuple[int, ...], tied: bool) -> tuple[_Run, ...]:
    """Group the blocks of all dims into runs."""
    runs: list[_Run] = []
    for level, (dim, start) in enumerate(zip(dims, starts, strict=True)):
        begin = dims[level - 1] if tied and level else 0
        last = runs[-1] if runs else None
        if last is not None and tied and last.width == dim - begin:
            runs[-1] = _Run(last.first, last.count + 1, last.x, last.y, last.width)
        else:
            runs.append(_Run(level, 1, begin, start + begin, dim - begin))
    return tuple(runs)


def _run_columns(matrix: Tensor, start: int, run: _Run) -> Tensor:
    """The columns of a run: [rows, width] for a single block, else [blocks, rows, width]."""
    part = matrix[:, start : start + run.count * run.width]
    return part if run.count == 1 else part.unflatten(1, (run.count, run.width)).transpose(0, 1)


def _add_product(buffers: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b for matrices or batches, accumulated in float32 whatever the dtype of a and b."""
    add: Any = torch.ops.aten.addmm if a.dim() == 2 else torch.ops.aten.baddbmm
    if a.dtype == torch.float32 or not a.is_cuda:
        add.out(buffers, a.float(), b.float(), out=buffers)
    else:
        add.dtype_out(buffers, a, b, torch.float32, out=buffers)
