"""The stages of a plan as compiled loops, where numba is installed: a scan for few queries, and every shortlist.

One query waits for memory, so the loop of :mod:`matryo.retrieve.engines.compiled.kernels` only streams through it.
Many queries share what they read, so for them a matrix product chooses the candidates. Every row is then scored by the
same loop: its score has the same bits for one query and for many.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.retrieve.engines.execute import NUMPY, Engine
from matryo.retrieve.engines.numpy.scan import FEW, MORE, choose, unscored
from matryo.retrieve.engines.numpy.shortlist import Shortlist, query_norms, ranked
from matryo.retrieve.vectors.metric import score

if TYPE_CHECKING:
    from matryo.retrieve.plan.plan import Precision
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric

    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["best_engine"]


@cache
def best_engine() -> Engine:
    """Compiled loops where numba is installed, plain numpy where not."""
    try:
        from matryo.retrieve.engines.compiled import kernels  # noqa: F401
    except ImportError:
        return NUMPY
    return Engine(_first_stage, _rerank)


def _first_stage(
    blocks: Blocks,
    queries: Floats,
    dim: int,
    keep: int,
    metric: Metric,
    precision: Precision = "full",
    allowed: Bools | None = None,
) -> Shortlist:
    some = blocks, queries, dim, keep, metric, precision, allowed
    rows = _scan(*some) if len(queries) < FEW else choose(*some)
    return _rerank(blocks, queries, unscored(rows), 0, dim, keep, metric, precision)


def _scan(
    blocks: Blocks,
    queries: Floats,
    dim: int,
    keep: int,
    metric: Metric,
    precision: Precision,
    allowed: Bools | None,
) -> Indices:
    from matryo.retrieve.engines.compiled import kernels

    level, wanted = blocks.level(dim), min(keep + MORE, blocks.count)
    lengths = query_norms(queries, dim)
    chosen = np.full((len(queries), wanted), -1)
    for i, query in enumerate(queries):
        sums = np.zeros(blocks.count, np.float32)
        for number, (low, high) in enumerate(blocks.nesting.blocks[: level + 1]):
            rows, factor = _stored(blocks, number, precision)
            kernels.add_products(rows, query[low:high] * factor, sums)
        scores = score(metric, sums, blocks.norms[:, level], lengths[i])
        if allowed is not None:
            scores[~allowed] = -np.inf
        found = kernels.best(scores, wanted)
        chosen[i, : len(found)] = np.where(np.isneginf(scores[found]), -1, found)
    return chosen


def _rerank(
    blocks: Blocks,
    queries: Floats,
    shortlist: Shortlist,
    done: int,
    dim: int,
    keep: int,
    metric: Metric,
    precision: Precision = "full",
) -> Shortlist:
    from matryo.retrieve.engines.compiled import kernels

    rows = shortlist.rows
    there = np.maximum(rows, 0)   # a row that is none is read as the first, and its key says so
    sums = shortlist.sums.copy() if done else np.zeros(rows.shape, np.float32)
    for number, (low, high) in enumerate(blocks.nesting.blocks):
        if done <= low < dim:
            stored, factor = _stored(blocks, number, precision)
            for i, query in enumerate(queries):
                kernels.add_products_at(stored, query[low:high] * factor, there[i], sums[i])
    return ranked(blocks, queries, rows, sums, dim, keep, metric)


def _stored(blocks: Blocks, number: int, precision: Precision) -> tuple[Array, np.float32]:
    """A block as the loops read it, and what a unit of it is worth."""
    if precision == "int8":
        return blocks.int8[number].codes, blocks.int8[number].scale
    block = blocks.full[number]
    return (block if block.dtype == np.float32 else block.view(np.uint16)), np.float32(1)
