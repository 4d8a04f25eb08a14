"""Triton functions for the gradient of the loss with respect to one tile of scores.

``level`` is the index of a dim in the nesting. Exponentials are computed in base 2: scores are multiplied by log₂(e).
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def as_operand(tile, PRECISION: tl.constexpr):
    """Round a float32 tile as a matrix product does: TF32 drops the last 13 bits of the mantissa."""
    if PRECISION == "tf32":
        tile = (tile.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return tile


@triton.jit
def sign_of(negative):
    """Return −1 if ``row_coef`` is negative at this dim, else 1.

    Gradients are computed for |row_coef| and multiplied by the sign at the end.
    """
    return 1.0 - 2.0 * negative.to(tl.float32)


@triton.jit
def load_rows(level, m, rows, left, row_offset, share_coef, SCALED: tl.constexpr, SHARE: tl.constexpr):
    """Load the row statistics: (row exists, left, row_offset, share_coef). Values not needed are arbitrary."""
    row_ok, at = m < rows, level * rows + m
    here = tl.load(row_offset + at, row_ok, float("inf"))
    scale, coef = here, here   # placeholders, never read unless loaded below
    if SCALED:
        scale = tl.load(left + at, row_ok, 0.0)
    if SHARE:
        coef = tl.load(share_coef + at, row_ok, 0.0)
    return row_ok, scale, here, coef


@triton.jit
def load_columns(
    level, n, columns, right, bias, column_offset, share,
    SCALED: tl.constexpr, BIAS: tl.constexpr, SEPARATE: tl.constexpr, OVER_ROWS: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """Load the column statistics: (column exists, right, bias · log₂e, column_offset, share)."""
    row_ok, at = n < columns, level * columns + n
    scale, shift, here, weight = n, n, n, n
    if SCALED:
        scale = tl.load(right + at, row_ok, 0.0)
    if BIAS:
        shift = tl.load(bias + (level * columns if SEPARATE else 0) + n, row_ok, 0.0) * LOG2E
    if OVER_ROWS:
        here = tl.load(column_offset + at, row_ok, float("inf"))
    if SHARE:
        weight = tl.load(share + n, row_ok, 0.0)
    return row_ok, scale, shift, here, weight


@triton.jit
def score_gradients(
    products, row, column, sign, edge, SCALED: tl.constexpr, BIAS: tl.constexpr, OVER_ROWS: tl.constexpr,
    SHARE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return ∂loss/∂score for a tile, without its sign and without the target term.

    ``row`` and ``column`` are broadcast against ``products``, so either may be the first axis. Coefficients are part of
    the exponent: |row_coef| · exp(s − lse) = 2^(s · log₂e − row_offset). ``edge`` is true for tiles that extend
    beyond the last column; only these mask the columns that do not exist.
    """
    row_ok, left, row_offset, share_coef = row
    column_ok, right, bias, column_offset, share = column
    score = products * LOG2E
    if SCALED:
        score = products * (left * LOG2E) * right
    if BIAS:
        score += bias
    if MASKED:  # noqa: SIM102
        if edge:   # padded columns are not part of the log-sum-exp, so exp2 could overflow
            score = tl.where(column_ok, score, float("-inf"))
    p = tl.exp2(score - row_offset)
    if OVER_ROWS:   # padded rows likewise, against the column's log-sum-exp
        p += tl.exp2(tl.where(row_ok, score, float("-inf")) - column_offset)
    if SHARE:
        p -= share_coef * sign * share
    return p
