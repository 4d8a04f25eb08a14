"""The products of queries with the rows of their shortlists, in Triton: a row is read once, and nothing is put down.

Torch alone would gather the rows, write them, multiply them, write them again, and then sum.
"""

# mypy: ignore-errors
# The types of a kernel are Triton's.

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["products_at"]

_ROWS = 4   # of a program
_STEPS = 64, 512   # columns at a time, where there are few and where there are many


def products_at(columns: torch.Tensor, rows: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
    """The inner products of ``asked`` [n, width] with its own ``rows`` [n, m] of ``columns``, summed in float64."""
    out = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
    if rows.numel():
        rows = rows.contiguous()
        grid = len(rows), triton.cdiv(rows.shape[1], _ROWS)
        with torch.cuda.device_of(rows):   # Triton launches on the current one
            _products[grid](
                columns, columns.stride(0), rows, rows.shape[1], asked, asked.stride(0), out, columns.shape[1],
                ROWS=_ROWS, STEP=_STEPS[columns.shape[1] > _STEPS[0]],
            )  # fmt: skip
    return out


@triton.jit
def _products(columns, stride, rows, many, asked, apart, out, width, ROWS: tl.constexpr, STEP: tl.constexpr):
    query = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    here = place < many
    row = tl.load(rows + query * many + place, here, 0)
    # Lane by lane over all steps, and across the lanes once: every row in the same order, wherever it lies.
    sums = tl.zeros((ROWS, STEP), tl.float64)
    for start in range(0, width, STEP):
        column = start + tl.arange(0, STEP)
        inside = column < width
        vector = tl.load(asked + query * apart + column, inside, 0.0)
        read = tl.load(columns + row[:, None] * stride + column[None, :], here[:, None] & inside[None, :], 0.0)
        sums += (read.to(tl.float32) * vector[None, :]).to(tl.float64)
    tl.store(out + query * many + place, tl.sum(sums, 1), here)
