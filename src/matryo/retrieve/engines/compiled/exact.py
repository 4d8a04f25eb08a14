"""Exact scores as compiled loops: the scores of :mod:`matryo.retrieve.engines.exact` for rows at addresses.

Every search on the processor ends here, with a guide or without: equal rows have scores of the same bits.

numba caches compiled code and checks only this file for changes: after a change in a module that it imports, touch it.
"""

# mypy: ignore-errors
# The types are numba's.

from __future__ import annotations

import numpy as np
from numba import carray

from matryo.retrieve.engines.compiled.kernels import compiled, pointer, wide

COSINE, IP, L2 = range(3)   # places in METRICS


@compiled
def _add_exactly_at(rows, query, at, count, sums, squares):
    # In float64, adds the inner products of the rows numbered ``at`` to ``sums``, their squares to ``squares``.
    for i in range(len(at)):
        if 0 <= at[i] < count:
            one = square = 0.0
            for j in range(len(query)):
                value = np.float64(wide(rows[at[i], j]))
                one += value * query[j]
                square += value * value
            sums[i] += one
            squares[i] += square


@compiled
def _add_distances_at(rows, query, at, count, sums):
    # In float64, adds the squared distances of the rows numbered ``at`` from the query to their sums.
    for i in range(len(at)):
        if 0 <= at[i] < count:
            one = 0.0
            for j in range(len(query)):
                apart = np.float64(wide(rows[at[i], j])) - query[j]
                one += apart * apart
            sums[i] += one


@compiled
def score_at(blocks, half, count, metric, query, at, sums, squares):
    """Write the exact scores of the rows numbered ``at`` to ``sums``; those that are not below ``count`` get −∞.

    ``blocks`` has an address, the first column and the end of each block up to the dim of the score. ``metric`` is its
    place in METRICS. The ``query`` is float64; ``squares`` is scratch.
    """
    sums[:] = 0
    squares[:] = 0
    for number in range(len(blocks)):
        low, high = blocks[number, 1], blocks[number, 2]
        shape, place = (count, high - low), pointer(blocks[number, 0])
        if metric == L2 and half:
            _add_distances_at(carray(place, shape, np.uint16), query[low:high], at, count, sums)
        elif metric == L2:
            _add_distances_at(carray(place, shape, np.float32), query[low:high], at, count, sums)
        elif half:
            _add_exactly_at(carray(place, shape, np.uint16), query[low:high], at, count, sums, squares)
        else:
            _add_exactly_at(carray(place, shape, np.float32), query[low:high], at, count, sums, squares)
    square = 0.0
    for j in range(blocks[len(blocks) - 1, 2]):
        square += query[j] * query[j]
    for i in range(len(at)):
        if not 0 <= at[i] < count:
            sums[i] = -np.inf
        elif metric == L2:   # computed from norms, small distances would be lost
            sums[i] = -sums[i]
        elif metric == COSINE and squares[i] * square > 0:   # of the product: the cosine of equal vectors is exactly 1
            sums[i] /= np.sqrt(squares[i] * square)


@compiled
def score_all(blocks, half, count, metric, queries, at, sums, squares):
    """Write the exact scores of each query's own rows, [queries, n]."""
    for i in range(len(queries)):
        score_at(blocks, half, count, metric, queries[i], at[i], sums[i], squares[i])
