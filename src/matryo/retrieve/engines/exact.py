"""Exact scores in float64, and ceilings: bounds on them from sums in float32.

Exact search selects rows by fast float32 sums, and ranks them by exact scores. It is certain that no row was missed,
because a ceiling is never below the exact score: a row whose ceiling is below the k-th best exact score is not one of
the best k. The proof has three parts, with u = 2⁻²⁴ and d columns.

1. Whatever the order of the sum, and with or without fused operations, a float32 inner product differs from the exact
   one by at most d·u/(1 − d·u) · Σ|xᵢ||qᵢ|, which is at most d·u/(1 − d·u) · ‖x‖‖q‖ (Cauchy–Schwarz).
2. The norms, which were summed in float64, and each of the few operations that follow are exact to u, relative to the
   largest operand. All of them together stay within (d + 32)·2u of ‖x‖‖q‖, or of ‖x‖² + ‖q‖² ≥ 2‖x‖‖q‖ for L2.
3. Products too small for float32 lose at most 2⁻¹²⁶ each, even where the processor flushes them to zero.

Squared differences have no cancellation: their float32 sum is exact to (d + 32)·2u of itself.

An exact score depends on the row and the query alone, not on the place of the row, nor on the rows beside it. So equal
rows have equal scores, and the smaller row wins the tie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.engines.numpy.shortlist import gathered_tiles

if TYPE_CHECKING:
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Doubles, Floats, Indices

_FLUSHED = 2.0**-126   # the most that a product loses by underflow
_SMALL = 2.0**-90   # below this norm, underflow may exceed the rounding errors of a cosine


def ceilings(metric: Metric, sums: Floats, norms: Floats, query_norms: Floats, dim: int) -> Floats:
    """Return a bound on the exact score of each pair, from float32 inner products ``sums``, which are overwritten.

    ``norms`` [rows] and ``query_norms`` [queries, 1] are those of the first ``dim`` columns.
    """
    error = np.float32(_error(dim))
    if metric == "cosine":
        floor = np.finfo(np.float32).tiny   # a zero vector has cosine 0 with everything
        sums *= np.reciprocal(np.maximum(norms, floor))
        sums *= np.reciprocal(np.maximum(query_norms, floor))
        sums += error + np.float32(3) * _is_small(norms)   # more than any cosine
        if (small := _is_small(query_norms)).any():
            sums += np.float32(3) * small
    elif metric == "ip":
        sums += error * norms.max(initial=0) * query_norms + np.float32(dim * _FLUSHED)
    else:
        sums *= np.float32(2)
        sums -= np.square(norms) * (1 - error)
        sums -= np.square(query_norms) * (1 - error) - np.float32(4 * dim * _FLUSHED)
    return sums


def slack(metric: Metric, norms: Floats, query_norms: Floats, dim: int) -> Floats:
    """Return the most by which an exact score exceeds its float32 score, given both norms."""
    if metric == "cosine":
        return np.float32(_error(dim)) + np.float32(3) * (_is_small(norms) + _is_small(query_norms))
    sizes = norms * query_norms if metric == "ip" else np.square(norms) + np.square(query_norms)
    return np.float32(_error(dim)) * sizes + np.float32(4 * dim * _FLUSHED)


def distance_ceilings(squares: Floats, dim: int) -> Floats:
    """Return a bound on each exact L2 score from sums of squared float32 differences, which are overwritten."""
    squares *= np.float32(_error(dim) - 1)
    squares += np.float32(dim * _FLUSHED)
    return squares


def exact_scores(request: Request, rows: Indices, dim: int) -> Doubles:
    """Return the scores of each query with its own ``rows`` [queries, n] at ``dim``, in float64; −∞ for row −1."""
    blocks, queries, metric = request.blocks, request.queries[:, :dim].astype(np.float64), request.metric
    sums, squares = np.zeros(rows.shape), np.zeros(rows.shape)
    for number, (low, high) in enumerate(blocks.nesting.blocks[: blocks.level(dim) + 1]):
        for tile in gathered_tiles(rows.shape, 8 * (high - low)):
            wanted = np.maximum(rows[tile], 0)
            read = blocks.columns(number, wanted.ravel()).astype(np.float64).reshape(*wanted.shape, -1)
            query = queries[tile[0], None, low:high]
            if metric == "l2":   # from norms, small distances would be lost
                read -= query
                query = read
            # Not BLAS: its rounding depends on the position of a row in the matrix.
            sums[tile] += np.multiply(read, query).sum(2)
            if metric == "cosine":
                squares[tile] += np.square(read, out=read).sum(2)
    if metric == "l2":
        np.negative(sums, out=sums)
    elif metric == "cosine":
        # Of the product, so that the cosine of equal vectors is exactly 1. A zero vector has cosine 0.
        lengths = np.sqrt(squares * np.square(queries).sum(1, keepdims=True))
        np.divide(sums, lengths, out=sums, where=lengths > 0)
    return np.where(rows < 0, -np.inf, sums)


def ranked(rows: Indices, scores: Doubles, keep: int) -> tuple[Indices, Doubles]:
    """Return the best ``keep`` rows of each query and their scores, best first; of equal scores the smaller row first.

    >>> [array.tolist() for array in ranked(np.array([[7, -1, 3, 5]]), np.array([[0.5, -np.inf, 0.5, 2]]), 3)]
    [[[5, 3, 7]], [[2.0, 0.5, 0.5]]]
    """
    best = np.lexsort((rows, -scores), axis=1)[:, :keep]
    return np.take_along_axis(rows, best, 1), np.take_along_axis(scores, best, 1)


def _error(dim: int) -> float:
    return (dim + 32) * 2.0**-23


def _is_small(norms: Floats) -> Floats:
    return ((norms > 0) & (norms < _SMALL)).astype(np.float32)

