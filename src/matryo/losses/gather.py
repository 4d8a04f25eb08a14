"""Gather rows from all processes; gradients flow back to the process that owns a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from matryo.errors import InputError


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
        # The losses of all processes read these rows, so their gradients are summed.
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total[distributed.get_rank() * ctx.count :][: ctx.count]


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate the [n, d] rows of all processes in rank order: [world · n, d]."""
    gathered: Tensor = _GatherRows.apply(rows.contiguous())   # type: ignore[no-untyped-call]
    return gathered


def check_even(b: Tensor, negatives: Tensor | None) -> None:
    """Raise in all processes unless each holds the same number of rows; gathering uneven rows crashes the process.

    Checked on the CPU only: on a GPU the check would synchronise.
    """
    if b.device.type != "cpu" or torch.compiler.is_compiling():
        return
    own = torch.tensor([len(b), 0 if negatives is None else len(negatives)])
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, own)
    for name, counts in zip(("positives", "negatives"), torch.stack(parts, 1).tolist(), strict=True):
        if len(set(counts)) > 1:
            rule = f"gather=True needs the same number of {name} in every process"
            got = f"{', '.join(map(str, counts))} by rank"
            raise InputError(rule, got=got, cure="use drop_last=True in the DataLoader")
