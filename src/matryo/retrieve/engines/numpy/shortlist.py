"""A shortlist: the candidates of each query with what is known of them, ranked again at a longer dim.

A score has the same bits wherever its row lies, whichever rows stand beside it, and however many stages came before:
each block is summed by itself, in one order. So equal rows score equally, and ties fall to the smaller row.

>>> from matryo.nesting import Nesting
>>> blocks = Blocks.of([[3, 0], [2, 4], [0, 9]], Nesting([1, 2]))
>>> short = Shortlist(np.array([[0, 1]]), np.float32([[3, 2]]), np.float32([[3, 2]]))
>>> rows, sums, scores = rerank(blocks, np.float32([[1, 1]]), short, done=1, dim=2, keep=1, metric="ip")
>>> rows.tolist(), sums.tolist(), scores.tolist()
([[1]], [[6.0]], [[6.0]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.nesting import prefix_norms
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import Metric, key_rows, key_scores, keys, score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.retrieve.plan.plan import Precision

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Shortlist", "query_norms", "ranked", "rerank"]

_GATHER = 16 << 20   # bytes of rows gathered at a time


class Shortlist(NamedTuple):
    """The candidates of each query after a stage, best first; where there are too few: row −1, sum 0, score −∞."""

    rows: Indices
    """[queries, keep]"""
    sums: Floats
    """Inner products over the columns read so far."""
    scores: Floats


def rerank(
    blocks: Blocks,
    queries: Floats,
    shortlist: Shortlist,
    done: int,
    dim: int,
    keep: int,
    metric: Metric,
    precision: Precision = "full",
) -> Shortlist:
    """The best ``keep`` of each shortlist at ``dim``; its sums hold the first ``done`` columns already.

    Of equal scores the smaller row comes first.
    """
    rows = shortlist.rows
    there = np.maximum(rows, 0)   # a row that is none is read as the first, and its key says so
    sums = shortlist.sums.copy() if done else np.zeros(rows.shape, np.float32)
    for number, (low, high) in enumerate(blocks.nesting.blocks):
        if done <= low < dim:
            _add_products(sums, blocks, number, there, queries[:, low:high], precision)
    return ranked(blocks, queries, rows, sums, dim, keep, metric)


def ranked(
    blocks: Blocks, queries: Floats, rows: Indices, sums: Floats, dim: int, keep: int, metric: Metric
) -> Shortlist:
    """The best ``keep`` of the ``rows`` [queries, n] (−1: none), whose inner products up to ``dim`` are ``sums``."""
    norms = blocks.norms[np.maximum(rows, 0), blocks.level(dim)]
    found = keys(score(metric, sums, norms, query_norms(queries, dim)), rows)
    if found.shape[1] > keep:
        top = np.argpartition(found, -keep, axis=1)[:, -keep:]
        found, sums = np.take_along_axis(found, top, 1), np.take_along_axis(sums, top, 1)
    order = np.argsort(found, axis=1)[:, ::-1]
    found, sums = np.take_along_axis(found, order, 1), np.take_along_axis(sums, order, 1)
    kept = key_rows(found)
    return Shortlist(kept, np.where(kept < 0, np.float32(0), sums), key_scores(found))


def query_norms(queries: Floats, dim: int) -> Floats:
    """The norm of each query's first ``dim`` columns, [queries, 1]."""
    return prefix_norms(queries[:, :dim].astype(np.float64), [dim]).astype(np.float32)


def _add_products(
    sums: Floats, blocks: Blocks, number: int, rows: Indices, queries: Floats, precision: Precision
) -> None:
    # To the sums of each query with its own rows, [queries, n], the inner products of one block.
    for tile in _tiles(rows.shape, queries.shape[1]):
        some = rows[tile]
        read = blocks.columns(number, some.ravel(), precision).reshape(*some.shape, -1)
        # Not BLAS: its rounding depends on where in a matrix a row lies.
        sums[tile] += np.einsum("qnd,qd->qn", read, queries[tile[0]])


def _tiles(shape: tuple[int, ...], columns: int) -> Iterator[tuple[slice, slice]]:
    # Of bounded size once gathered: some queries with all their rows, or else one with some of them.
    most = max(1, _GATHER // (4 * columns))
    across = max(1, min(most, shape[1]))
    down = most // across
    for top in range(0, shape[0], down):
        for first in range(0, shape[1], across):
            yield slice(top, top + down), slice(first, first + across)
