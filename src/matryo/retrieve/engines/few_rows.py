"""Exact search among a few rows: a filter may leave so few that scoring each of them costs less than any plan.

The hits are exact, and there are as many as rows match, up to k.

>>> from matryo.nesting import Nesting
>>> from matryo.retrieve.vectors.blocks import Blocks
>>> blocks = Blocks.of([[1, 0], [3, 4], [0, 1]], Nesting([2]))
>>> rows, scores = search_among(np.array([0, 2]), 2)(Request(blocks, np.array([[3, 4]], "f4")), 3)
>>> rows.tolist(), scores.round(2).tolist()
([[2, 0, -1]], [[0.8, 0.6, -inf]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.compiled import core
from matryo.retrieve.engines.compiled import view_of
from matryo.retrieve.engines.execute import execute
from matryo.retrieve.engines.request import Request
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.vectors.queries import as_floats, check_scores

if TYPE_CHECKING:
    from matryo.retrieve.guides.guide import Search
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Doubles, Indices

_LEAST = 8 << 20   # bytes that are always read instead of following a plan: about half a millisecond
_FAR = 256   # bytes that are read in the time that a row far from the one before takes longer
_SCANNED = 16   # bytes per row of the whole segment that a first stage reads
_WIDER = 3   # a plan under a filter visits about this many times its share of the partitions


def are_few(count: int, blocks: Blocks, plan: Plan | None) -> bool:
    """Whether scoring ``count`` rows of ``blocks`` one by one costs less than ``plan``; None is exact search."""
    share = 1.0 if plan is None or plan.probe is None else min(1.0, _WIDER * plan.probe)
    dim = blocks.nesting.dim if plan is None else plan.dim
    cost = count * (dim * blocks.full[0].itemsize + _FAR)
    return cost <= max(_LEAST, share * blocks.count * _SCANNED)


def search_among(among: Indices, dim: int) -> Search:
    """Return the exact search of the rows ``among``, which are sorted, at ``dim``; the smaller row wins a tie."""

    def search(request: Request, k: int) -> tuple[Indices, Doubles]:
        blocks, metric = request.blocks, request.metric
        queries = as_floats(request.queries, blocks.nesting.dim)
        rows = np.empty((len(queries), k), np.int64)
        scores = np.empty(rows.shape)
        level = blocks.level(dim)
        if view_of(blocks, metric).search_among(queries, level, among, rows, scores, request.threads) >= 0:
            check_scores(queries, blocks.nesting, metric)
        return rows, scores

    def scan(request: Request, k: int) -> tuple[Indices, Doubles]:
        allowed = np.zeros(request.blocks.count, np.bool_)
        allowed[among] = True
        return execute(request.blocks, request.queries, Plan.single(dim, k=max(k, 1)), k, request.metric, allowed)

    return scan if core() is None else search
