"""Run a plan on blocks: each stage adds the products of its columns to the scores and passes its best rows on.

>>> vectors = np.array([[1, 0, 0, 9], [1, 0, 0, 1], [0, 1, 0, 0]], "f4")
>>> blocks = Blocks.of(vectors, Nesting([2, 4]))
>>> rows, scores = execute(blocks, [[1, 0, 0, 1]], Plan.adaptive(2, 4, keep=2, k=1), k=1, metric="ip")
>>> rows.tolist(), scores.tolist()
([[0]], [[10.0]])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.nesting import Nesting
from matryo.retrieve.engines.exact import exact_scores, ranked, slack
from matryo.retrieve.engines.numpy.scan import (
    FEW,
    MORE,
    Candidates,
    choose,
    first_stage,
    packed,
    scan,
    scan_around,
)
from matryo.retrieve.engines.numpy.shortlist import Shortlist, query_norms, rerank
from matryo.retrieve.engines.request import Request
from matryo.retrieve.hits import Hits as Hits
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks, checked_norms
from matryo.retrieve.vectors.metric import Metric, check_metric
from matryo.retrieve.vectors.queries import as_mask, as_queries, check_not_zero

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Doubles, Floats, Indices

_BUDGET = 128 << 20   # bytes for one batch of queries and their shortlists


@dataclass(frozen=True)
class Engine:
    """The functions that run the stages of a plan: a first stage like :func:`first_stage`, later ones like `rerank`.

    The last stage computes exact scores with ``score``. If it is also the first, ``exact`` runs it, or ``choose``
    selects its candidates; without either, the search is as exact as the first stage.

    An engine whose arrays are on another device may ``run`` a whole plan instead, so that they stay there between the
    stages. Its request has all queries with the caller's dtype, and it raises the errors of :func:`execute` for bad
    ones.
    """

    first_stage: Callable[[Request, Stage], Shortlist]
    rerank: Callable[[Request, Shortlist, Stage, int], Shortlist]
    choose: Callable[[Request, Stage], Candidates] | None = None
    score: Callable[[Request, Indices, int], Doubles] = exact_scores
    exact: Callable[[Request, Stage], tuple[Indices, Doubles]] | None = None
    run: Callable[[Request, Plan], tuple[Indices, Doubles]] | None = None


NUMPY = Engine(first_stage, rerank, choose)
"""Plain numpy, the reference for every other engine."""


@checked
def execute(
    blocks: Blocks, queries: Any, plan: Plan, k: int, metric: Metric = "cosine", allowed: Any = None, *,
    engine: Engine | None = None,
) -> tuple[Indices, Doubles]:
    """Return the best ``k`` rows that ``plan`` finds for each of the ``queries`` [n, d], and their scores; both [n, k].

    Hits are sorted nearest first; of equal scores the smaller row comes first. ``allowed`` is a mask of the rows that
    may be found. If there are fewer than ``k``, the remaining places have row −1 and score −∞. The default ``engine``
    is plain numpy.

    The last stage scores in float64. A plan with one stage is exact search at its dim: its result equals that of a
    scan of every row in float64.
    """
    check_metric(metric)
    plan = plan.for_k(k)
    plan.check_fits(blocks.nesting)
    for stage in plan.stages:
        blocks.check_has(stage.dim, stage.precision)
    request = Request(blocks, as_queries(queries, blocks.nesting.dim), metric, as_mask(allowed, blocks.count))
    count, engine = request.count, engine or NUMPY
    # Stages that would keep all their input are dropped: with few rows, the scan is at a later dim.
    plan = _limited(plan.among(count), count)
    room = min(k, count)
    rows = np.full((len(request.queries), k), -1, np.int64)
    scores = np.full(rows.shape, -np.inf)
    if engine.run is not None and room and len(rows):
        rows[:, :room], scores[:, :room] = engine.run(request, plan)
        return rows, scores
    step = max(1, _BUDGET // (24 * blocks.nesting.dim + 96 * min(plan.stages[0].keep, count)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        batch = replace(request, queries=_prepared(request, part))
        if room:
            rows[part, :room], scores[part, :room] = _run(batch, plan, engine)
    return rows, scores


def _limited(plan: Plan, count: int) -> Plan:
    """Return ``plan`` with no stage that keeps more than ``count`` rows."""
    if not 0 < count < plan.stages[0].keep:
        return plan
    return replace(plan, stages=tuple(replace(stage, keep=min(stage.keep, count)) for stage in plan.stages))


def _run(request: Request, plan: Plan, engine: Engine) -> tuple[Indices, Doubles]:
    first, *later = plan.stages
    if not later and first.precision == "full":
        if engine.exact is not None:
            return engine.exact(request, first)
        if engine.choose is not None:
            return _exact(request, first, engine)
    before, last = first, plan.stages[-1]
    shortlist = engine.first_stage(request, first)
    for stage in later:
        shortlist = within(shortlist, before.margin, last.keep)
        # Sums in int8 cannot be continued in full precision: these start again from column 0.
        done = before.dim if stage.precision == before.precision else 0
        if stage is last and stage.precision == "full":
            return _last_stage(request, shortlist, stage, done, engine)
        shortlist = engine.rerank(request, shortlist, stage, done)
        before = stage
    if last.precision == "int8":   # its scores are those of the codes
        return _settled(shortlist, request.metric)
    return ranked(shortlist.rows, engine.score(request, shortlist.rows, last.dim), last.keep)


def _last_stage(
    request: Request, shortlist: Shortlist, stage: Stage, done: int, engine: Engine
) -> tuple[Indices, Doubles]:
    """Return the best rows of a shortlist by exact scores; sums continued in float32 select the few to compute."""
    near = engine.rerank(request, shortlist, replace(stage, keep=stage.keep + MORE), done)
    rows, scores = ranked(near.rows, engine.score(request, near.rows, stage.dim), stage.keep)
    if near.rows.shape[1] == shortlist.rows.shape[1]:
        return rows, scores
    norms = request.blocks.norms[np.maximum(shortlist.rows, 0), request.blocks.level(stage.dim)]
    errors = slack(request.metric, norms, query_norms(request.queries, stage.dim), stage.dim)
    doubtful = _doubtful(near.scores[:, -1:] + errors.max(1, keepdims=True), scores)
    if len(doubtful):
        left, every = replace(request, queries=request.queries[doubtful]), shortlist.rows[doubtful]
        rows[doubtful], scores[doubtful] = ranked(every, engine.score(left, every, stage.dim), stage.keep)
    return rows, scores


def _exact(request: Request, stage: Stage, engine: Engine) -> tuple[Indices, Doubles]:
    """Return the best rows of all."""
    assert engine.choose is not None
    candidates = engine.choose(request, stage)
    rows, scores = ranked(candidates.rows, engine.score(request, candidates.rows, stage.dim), stage.keep)
    doubtful = _doubtful(candidates.ceiling, scores)
    if len(doubtful):
        left = replace(request, queries=request.queries[doubtful])
        rows[doubtful], scores[doubtful] = _scan_exactly(left, stage, engine, scores[doubtful, -1:])
    return rows, scores


def _scan_exactly(request: Request, stage: Stage, engine: Engine, bars: Doubles) -> tuple[Indices, Doubles]:
    """Return the best rows of all, of which each scores at least the query's bar [queries, 1].

    Every row whose ceiling reaches the bar is scored exactly. Where ceilings are of no use, these are all rows.
    """
    rows = np.full((len(request.queries), stage.keep), -1)
    scores = np.full(rows.shape, -np.inf)
    around = request.metric != "ip" and len(rows) >= FEW   # for few queries, exact scores cost less
    base = float(around and request.metric == "cosine")
    for tile, some, ceilings in (scan_around if around else scan)(request, stage.dim):
        query, column = np.nonzero(ceilings >= np.maximum(bars[some], scores[some, -1:]) - base)
        if len(query):
            row = column + tile.start if isinstance(tile, slice) else tile[column]
            more = packed(query, row, len(ceilings), -1)
            found = engine.score(replace(request, queries=request.queries[some]), more, stage.dim)
            both = np.concatenate([rows[some], more], axis=1), np.concatenate([scores[some], found], axis=1)
            rows[some], scores[some] = ranked(*both, stage.keep)
    return rows, scores


def _doubtful(ceiling: Floats, scores: Doubles) -> Indices:
    """Return the queries for which a row below the ``ceiling`` [queries, 1], if there is one, may be among the best."""
    return np.flatnonzero((ceiling >= scores[:, -1:]) & (ceiling > -np.inf))


def within(shortlist: Shortlist, margin: float | None, k: int) -> Shortlist:
    """Drop the rows that score more than ``margin`` below the k-th best of their query (row −1, score −∞)."""
    rows, sums, scores = shortlist
    if margin is None or rows.shape[1] <= k:
        return shortlist
    far = scores < scores[:, k - 1 : k] - np.float32(margin)
    return Shortlist(np.where(far, -1, rows), np.where(far, np.float32(0), sums), np.where(far, -np.inf, scores))


def _settled(shortlist: Shortlist, metric: Metric) -> tuple[Indices, Doubles]:
    """Return rows and scores of an int8 stage; negative squared distances, which rounding can produce, become 0."""
    scores = np.minimum(shortlist.scores, 0) if metric == "l2" else shortlist.scores
    return ranked(shortlist.rows, scores.astype(np.float64), scores.shape[1])


def _prepared(request: Request, part: slice) -> Floats:
    """Return some of the queries as checked float32 [n, d]."""
    with np.errstate(over="ignore"):   # checked_norms reports overflows, with the row
        batch: Floats = np.ascontiguousarray(request.queries[part], dtype=np.float32)
    norms = checked_norms(batch, Nesting([request.blocks.nesting.dim]), "queries", part.start)
    if request.metric != "cosine":
        return batch
    check_not_zero(norms, part.start)
    # Scaled by a power of two, which rounds nothing, so that no sum overflows or underflows.
    return np.ldexp(batch, -np.frexp(norms)[1])
