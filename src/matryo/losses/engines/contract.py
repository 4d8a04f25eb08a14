"""The interface of a loss engine: log-sum-exps and gradients of prefix scores, without storing the scores.

Let s[i, b, v] be the score of row b against column v at dim m_i (an example and a class, or a query and a document).
A nested loss is a sum of log-sum-exps of scores minus single scores. Its value and its gradients are sums over all
(b, v), so an engine computes them tile by tile and never stores the [dims, rows, columns] scores.
An *engine* is a module with two functions:

    reductions(scores, target, over_rows=False) -> (log-sum-exp per row [dims, rows],
                                                    score of each row's target [dims, rows],
                                                    log-sum-exp per column [dims, columns], or None)
    teaching(scores, row_lse, teachers)         -> mean score under the softmax of another dim, [dims − 1, rows]
                                                   (only the chunked engine)
    gradients(scores, grad, ...)                -> Gradients
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from matryo.nesting import Nesting


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of every row of ``x`` against every row of ``y``, at each dim of a nesting.

    Tied: all dims share the columns of ``y``, so the products are cumulative sums over blocks:

        s[i, b, v] = left[i, b] · right[i, v] · ⟨x[b, :m_i], y[v, :m_i]⟩ + bias[v]

    Separate: each dim has its own columns in ``y``, side by side:

        s[i, b, v] = ⟨x[b, :m_i], y[v, start_i : start_i + m_i]⟩ + bias[i, v]
    """

    x: Tensor
    """[rows, ≥ d]."""
    y: Tensor
    """[columns, ≥ d], or [columns, Σ m] if the dims are separate; same dtype as ``x``."""
    nesting: Nesting
    tied: bool = True
    bias: Tensor | None = None
    """[columns], or [dims, columns] if the dims are separate."""
    left: Tensor | None = None
    """[dims, rows] in float32 (float64 for float64 vectors), e.g. inverse norms. Only for tied dims."""
    right: Tensor | None = None
    """[dims, columns]; set if and only if ``left`` is."""
    alignment: int = 1
    """If the dims are separate, the columns of each dim start at a multiple of this in ``y``."""

    @property
    def rows(self) -> int:
        """The number of rows: examples, or queries."""
        return self.x.shape[0]

    @property
    def columns(self) -> int:
        """The number of columns: classes, or documents."""
        return self.y.shape[0]

    @property
    def starts(self) -> tuple[int, ...]:
        """The first column of each dim in ``y``; 0 for every dim if tied."""
        if self.tied:
            return (0,) * len(self.nesting)
        padded = (-(-dim // self.alignment) * self.alignment for dim in self.nesting.dims[:-1])
        return tuple(accumulate(padded, initial=0))


@dataclass(frozen=True, eq=False)
class ScoreGradient:
    """The gradient of a loss with respect to the scores, given by its coefficients:

        g[i, b, v] = row_coef[i, b] · exp(s − row_lse[i, b]) + column_coef[i, v] · exp(s − column_lse[i, v])
                     − target_coef[i, b] · [v = target[b]] − share_coef[i, b] · share[v]
                     − teacher_coef[i, b] · exp(s[teacher of i] − row_lse[teacher of i, b])

    All tensors are float32 (float64 for float64 vectors). None means 0.
    """  # fmt: skip

    row_lse: Tensor
    """[dims, rows]: log-sum-exp over the columns."""
    row_coef: Tensor
    """[dims, rows]: the upstream gradient of ``row_lse``. Invariant: all values of one dim have the same sign."""
    target_coef: Tensor
    """[dims, rows]: the negated upstream gradient of ``at_target``."""
    target: Tensor
    """[rows], int64; −1 if a row has no target."""
    at_target: Tensor
    """[dims, rows]: the score of the target."""
    column_lse: Tensor | None = None
    """[dims, columns]: log-sum-exp over the rows."""
    column_coef: Tensor | None = None
    """[dims, columns]: the upstream gradient of ``column_lse``; same sign as ``row_coef``."""
    share_coef: Tensor | None = None
    """[dims, rows]: the coefficient of the label-smoothing term."""
    share: Tensor | None = None
    """[columns]: the weight of each column in the label-smoothing term."""
    teacher_coef: Tensor | None = None
    """[dims − 1, rows]: the negated upstream gradient of ``at_teacher``."""
    teachers: tuple[int, ...] = ()
    """The number of the teacher of each dim but the largest: a larger dim."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients with respect to the inputs of :class:`Scores`; None where not requested."""

    x: Tensor | None
    """Σ_i Σ_v g · left · right · y[v, :m_i], in the shape and dtype of x."""
    y: Tensor | None
    """Σ_i Σ_b g · left · right · x[b, :m_i], in the shape and dtype of y."""
    bias: Tensor | None
    """Σ_b g, also summed over the dims if they are tied; float32 (float64)."""
    left: Tensor | None
    """Σ_v g · (s − bias), [dims, rows]: the gradient with respect to log(left); None without ``left``."""
    right: Tensor | None
    """Σ_b g · (s − bias), [dims, columns]: the gradient with respect to log(right); None without ``right``."""


def spans(scores: Scores) -> list[tuple[slice, slice]]:
    """The columns of x and of y that each dim multiplies: its block if tied, else all its columns."""
    if scores.tied:
        return [(slice(low, high), slice(low, high)) for low, high in scores.nesting.blocks]
    starts = zip(scores.nesting.dims, scores.starts, strict=True)
    return [(slice(0, dim), slice(start, start + dim)) for dim, start in starts]


def slices(count: int, size: int) -> Iterator[slice]:
    """Consecutive slices of ``range(count)``, each of at most ``max(size, 1)`` items."""
    size = max(size, 1)
    return (slice(low, min(low + size, count)) for low in range(0, count, size))
