"""Softmax statistics per dim and row or column, in the form that the gradient kernels read.

They are computed once per backward pass, however often the kernels run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from matryo.losses.engines.contract import ScoreGradient, Scores
from matryo.losses.engines.triton.launch import launch
from matryo.losses.engines.triton.operands import ceil_div
from matryo.losses.engines.triton.score_gradient import LOG2E

_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Stats:
    """Statistics such that row_coef · exp(s − row_lse) = ± 2^(s · log₂e − row_offset): one exponential per score."""

    left: Tensor | None
    right: Tensor | None
    bias: Tensor | None
    negative: Tensor
    """[dims], int32: 1 where ``row_coef`` is negative, else 0."""
    row_offset: Tensor
    column_offset: Tensor | None
    share_coef: Tensor | None
    share: Tensor | None

    @classmethod
    def of(cls, scores: Scores, grad: ScoreGradient) -> Stats:
        """Convert log-sum-exps and coefficients to base-2 offsets."""
        negative = grad.row_coef.new_zeros(len(grad.row_coef), dtype=torch.int32)
        row_offset, right = _offsets(grad.row_lse, grad.row_coef, negative), None
        if grad.column_lse is not None and grad.column_coef is not None:
            right = _offsets(grad.column_lse, grad.column_coef, negative)
        return cls(scores.left, scores.right, scores.bias, negative, row_offset, right, grad.share_coef, grad.share)

    def flags(self, bias_sum: bool) -> dict[str, Any]:
        """The compile-time flags of the gradient kernels, besides :func:`operands.flags`."""
        return {"OVER_ROWS": self.column_offset is not None, "SHARE": self.share_coef is not None, "BIAS_SUM": bias_sum}

    @cached_property
    def arguments(self) -> tuple[Tensor | None, ...]:
        """The fields in the order of the kernels' arguments."""
        return tuple(getattr(self, field.name) for field in fields(self))


def _offsets(lse: Tensor, row_coef: Tensor, negative: Tensor) -> Tensor:
    dims, count = lse.shape
    row_offset = torch.empty_like(lse)
    grid = ceil_div(count, _BLOCK), dims
    launch(offset_kernel, grid, lse, row_coef, row_offset, negative, count, BLOCK=_BLOCK, num_warps=4)
    return row_offset


@triton.jit(do_not_specialize=["count"])
def offset_kernel(lse, row_coef, row_offset, negative, count, BLOCK: tl.constexpr):
    """Write lse · log₂e − log₂|coef| (∞ where coef is 0) and, per dim, whether coef is negative."""
    n, level = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    ok, at = n < count, level.to(tl.int64) * count + n
    coef_at = tl.load(row_coef + at, ok, 0.0)
    log = tl.log2(tl.where(coef_at == 0, 1.0, tl.abs(coef_at)))
    tl.store(row_offset + at, tl.where(coef_at == 0, float("inf"), tl.load(lse + at, ok, 0.0) * LOG2E - log), ok)
    tl.store(negative + level, 1, tl.min(coef_at, 0) < 0)
