"""Which first dims to index: the shortlist that each prefix needs for a recall, and a rough price of the plan.

A graph walk scores about 12 rows per candidate, and a re-ranked row has to be fetched. The prices only order the
suggestions; the planner times them on the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matryo.retrieve.hits import Hits

_SCORED = 12   # rows per candidate of a walk
_WALK, _PER_DIM = 0.5, 0.004   # microseconds per scored row, and per dim of it
_FETCH, _PER_FETCHED_DIM = 4.0, 0.01   # and per re-ranked row
_SLACK = 0.5   # the share of the misses that the shortlist may use up


def suggested(lists: Mapping[int, Hits], recall: float, k: int, own: Any = None) -> list[Plan]:
    """Plans by their estimated price; ``lists`` are the best rows by each dim, ``own`` the ids of the queries.

    >>> from matryo.engines.scan import scan
    >>> rows = np.random.default_rng(0).normal(size=(500, 32)).astype("f4") * np.linspace(2, 0.1, 32, dtype="f4")
    >>> lists = scan([(np.arange(500), rows)], rows[:50], 200, "cosine", [8, 16, 32])
    >>> sorted((plan.stages[0].dim, plan.stages[0].keep) for plan in suggested(lists, 0.95, 5, np.arange(50)))
    [(8, 143), (16, 21), (32, 5)]
    """
    full = max(lists)
    true = _others(lists[full], k, own)
    plans = []
    for dim, hits in lists.items():
        keep = k if dim == full else _needed(hits.ids, true, 1 - _SLACK * (1 - recall))
        if keep is not None:
            ef = round(1.5 * keep) + 8
            stages = (Stage(dim, max(keep, k)), Stage(full, k)) if dim < full else (Stage(full, k),)
            price = ef * _SCORED * (_WALK + _PER_DIM * dim) + (keep * (_FETCH + _PER_FETCHED_DIM * full)) * (dim < full)
            plans.append((price, Plan(stages, ef=max(ef, stages[0].keep))))
    return [plan for _, plan in sorted(plans, key=lambda pair: pair[0])]


def _others(hits: Hits, k: int, own: Any) -> Any:
    if own is None:
        return hits.ids[:, :k]
    order = np.argsort(hits.ids == own[:, None], axis=1, kind="stable")[:, :k]   # the query itself last
    return np.take_along_axis(hits.ids, order, 1)


def _needed(ids: Any, true: Any, share: float) -> int | None:
    """The length of the lists that holds ``share`` of the true neighbours; None if they are too short."""
    ranks = np.full(true.shape, ids.shape[1] + 1)
    for column in range(true.shape[1]):
        same = ids == true[:, column, None]
        ranks[:, column] = np.where(same.any(axis=1), same.argmax(axis=1) + 1, ids.shape[1] + 1)
    needed = int(np.quantile(ranks, share, method="higher"))
    return needed if needed <= ids.shape[1] else None
