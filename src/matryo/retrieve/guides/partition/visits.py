"""How far a search must look: the budget of rows that it visits, learned from rows that serve as queries.

A partition is visited while the rows visited so far are fewer than budget · exp(−gap / scale), where gap is how far its
mean scores below the best mean. With the scale alone, all queries would visit partitions within one gap; with the
budget alone, all would visit equally many rows. Together they find more neighbours in as many rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Doubles, Floats, Indices

_NTH = 50   # the scale is the mean gap of the mean that is this far down the list
_SHARES = 64   # budgets are tabulated for this many shares
_SELECTIVE = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)   # shares of the rows that a filter may leave
_FOUND = 0.9   # of the neighbours, in the comparison of filters
_STEEPEST = 50.0   # the largest exponent: no budget reaches a partition so far away


def scale_of(scores: Floats) -> float:
    """Return the scale, given the scores of all means for some queries [queries, lists]."""
    if not scores.size:
        return 1.0
    nth = min(_NTH, scores.shape[1] - 1)
    gaps = scores.max(1) - np.partition(scores, -1 - nth, axis=1)[:, -1 - nth]
    return float(max(gaps.mean(), np.finfo(np.float32).tiny))


def needed_budgets(scores: Floats, sizes: Indices, scale: float) -> tuple[Doubles, Doubles]:
    """Return the budget from which each query visits each partition, and the places visited then, [queries, lists].

    ``sizes`` are the places of each partition.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, 1).astype(np.float64)
    ends = np.cumsum(sizes[order], axis=1, dtype=np.float64)
    gaps = np.minimum((ranked[:, :1] - ranked) / scale, _STEEPEST)
    needed = (ends - sizes[order]) * np.exp(gaps)
    budgets, visited = np.empty_like(needed), np.empty_like(needed)
    np.put_along_axis(budgets, order, needed, 1)
    np.put_along_axis(visited, order, ends, 1)
    return budgets, visited


def budgets_by_share(budgets: Doubles, sizes: Indices) -> Floats:
    """Return shares of the places, and the budget with which queries visit each on average, [2, shares]."""
    shares = np.geomspace(1e-5, 1, _SHARES)
    total = float(sizes.sum())
    if not budgets.size or not total:
        return np.stack([shares, shares]).astype(np.float32)
    order = np.argsort(budgets.ravel(), kind="stable")
    visited = np.cumsum(np.tile(sizes, len(budgets))[order]) / (len(budgets) * total)
    at = np.minimum(np.searchsorted(visited, shares), len(order) - 1)
    found = budgets.ravel()[order][at]
    return np.stack([shares, np.maximum.accumulate(np.maximum(found, 1))]).astype(np.float32)


def widening(ranked: Doubles, k: int) -> Floats:
    """Return shares that a filter may leave, and the factor on the budget that then finds as many neighbours, [2, n].

    ``ranked`` [queries, neighbours] has the budget that finds each neighbour, nearest first. Under a filter that leaves
    a share s of the rows, the k nearest are among the k / s nearest of all.
    """
    factors = []
    for share in _SELECTIVE:
        near = ranked[:, : max(1, min(round(k / share), ranked.shape[1]))]
        factors.append(np.quantile(near, _FOUND) if near.size else 1.0)
    made = np.maximum.accumulate(np.maximum(factors, 1) / max(factors[0], 1))
    return np.stack([np.array(_SELECTIVE), made]).astype(np.float32)
