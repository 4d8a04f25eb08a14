"""The pulls of one tile of scores, in Triton: what its rows and columns bring, and what they come to."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOG2E", "as_multiplied", "of_columns", "of_rows", "pulls_of", "turn_of"]

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def as_multiplied(tile, PRECISION: tl.constexpr):
    """A float32 tile as a product takes it: without its last 13 bits, if that is in TF32."""
    if PRECISION == "tf32":
        tile = (tile.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return tile


@triton.jit
def turn_of(negative):
    """1, or −1 where soft is below 0: pulls are computed as if it were above, and turned at the end."""
    return 1.0 - 2.0 * negative.to(tl.float32)


@triton.jit
def of_rows(level, m, rows, left, top, even, SCALED: tl.constexpr, EVEN: tl.constexpr):
    """What every row brings to its pulls: (there?, left, top, even)."""
    ok, at = m < rows, level * rows + m
    here = tl.load(top + at, ok, float("inf"))
    scale, take = here, here   # where there are none, nobody asks
    if SCALED:
        scale = tl.load(left + at, ok, 0.0)
    if EVEN:
        take = tl.load(even + at, ok, 0.0)
    return ok, scale, here, take


@triton.jit
def of_columns(
    level, n, columns, right, bias, top_right, share,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESTART: tl.constexpr, OVER_ROWS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """What every column brings: (there?, right, bias, top, share)."""
    ok, at = n < columns, level * columns + n
    scale, shift, here, part = n, n, n, n
    if SCALED:
        scale = tl.load(right + at, ok, 0.0)
    if BIAS:
        shift = tl.load(bias + (level * columns if RESTART else 0) + n, ok, 0.0) * LOG2E
    if OVER_ROWS:
        here = tl.load(top_right + at, ok, float("inf"))
    if EVEN:
        part = tl.load(share + n, ok, 0.0)
    return ok, scale, shift, here, part


@triton.jit
def pulls_of(
    products, row, column, turn, edge, SCALED: tl.constexpr, BIAS: tl.constexpr, OVER_ROWS: tl.constexpr,
    EVEN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The pull of every score of a tile, but for its turn and what targets take.

    Rows stand and columns lie, or the other way round. Exponents are those of 2, and soft is part of them. Few tiles
    reach beyond the last column, and only those look there: ``edge`` says which.
    """
    ok, left, top, even = row
    there, right, bias, top_right, share = column
    score = products * LOG2E
    if SCALED:
        score = products * (left * LOG2E) * right
    if BIAS:
        score += bias
    if MASKED:  # noqa: SIM102
        if edge:   # a row's log-sum-exp bounds no score there
            score = tl.where(there, score, float("-inf"))
    p = tl.exp2(score - top)
    if OVER_ROWS:   # a column's log-sum-exp bounds no score beyond the last row
        p += tl.exp2(tl.where(ok, score, float("-inf")) - top_right)
    if EVEN:
        p -= even * turn * share
    return p
