"""A plan on blocks: each stage adds what its columns say to the scores so far, and hands its best to the next.

>>> vectors = np.array([[1, 0, 0, 9], [1, 0, 0, 1], [0, 1, 0, 0]], "f4")
>>> blocks = Blocks.of(vectors, Nesting([2, 4]))
>>> rows, scores = execute(blocks, [[1, 0, 0, 1]], Plan.adaptive(2, 4, keep=2, k=1), k=1, metric="ip")
>>> rows.tolist(), scores.tolist()
([[0]], [[10.0]])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.nesting import Nesting
from matryo.retrieve.engines.numpy.scan import first_stage
from matryo.retrieve.engines.numpy.shortlist import Shortlist, rerank
from matryo.retrieve.plan.plan import Plan, Precision
from matryo.retrieve.vectors.blocks import Blocks, checked_norms
from matryo.retrieve.vectors.metric import Metric, check_metric, key_rows, key_scores, keys
from matryo.retrieve.vectors.queries import as_mask, as_queries, check_not_zero

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["NUMPY", "Engine", "Hits", "execute"]

_BUDGET = 128 << 20   # bytes for a batch of queries with their shortlists


@dataclass(frozen=True, eq=False)
class Hits:
    """What a search found for each query, nearest first; where there is too little: score −∞, id −1 or ""."""

    ids: Array
    """[queries, k], integers or text."""
    scores: Floats
    """[queries, k]"""


@dataclass(frozen=True)
class Engine:
    """What computes the stages of a plan: a first stage like :func:`first_stage`, and then :func:`rerank`.

    One whose arrays lie elsewhere may ``run`` a whole plan instead, so that they stay there between its stages. It is
    given the queries as they came, of any dtype and number, and raises what :func:`execute` would for bad ones.
    """

    first_stage: Callable[[Blocks, Floats, int, int, Metric, Precision, Bools | None], Shortlist]
    rerank: Callable[[Blocks, Floats, Shortlist, int, int, int, Metric, Precision], Shortlist]
    run: Callable[[Blocks, Array, Plan, int, Metric, Bools | None], Shortlist] | None = None
    """The number is how many rows may be found, the mask which ones if not all."""


def execute(
    blocks: Blocks,
    queries: Any,
    plan: Plan,
    k: int,
    metric: Metric = "cosine",
    allowed: Any = None,
    *,
    engine: Engine | None = None,
) -> tuple[Indices, Floats]:
    """The best ``k`` rows of each of the ``queries`` [n, d] that ``plan`` finds, and their scores; both [n, k].

    Nearest first; of equal scores the smaller row. ``allowed`` is a mask of the rows that may be found. Where there
    are fewer than ``k``, the rest has row −1 and score −∞. A plan that keeps every row is exact search at its last
    dim. The ``engine`` is plain numpy, if no other is given.
    """
    check_metric(metric)
    plan = plan.for_k(k)
    plan.check_fits(blocks.nesting)
    for stage in plan.stages:
        blocks.check_has(stage.dim, stage.precision)
    mask = as_mask(allowed, blocks.count)
    given = as_queries(queries, blocks.nesting.dim)
    count = blocks.count if mask is None else int(np.count_nonzero(mask))
    # Stages that could keep all they are given prune nothing: among few rows, the scan is at a later dim.
    plan = plan.among(count)
    room = min(k, count)
    rows = np.full((len(given), k), -1, np.int64)
    scores = np.full((len(given), k), -np.inf, np.float32)
    step = max(1, _BUDGET // (24 * blocks.nesting.dim + 96 * min(plan.stages[0].keep, count)))
    run = None if engine is None else engine.run
    if run is not None and room and len(given):
        rows[:, :room], scores[:, :room] = _settled(run(blocks, given, plan, count, metric, mask), metric)
        return rows, scores
    for start in range(0, len(given), step):
        some = slice(start, start + step)
        batch = _prepared(given[some], blocks, metric, start)
        if room:
            found = _run(blocks, batch, plan, count, metric, mask, engine or NUMPY)
            rows[some, :room], scores[some, :room] = _settled(found, metric)
    return rows, scores


NUMPY = Engine(first_stage, rerank)
"""Plain numpy; what every other engine is compared with."""


def _run(
    blocks: Blocks, queries: Floats, plan: Plan, count: int, metric: Metric, mask: Bools | None, engine: Engine
) -> Shortlist:
    first, *later = plan.stages
    found = engine.first_stage(blocks, queries, first.dim, min(first.keep, count), metric, first.precision, mask)
    before = first
    for stage in later:
        found = within(found, before.margin, plan.stages[-1].keep)
        # Sums in int8 are no part of sums in full precision: these begin anew.
        done = before.dim if stage.precision == before.precision else 0
        keep = min(stage.keep, found.rows.shape[1])
        found = engine.rerank(blocks, queries, found, done, stage.dim, keep, metric, stage.precision)
        before = stage
    return found


def within(found: Shortlist, margin: float | None, k: int) -> Shortlist:
    """What scores at most ``margin`` less than the k-th best of its query; the rest is no row any more."""
    if margin is None or found.rows.shape[1] <= k:
        return found
    far = found.scores < found.scores[:, k - 1 : k] - np.float32(margin)
    return Shortlist(
        np.where(far, -1, found.rows), np.where(far, np.float32(0), found.sums), np.where(far, -np.inf, found.scores)
    )


def _settled(found: Shortlist, metric: Metric) -> tuple[Indices, Floats]:
    if metric != "l2":
        return found.rows, found.scores
    # No distance is below 0, whatever rounding says; rows that thereby come to be equal are in order again.
    ordered = np.sort(keys(np.minimum(found.scores, 0), found.rows), axis=1)[:, ::-1]
    return key_rows(ordered), key_scores(ordered)


def _prepared(queries: Array, blocks: Blocks, metric: Metric, first: int) -> Floats:
    with np.errstate(over="ignore"):   # told by the norms, with the row
        batch: Floats = np.ascontiguousarray(queries, dtype=np.float32)
    norms = checked_norms(batch, Nesting([blocks.nesting.dim]), "queries", first)
    if metric != "cosine":
        return batch
    check_not_zero(norms, first)
    # By a power of two, so that no sum overflows or vanishes and none is rounded.
    return np.ldexp(batch, -np.frexp(norms)[1])
