"""What rows and columns bring to their pulls: numbers by dim and row or column.

Everything here is computed once for a loss, however often its kernels run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from matryo.losses.engines.contract import Pull, Scores
from matryo.losses.engines.triton.launch import launch
from matryo.losses.engines.triton.operands import pieces
from matryo.losses.engines.triton.pulls import LOG2E

__all__ = ["Stats"]

_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Stats:
    """What pulls are made of: soft · exp(s − l) = ± 2^(s·log₂e − top), one exponential."""

    left: Tensor | None
    right: Tensor | None
    bias: Tensor | None
    negative: Tensor
    """[dims] of int32: 0, or 1 where soft is below 0."""
    top: Tensor
    top_right: Tensor | None
    even: Tensor | None
    share: Tensor | None

    @classmethod
    def of(cls, scores: Scores, pull: Pull) -> Stats:
        """In the units of the kernels."""
        negative = pull.soft.new_zeros(len(pull.soft), dtype=torch.int32)
        top, right = _top(pull.by_row, pull.soft, negative), None
        if pull.by_column is not None and pull.soft_right is not None:
            right = _top(pull.by_column, pull.soft_right, negative)
        return cls(scores.left, scores.right, scores.bias, negative, top, right, pull.even, pull.share)

    def flags(self, bias_sum: bool) -> dict[str, Any]:
        """What a kernel is compiled for, besides."""
        return {"OVER_ROWS": self.top_right is not None, "EVEN": self.even is not None, "BIAS_SUM": bias_sum}

    @cached_property
    def arguments(self) -> tuple[Tensor | None, ...]:
        """In the order of the kernels' arguments."""
        return tuple(getattr(self, field.name) for field in fields(self))


def _top(logs: Tensor, soft: Tensor, negative: Tensor) -> Tensor:
    dims, count = logs.shape
    top = torch.empty_like(logs)
    grid = pieces(count, _BLOCK), dims
    launch(top_kernel, grid, logs, soft, top, negative, count, BLOCK=_BLOCK, num_warps=4)
    return top


@triton.jit(do_not_specialize=["count"])
def top_kernel(logs, soft, top, negative, count, BLOCK: tl.constexpr):
    """logs · log₂e − log₂ |soft|, and the sign of soft, which is one at each dim."""
    n, level = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    ok, at = n < count, level.to(tl.int64) * count + n
    pulled = tl.load(soft + at, ok, 0.0)
    log = tl.log2(tl.where(pulled == 0, 1.0, tl.abs(pulled)))
    tl.store(top + at, tl.where(pulled == 0, float("inf"), tl.load(logs + at, ok, 0.0) * LOG2E - log), ok)
    tl.store(negative + level, 1, tl.min(pulled, 0) < 0)
