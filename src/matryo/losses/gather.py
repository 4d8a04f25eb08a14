"""Rows of all processes, in the order of their ranks; gradients go back to the process that owns a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from matryo.errors import InputError

__all__ = ["check_even", "gather_rows"]


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.count = len(rows)
        parts = [torch.empty_like(rows) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # Every process has a loss of its own that reads these rows: their gradients add up.
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total[distributed.get_rank() * ctx.count :][: ctx.count]


def gather_rows(rows: Tensor) -> Tensor:
    """[world · n, d] of each process's [n, d]."""
    gathered: Tensor = _GatherRows.apply(rows.contiguous())   # type: ignore[no-untyped-call]
    return gathered


def check_even(b: Tensor, negatives: Tensor | None) -> None:
    """Raise, in all processes, unless they hold as many rows: to gather others ends a process without a word of Python.

    On the CPU only: a GPU would have to be waited for.
    """
    if b.device.type != "cpu" or torch.compiler.is_compiling():
        return
    own = torch.tensor([len(b), 0 if negatives is None else len(negatives)])
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, own)
    for what, counts in zip(("positives", "negatives"), torch.stack(parts, 1).tolist(), strict=True):
        if len(set(counts)) > 1:
            raise InputError(
                f"every process must hold as many {what} for gather=True",
                got=f"{', '.join(map(str, counts))} by rank",
                cure="drop the last, smaller batch: drop_last=True in a DataLoader",
            )
