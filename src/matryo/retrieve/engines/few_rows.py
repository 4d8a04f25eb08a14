"""Exact search among a few rows: a filter may leave so few that scoring each of them costs less than any plan.

The hits are exact, and there are as many as rows match, up to k.

>>> from matryo.nesting import Nesting
>>> from matryo.retrieve.vectors.blocks import Blocks
>>> blocks = Blocks.of([[1, 0], [3, 4], [0, 1]], Nesting([2]))
>>> search = search_among(np.array([0, 2]), 2)
>>> rows, scores = search(Request(blocks, np.array([[3, 4]], "f4")), 3)
>>> rows.tolist(), scores.round(2).tolist()
([[2, 0, -1]], [[0.8, 0.6, -inf]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.request import Request
from matryo.retrieve.vectors.queries import as_floats, check_scores

if TYPE_CHECKING:
    from matryo.retrieve.guides.guide import Search
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Doubles, Indices

_LEAST = 4 << 20   # bytes that are always read instead of following a plan: about half a millisecond
_FAR = 256   # bytes that are read in the time that a row far from the one before takes longer
_SCANNED = 16   # bytes per row of the whole segment that a first stage reads
_WIDER = 3   # a plan under a filter visits about this many times its share of the partitions
_TOGETHER = 1 << 20   # pairs of queries and rows scored at a time


def are_few(count: int, blocks: Blocks, plan: Plan | None) -> bool:
    """Whether scoring ``count`` rows of ``blocks`` one by one costs less than ``plan``; None is exact search."""
    share = 1.0 if plan is None or plan.probe is None else min(1.0, _WIDER * plan.probe)
    dim = blocks.nesting.dim if plan is None else plan.dim
    cost = count * (dim * blocks.full[0].itemsize + _FAR)
    return cost <= max(_LEAST, share * blocks.count * _SCANNED)


def search_among(among: Indices, dim: int) -> Search:
    """Return the exact search of the rows ``among``, which are sorted, at ``dim``; the smaller row wins a tie."""
    score = best_engine().score

    def search(request: Request, k: int) -> tuple[Indices, Doubles]:
        queries = as_floats(request.queries, request.blocks.nesting.dim)
        squares = np.einsum("qd,qd->q", queries, queries, dtype=np.float64)
        if not ((squares > 0) & (squares < 2.0**124)).all():   # cheaper than the whole check
            check_scores(queries, request.blocks.nesting, request.metric)
        rows, scores = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf)
        step = max(1, _TOGETHER // max(len(among), 1))
        for start in range(0, len(queries) if len(among) else 0, step):
            part = Request(request.blocks, queries[start : start + step], request.metric)
            each = score(part, np.broadcast_to(among, (len(part.queries), len(among))), dim)
            for query, found in enumerate(each, start):
                best = _best(found, k)
                rows[query, : len(best)], scores[query, : len(best)] = among[best], found[best]
        return rows, scores

    return search


def _best(scores: Doubles, k: int) -> Indices:
    """The positions of the best ``k`` of ``scores``, best first; of equal scores the first."""
    if len(scores) <= k:
        return np.argsort(-scores, kind="stable")
    bar = np.partition(scores, len(scores) - k)[len(scores) - k]
    near = np.flatnonzero(scores >= bar)
    return near[np.argsort(-scores[near], kind="stable")[:k]]
