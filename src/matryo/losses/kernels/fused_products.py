"""The gradients that pulls come to: matrix products, a block at a time, or a batch of blocks of one width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.losses.kernels.scores import Scores

__all__ = ["Into", "Products"]


@dataclass(frozen=True, eq=False)
class Into:
    """Where gradients are added up."""

    x: Tensor | None
    """In float32."""
    y: Tensor | None
    """In the dtype of y: each of its numbers is written once,"""
    y_shared: Tensor | None
    """but its first columns, which small dims share with a larger one, are added up here, in float32."""
    bias: Tensor | None
    left: Tensor | None
    right: Tensor | None


class Products:
    """The products of the pulls of some columns at a time with x and y, added to the gradients of both."""

    def __init__(self, scores: Scores, into: Into) -> None:
        self.y, self.into = scores.y, into
        # By run of blocks: the x that the gradient of y takes, and where the gradient of x is added.
        self.runs = [
            (run, _part(scores.x, run.x, run), None if into.x is None else _part(into.x, run.x, run))
            for run in _runs(scores.nesting.dims, scores.starts, scores.tied, into.y_shared is not None)
        ]

    def add(self, pulls: Tensor, first: int) -> None:
        """Add what the pulls, [dims, rows, columns], give; their columns are those of the scores from ``first`` on."""
        some = slice(first, first + pulls.shape[2])
        y, shared, into_y = self.y[some], self.into.y_shared, None if self.into.y is None else self.into.y[some]
        for run, x, into_x in self.runs:
            pull = pulls[run.first] if run.count == 1 else pulls[run.first : run.first + run.count]
            if into_x is not None:
                _add_product(into_x, pull, _part(y, run.y, run))
            if run.first == 0 and shared is not None:
                _add_product(_part(shared[some], 0, run), pull.mT, x)
            elif into_y is not None:
                torch.matmul(pull.mT, x, out=_part(into_y, run.y, run))


@dataclass(frozen=True)
class _Run:
    """Blocks of one width, side by side."""

    first: int
    """The dim that adds the first of them."""
    count: int
    x: int
    """Where they begin in x,"""
    y: int
    """and in y."""
    width: int


@lru_cache(maxsize=256)
def _runs(dims: tuple[int, ...], starts: tuple[int, ...], tied: bool, alone: bool) -> tuple[_Run, ...]:
    """All blocks, in runs; the first block may have to stay alone."""
    runs: list[_Run] = []
    for level, (dim, start) in enumerate(zip(dims, starts, strict=True)):
        begin = dims[level - 1] if tied and level else 0
        last = runs[-1] if runs else None
        if last is not None and tied and last.width == dim - begin and not (alone and last.first == 0):
            runs[-1] = _Run(last.first, last.count + 1, last.x, last.y, last.width)
        else:
            runs.append(_Run(level, 1, begin, start + begin, dim - begin))
    return tuple(runs)


def _part(matrix: Tensor, start: int, run: _Run) -> Tensor:
    """The columns of a run: a matrix, or a batch of them."""
    part = matrix[:, start : start + run.count * run.width]
    return part if run.count == 1 else part.unflatten(1, (run.count, run.width)).transpose(0, 1)


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b, of matrices or batches, summed in float32 whatever a and b are."""
    add: Any = torch.ops.aten.addmm if a.dim() == 2 else torch.ops.aten.baddbmm
    if a.dtype == torch.float32 or not a.is_cuda:
        add.out(into, a.float(), b.float(), out=into)
    else:
        add.dtype_out(into, a, b, torch.float32, out=into)
