"""The compiled engine: stages of a plan run by :mod:`matryo._core`, for one query and for many.

Exact search is one call. Other plans scan with the first stage in one call, and add the products of each later block in
another. Scores are those of the numpy engine: the last stage sums in float64, in an order that depends on the row
alone.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import core, require_core
from matryo.retrieve.engines.execute import NUMPY, Engine
from matryo.retrieve.engines.numpy.scan import MORE, unscored
from matryo.retrieve.engines.numpy.shortlist import Shortlist, rerank
from matryo.retrieve.vectors.metric import METRICS, Metric

if TYPE_CHECKING:
    from matryo.retrieve.engines.request import Request
    from matryo.retrieve.plan.plan import Precision, Stage
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Array, Bools, Doubles, Floats, Indices

_views: weakref.WeakKeyDictionary[Blocks, dict[Metric, Any]] = weakref.WeakKeyDictionary()


@cache
def best_engine() -> Engine:
    """Return the compiled engine if the core is installed, else plain numpy."""
    if core() is None:
        return NUMPY
    return Engine(_first_stage, _rerank, score=exact_scores, exact=_exact)


def view_of(blocks: Blocks, metric: Metric) -> Any:
    """Return ``blocks`` as the core sees them, prepared once: a ``matryo._core.Vectors``."""
    views = _views.setdefault(blocks, {})
    if metric not in views:
        codes = [blocks.int8[number] for number in range(len(blocks.int8))]
        views[metric] = require_core().Vectors(
            METRICS.index(metric), _bits(blocks.full), _bits(blocks.picked), np.array(blocks.nesting.dims, np.int64),
            blocks.norms, [block.codes for block in codes], [float(block.scale) for block in codes],
        )  # fmt: skip
    return views[metric]


def as_bytes(mask: Bools | None) -> Bools | None:
    """Return a mask as the core reads it."""
    return None if mask is None else np.ascontiguousarray(mask)


def exact_scores(request: Request, rows: Indices, dim: int) -> Doubles:
    """Return exact scores, as :func:`matryo.retrieve.engines.exact.exact_scores` does."""
    scores = np.empty(rows.shape)
    level, view = request.blocks.level(dim), view_of(request.blocks, request.metric)
    view.exact_scores(request.queries, level, np.ascontiguousarray(rows), scores)
    return scores


def _exact(request: Request, stage: Stage) -> tuple[Indices, Doubles]:
    rows = np.empty((len(request.queries), stage.keep), np.int64)
    scores = np.empty(rows.shape)
    level, view = request.blocks.level(stage.dim), view_of(request.blocks, request.metric)
    view.search_exact(request.queries, level, as_bytes(request.allowed), rows, scores, request.threads)
    return rows, scores


def _first_stage(request: Request, stage: Stage) -> Shortlist:
    level, view = request.blocks.level(stage.dim), view_of(request.blocks, request.metric)
    rows = np.empty((len(request.queries), min(stage.keep + MORE, request.blocks.count)), np.int64)
    view.choose(request.queries, level, stage.precision == "int8", as_bytes(request.allowed), rows, request.threads)
    return _rerank(request, unscored(rows), stage)


def _rerank(request: Request, shortlist: Shortlist, stage: Stage, done: int = 0) -> Shortlist:
    view = view_of(request.blocks, request.metric)

    def add(
        sums: Floats, blocks: Blocks, number: int, rows: Indices, queries: Floats, precision: Precision  # noqa: ARG001
    ) -> None:
        view.add_products(request.queries, number, precision == "int8", np.ascontiguousarray(rows), sums)

    return rerank(request, shortlist, stage, done, add)


def _bits(blocks: tuple[Array, ...]) -> list[Array]:
    return [block if block.dtype == np.float32 else block.view(np.uint16) for block in blocks]
