"""The stages of a plan as compiled loops, where numba is installed: scans for few queries, and all re-ranking.

For one query, reading memory takes most of the time, so the loop of
:mod:`matryo.retrieve.engines.compiled.kernels` does little else. Many queries share what is read, so a matrix product
selects their candidates. The same loop then scores every candidate: its score has the same bits for one query and for
many.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.engines.exact import ceilings, distance_ceilings
from matryo.retrieve.engines.execute import NUMPY, Engine
from matryo.retrieve.engines.numpy.scan import FEW, MORE, Candidates, choose, unscored
from matryo.retrieve.engines.numpy.shortlist import Shortlist, query_norms, rerank
from matryo.retrieve.vectors.metric import METRICS

if TYPE_CHECKING:
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.plan.plan import Precision, Stage
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Array, Doubles, Floats, Indices


@cache
def best_engine() -> Engine:
    """Return the compiled engine if numba is installed, else plain numpy."""
    try:
        from matryo.retrieve.engines.compiled import kernels  # noqa: F401
    except ImportError:
        return NUMPY
    return Engine(_first_stage, _rerank, _choose, exact_scores)


def _first_stage(request: Request, stage: Stage) -> Shortlist:
    return _rerank(request, unscored(_choose(request, stage).rows), stage)


def _choose(request: Request, stage: Stage) -> Candidates:
    return (_scan if len(request.queries) < FEW else choose)(request, stage)


def _scan(request: Request, stage: Stage) -> Candidates:
    from matryo.retrieve.engines.compiled import kernels

    blocks, queries, metric = request.blocks, request.queries, request.metric
    level, wanted = blocks.level(stage.dim), min(stage.keep + MORE, blocks.count)
    apart = metric == "l2" and stage.precision == "full"   # summed as differences, which lose less
    lengths, norms = query_norms(queries, stage.dim), blocks.norms[:, level]
    found = Candidates(np.full((len(queries), wanted), -1), np.full((len(queries), 1), -np.inf, np.float32))
    for i, query in enumerate(queries):
        sums = np.zeros(blocks.count, np.float32)
        for number, (low, high) in enumerate(blocks.nesting.blocks[: level + 1]):
            rows, unit = _stored(blocks, number, stage.precision)
            (kernels.add_squares if apart else kernels.add_products)(rows, query[low:high] * unit, sums)
        scores = distance_ceilings(sums, stage.dim) if apart else ceilings(metric, sums, norms, lengths[i], stage.dim)
        if request.allowed is not None:
            scores[~request.allowed] = -np.inf
        best = kernels.best(scores, wanted)
        found.rows[i, : len(best)] = np.where(np.isneginf(scores[best]), -1, best)
        if wanted < request.count:
            found.ceiling[i] = scores[best[-1]]
    return found


def exact_scores(request: Request, rows: Indices, dim: int) -> Doubles:
    """Return exact scores, as :func:`matryo.retrieve.engines.exact.exact_scores` does."""
    from matryo.retrieve.engines.compiled.exact import score_all

    blocks, queries = request.blocks, request.queries.astype(np.float64)
    scores, squares = np.empty(rows.shape), np.empty(rows.shape)
    about = addresses(blocks, dim), blocks.dtype == "float16", blocks.count, METRICS.index(request.metric)
    score_all(*about, queries, np.ascontiguousarray(rows), scores, squares)
    return scores


def addresses(blocks: Blocks, dim: int) -> Indices:
    """Return a row per block up to ``dim`` for compiled loops: its address, its first column, and its end.

    The blocks must be kept alive meanwhile.
    """
    parts = zip(blocks.picked, blocks.nesting.blocks[: blocks.level(dim) + 1], strict=False)
    return np.array([(block.ctypes.data, *columns) for block, columns in parts], np.int64)


def _rerank(request: Request, shortlist: Shortlist, stage: Stage, done: int = 0) -> Shortlist:
    return rerank(request, shortlist, stage, done, _add_products)


def _add_products(
    sums: Floats, blocks: Blocks, number: int, rows: Indices, queries: Floats, precision: Precision
) -> None:
    from matryo.retrieve.engines.compiled import kernels

    stored, unit = _stored(blocks, number, precision)
    for i, query in enumerate(queries):
        kernels.add_products_at(stored, query * unit, rows[i], sums[i])


def _stored(blocks: Blocks, number: int, precision: Precision) -> tuple[Array, np.float32]:
    """Return a block as the loops read it, and the value of one unit of it."""
    if precision == "int8":
        return blocks.int8[number].codes, blocks.int8[number].scale
    block = blocks.full[number]
    return (block if block.dtype == np.float32 else block.view(np.uint16)), np.float32(1)
