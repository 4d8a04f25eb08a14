"""Shortlists: the candidates of each query with their sums so far, re-ranked at a longer dim.

The score of a row has the same bits wherever the row lies, whichever rows are beside it, and however many stages came
before: each block is summed by itself, in one order. So equal rows have equal scores, and the smaller row wins a tie.

>>> from matryo.nesting import Nesting
>>> from matryo.retrieve.plan.plan import Stage
>>> request = Request(Blocks.of([[3, 0], [2, 4], [0, 9]], Nesting([1, 2])), np.float32([[1, 1]]), metric="ip")
>>> shortlist = Shortlist(np.array([[0, 1]]), np.float32([[3, 2]]), np.float32([[3, 2]]))
>>> rows, sums, scores = rerank(request, shortlist, Stage(dim=2, keep=1), done=1)
>>> rows.tolist(), sums.tolist(), scores.tolist()
([[1]], [[6.0]], [[6.0]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from matryo.arguments import checked
from matryo.nesting import prefix_norms
from matryo.retrieve.engines.request import Request
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import key_rows, key_scores, keys, score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matryo.retrieve.plan.plan import Precision, Stage
    from matryo.retrieve.vectors.types import Floats, Indices

_GATHER = 16 << 20   # bytes of rows gathered at a time


class Shortlist(NamedTuple):
    """The candidates of each query after a stage, best first. Unused places have row −1, sum 0 and score −∞."""

    rows: Indices
    """[queries, keep]"""
    sums: Floats
    """Inner products over the columns read so far."""
    scores: Floats


@checked
def rerank(
    request: Request, shortlist: Shortlist, stage: Stage, done: int = 0, add: Callable[..., None] | None = None
) -> Shortlist:
    """Return the best ``stage.keep`` of each shortlist at ``stage.dim``; of equal scores the smaller row comes first.

    The sums of the shortlist already include the first ``done`` columns. ``add`` replaces :func:`add_products`.
    """
    blocks, queries, rows = request.blocks, request.queries, shortlist.rows
    present = np.maximum(rows, 0)   # −1 is read as row 0; its key marks it as no row
    sums = shortlist.sums.copy() if done else np.zeros(rows.shape, np.float32)
    for number, (low, high) in enumerate(blocks.nesting.blocks):
        if done <= low < stage.dim:
            (add or add_products)(sums, blocks, number, present, queries[:, low:high], stage.precision)
    return _ranked(request, rows, sums, stage)


def _ranked(request: Request, rows: Indices, sums: Floats, stage: Stage) -> Shortlist:
    """Return the best ``stage.keep`` of the ``rows`` [queries, n] (−1: none), given their inner products ``sums``."""
    norms = request.blocks.norms[np.maximum(rows, 0), request.blocks.level(stage.dim)]
    order = keys(score(request.metric, sums, norms, query_norms(request.queries, stage.dim)), rows)
    if order.shape[1] > stage.keep:
        top = np.argpartition(order, -stage.keep, axis=1)[:, -stage.keep :]
        order, sums = np.take_along_axis(order, top, 1), np.take_along_axis(sums, top, 1)
    best = np.argsort(order, axis=1)[:, ::-1]
    order, sums = np.take_along_axis(order, best, 1), np.take_along_axis(sums, best, 1)
    kept = key_rows(order)
    return Shortlist(kept, np.where(kept < 0, np.float32(0), sums), key_scores(order))


def query_norms(queries: Floats, dim: int) -> Floats:
    """Return the norm of each query's first ``dim`` columns, [queries, 1]."""
    return np.asarray(prefix_norms(queries[:, :dim].astype(np.float64), [dim]).astype(np.float32))


def add_products(
    sums: Floats, blocks: Blocks, number: int, rows: Indices, queries: Floats, precision: Precision
) -> None:
    """Add the inner products over one block to the ``sums`` of each query with its own ``rows``, [queries, n]."""
    for tile in gathered_tiles(rows.shape, 4 * queries.shape[1]):
        wanted = rows[tile]
        read = blocks.columns(number, wanted.ravel(), precision).reshape(*wanted.shape, -1)
        # Not BLAS: its rounding depends on the position of a row in the matrix.
        sums[tile] += np.einsum("qnd,qd->qn", read, queries[tile[0]])


def gathered_tiles(shape: tuple[int, ...], size: int) -> Iterator[tuple[slice, slice]]:
    """Yield tiles of [queries, rows] of bounded bytes once gathered, given the bytes per row.

    A tile has several queries with all their rows, or one query with some of them.
    """
    most = max(1, _GATHER // size)
    across = max(1, min(most, shape[1]))
    down = most // across
    for top in range(0, shape[0], down):
        for first in range(0, shape[1], across):
            yield slice(top, top + down), slice(first, first + across)
