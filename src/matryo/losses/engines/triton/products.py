"""The gradients that pulls come to: matrix products, a block at a time, or a batch of blocks of one width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.losses.engines.contract import Scores

__all__ = ["Into", "Products"]


@dataclass(frozen=True, eq=False)
class Into:
    """Where gradients are added up."""

    x: Tensor | None
    """In float32."""
    y: Tensor | None
    """In the dtype of y: each of its numbers is written once, with what all large dims give."""
    y_small: Tensor | None
    """What small dims give its first columns, in float32."""
    bias: Tensor | None
    left: Tensor | None
    right: Tensor | None


class Products:
    """The products of pulls with x and y, added to the gradients of both, for some columns at a time.

    Everything is cut into pieces beforehand: on a slow host, cutting takes as long as asking for a product.
    """

    def __init__(self, scores: Scores, into: Into, pulls: Tensor, lowest: int) -> None:
        runs = _runs(scores.nesting.dims[lowest:], scores.starts[lowest:], scores.tied)
        self.parts = [_Part.of(run, scores, into, pulls) for run in runs]

    def add(self, number: int) -> None:
        """Add what the pulls give, now that they are those of this piece of the columns."""
        for part in self.parts:
            part.add(number)


@dataclass(frozen=True, eq=False)
class _Part:
    """The operands of one run of blocks; those that have columns of the scores, in pieces."""

    x: Tensor
    into_x: Tensor | None
    y: tuple[Tensor, ...]
    into_y: tuple[Tensor, ...] | None
    pulls: tuple[Tensor, Tensor]
    """All, and those of the last piece, which may be narrower."""

    @classmethod
    def of(cls, run: _Run, scores: Scores, into: Into, pulls: Tensor) -> _Part:
        width, pull = pulls.shape[2], pulls[run.first : run.first + run.count]
        if run.count == 1:
            pull = pull[0]
        return cls(
            _columns(scores.x, run.x, run),
            None if into.x is None else _columns(into.x, run.x, run),
            _columns(scores.y, run.y, run).split(width, -2),
            None if into.y is None else _columns(into.y, run.y, run).split(width, -2),
            (pull, pull[..., : scores.columns % width or width]),
        )

    def add(self, number: int) -> None:
        pull = self.pulls[number == len(self.y) - 1]
        if self.into_x is not None:
            _add_product(self.into_x, pull, self.y[number])
        if self.into_y is not None:
            (torch.mm if pull.dim() == 2 else torch.bmm)(pull.mT, self.x, out=self.into_y[number])


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
def _runs(dims: tuple[int, ...], starts: tuple[int, ...], tied: bool) -> tuple[_Run, ...]:
    """All blocks, in runs."""
    runs: list[_Run] = []
    for level, (dim, start) in enumerate(zip(dims, starts, strict=True)):
        begin = dims[level - 1] if tied and level else 0
        last = runs[-1] if runs else None
        if last is not None and tied and last.width == dim - begin:
            runs[-1] = _Run(last.first, last.count + 1, last.x, last.y, last.width)
        else:
            runs.append(_Run(level, 1, begin, start + begin, dim - begin))
    return tuple(runs)


def _columns(matrix: Tensor, start: int, run: _Run) -> Tensor:
    """Those of a run: a matrix, or a batch of them."""
    part = matrix[:, start : start + run.count * run.width]
    return part if run.count == 1 else part.unflatten(1, (run.count, run.width)).transpose(0, 1)


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b, of matrices or batches, summed in float32 whatever a and b are."""
    add: Any = torch.ops.aten.addmm if a.dim() == 2 else torch.ops.aten.baddbmm
    if a.dtype == torch.float32 or not a.is_cuda:
        add.out(into, a.float(), b.float(), out=into)
    else:
        add.dtype_out(into, a, b, torch.float32, out=into)
