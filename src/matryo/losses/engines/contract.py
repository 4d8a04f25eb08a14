"""What the engines of nested losses compute: scores of all rows against all columns at each dim, never kept.

A nested loss, whatever it is called, needs two things of the scores s[i, b, v] at dim m_i of row b and column v (an
example and a class, a query and a document): their log-sum-exp, and the gradient of a loss that is a sum of such
log-sum-exps less single scores. Both are sums over all pairs, so no array of rows × columns has to exist. An
*engine* is a module with two functions over these types:

    reductions(scores, target, over_rows=False) -> (log-sum-exps by row, [dims, rows], the scores of targets,
                                                    [dims, rows], log-sum-exps by column, [dims, columns], or None)
    gradients(scores, pull, ...)                -> Gradients
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.nesting import Nesting

__all__ = ["Gradients", "Pull", "Scores", "slices", "spans"]


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of every row of ``x`` against every row of ``y``, at each dim of a nesting.

    Tied, the dims share the columns of ``y``, and the products are running sums over blocks:

        s[i, b, v] = left[i, b] · right[i, v] · ⟨x[b, :m_i], y[v, :m_i]⟩ + bias[v]

    Separate, every dim has columns of its own in ``y``, side by side:

        s[i, b, v] = ⟨x[b, :m_i], y[v, start_i : start_i + m_i]⟩ + bias[i, v]
    """

    x: Tensor
    """[rows, ≥ d]."""
    y: Tensor
    """[columns, ≥ d], or [columns, Σ m] where the dims are separate. Of the dtype of ``x``."""
    nesting: Nesting
    tied: bool = True
    bias: Tensor | None = None
    """[columns], or [dims, columns] where the dims are separate."""
    left: Tensor | None = None
    """[dims, rows] in float32 (float64 for vectors in float64), only if tied; one over the norms, say."""
    right: Tensor | None = None
    """[dims, columns], with ``left``."""
    apart: int = 1
    """Where the dims are separate, each begins at a multiple of this in ``y``."""

    @property
    def rows(self) -> int:
        """How many rows."""
        return self.x.shape[0]

    @property
    def columns(self) -> int:
        """How many columns: classes, or documents."""
        return self.y.shape[0]

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the columns of each dim begin in ``y``: 0 if tied."""
        if self.tied:
            return (0,) * len(self.nesting)
        return tuple(accumulate((-(-dim // self.apart) * self.apart for dim in self.nesting.dims[:-1]), initial=0))


@dataclass(frozen=True, eq=False)
class Pull:
    """How much of a loss each score pulls, its gradient:

        p[i, b, v] = soft[i, b] · exp(s − by_row[i, b]) + soft_right[i, v] · exp(s − by_column[i, v])
                     − hard[i, b] · [v = target[b]] − even[i, b] · share[v]

    All in float32 (float64 for vectors in float64). What is None is 0.
    """  # fmt: skip

    by_row: Tensor
    """[dims, rows]: the log-sum-exp over the columns."""
    soft: Tensor
    """[dims, rows], of one sign at each dim, which is that of the upstream gradient."""
    hard: Tensor
    """[dims, rows]."""
    target: Tensor
    """[rows] of int64; −1 for none."""
    at_target: Tensor
    """[dims, rows]: its score."""
    by_column: Tensor | None = None
    """[dims, columns]: the log-sum-exp over the rows."""
    soft_right: Tensor | None = None
    """[dims, columns], with ``by_column``; of the sign that soft has."""
    even: Tensor | None = None
    """[dims, rows]: what label smoothing takes from every column,"""
    share: Tensor | None = None
    """[columns]: by this share."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradient by everything a score is made of, with the pull p; None for what was not asked for."""

    x: Tensor | None
    """Σ_i Σ_v p · left · right · y[v, :m_i], [rows, width of x] in the dtype of x."""
    y: Tensor | None
    """The same for y."""
    bias: Tensor | None
    """Σ_b p, summed over the dims if they are tied; in float32 (float64)."""
    left: Tensor | None
    """Σ_v p · (s − bias), [dims, rows]: by the logarithm of left; only where the scores have a left."""
    right: Tensor | None
    """Σ_b p · (s − bias), [dims, columns]."""


def spans(scores: Scores) -> list[tuple[slice, slice]]:
    """The columns of x, and those of y, that each dim multiplies: its block if tied, else all its own."""
    if scores.tied:
        return [(slice(low, high), slice(low, high)) for low, high in scores.nesting.blocks]
    starts = zip(scores.nesting.dims, scores.starts, strict=True)
    return [(slice(0, dim), slice(start, start + dim)) for dim, start in starts]


def slices(count: int, size: int) -> Iterator[slice]:
    """Of at most ``size``, one after the other; at least 1."""
    size = max(size, 1)
    return (slice(low, min(low + size, count)) for low in range(0, count, size))
