"""How often a promised recall holds: plans for many draws of the queries, judged by the other queries.

The planner sees a draw of the queries and no filter, as users plan. The other queries are searched along its plan:
among all rows, and among those that a filter on a random number leaves. The neighbours are those of brute force.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from matryo import Index, Nesting, Plan
from matryo.retrieve.hits import Hits
from matryo.retrieve.plan.planner import choose_each
from support.retrieval_peers import Rows, Vectors
from support.unseen_task import SLACK, K

Array = np.ndarray[Any, np.dtype[Any]]
SHARES = (1.0, 0.5, 0.1, 0.01, 0.001)
"""Shares of the rows that a filter leaves; 1 is no filter."""
FIELD = "n"
TIMING = 10   # searches of at most so many queries are those that the planner times
_CANDIDATES, _BATCH = 40, 200


class Pool:
    """An index whose exact hits for a pool of queries are computed once, because no draw changes them.

    All other searches are those of the index: those that are timed run on one thread.
    """

    def __init__(self, index: Index, queries: Vectors, threads: int = 1) -> None:
        self.index, self.threads = index, threads
        self.count: int = index.count
        self.nesting: Nesting = index.nesting
        self.dtype, self.openings = index.dtype, index.openings
        self._numbers = {query.tobytes(): number for number, query in enumerate(queries)}
        self._exact = index.search(queries, K, threads=threads)

    def search(self, queries: Vectors, k: int, plan: Plan | None = None) -> Hits:
        """The hits of a plan, or the exact ones."""
        if len(queries) <= TIMING:
            return self.index.search(queries, k, plan)
        if k == K and plan in (None, Plan.single(self.nesting.dim, k=k)):
            numbers = [self._numbers[query.tobytes()] for query in queries]
            return Hits(self._exact.ids[numbers], self._exact.scores[numbers])
        return self.index.search(queries, k, plan, threads=self.threads)

    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """Rows never stand in for queries here."""
        raise NotImplementedError


class Judge:
    """The recall of searches among all rows, and among those whose ``numbers`` are below a limit."""

    def __init__(self, vectors: Vectors, queries: Vectors, numbers: Rows, shares: Sequence[float]) -> None:
        self.vectors, self.queries, self.numbers = vectors, queries, numbers
        self.limits = {share: round(share * len(vectors)) for share in shares}
        self.kth = self._kth()

    def where(self, share: float) -> dict[str, Any] | None:
        """The filter; None for all rows."""
        return None if share == 1 else {FIELD: {"$lt": self.limits[share]}}

    def recalls(self, share: float, some: Rows, found: Rows) -> Array:
        """The recall of each of some queries, whose hits are ``found`` [n, K]; rows outside the filter do not count."""
        scores = cosines(self.vectors, self.queries[some], np.maximum(found, 0))
        right = (found >= 0) & (self.numbers[np.maximum(found, 0)] < self.limits[share])
        return shares_found(np.where(right, scores, -np.inf), found, self.kth[share][some], min(K, self.limits[share]))

    def _kth(self) -> dict[float, Array]:
        """The cosine of the k-th nearest row of each query, for each share."""
        rows = {share: np.flatnonzero(self.numbers < limit) for share, limit in self.limits.items()}
        best: dict[float, list[Array]] = {share: [] for share in self.limits}
        lengths = np.sqrt(np.einsum("nd,nd->n", self.vectors, self.vectors, dtype=np.float64)).astype(np.float32)
        for start in range(0, len(self.queries), _BATCH):
            asked = self.queries[start : start + _BATCH]
            every = asked @ self.vectors.T / lengths
            for share, own in rows.items():
                scores, most = every[:, own], min(_CANDIDATES, len(own))
                near = own[np.argpartition(scores, -most, axis=1)[:, -most:]]
                ranked = np.sort(cosines(self.vectors, asked, near), axis=1)
                best[share].append(ranked[:, -min(K, len(own))])
        return {share: np.concatenate(parts) for share, parts in best.items()}


def cosines(vectors: Vectors, queries: Vectors, rows: Rows) -> Array:
    """The cosine of each query with each of its rows [n, m], in float64."""
    scores = np.empty(rows.shape)
    for start in range(0, len(rows), _BATCH):
        part = slice(start, start + _BATCH)
        near, asked = vectors[rows[part]].astype(np.float64), queries[part].astype(np.float64)
        lengths = np.linalg.norm(near, axis=2) * np.linalg.norm(asked, axis=1)[:, None]
        scores[part] = np.einsum("nmd,nd->nm", near, asked) / lengths
    return scores


def shares_found(scores: Array, found: Rows, kth: Array, most: int) -> Array:
    """The share of the ``most`` nearest that each query found; each row counts once, and ties count.

    >>> shares_found(np.array([[0.9, 0.9, 0.1]]), np.array([[7, 7, 3]]), np.array([0.8]), 2)
    array([0.5])
    """
    near = scores >= kth[:, None] - SLACK
    counts = [len(set(row[good].tolist())) for row, good in zip(found, near, strict=True)]
    return np.minimum(np.array(counts, np.float64) / most, 1)


def numbered(folder: Path, vectors: Vectors, nesting: Sequence[int], seed: int) -> tuple[Index, Rows]:
    """An index with its defaults, and a random number from 0 to the count in the payload of each row."""
    numbers = np.random.default_rng([seed, 7]).permutation(len(vectors))
    index = Index.create(folder, nesting)
    index.add(vectors, payload=[{FIELD: number} for number in numbers.tolist()])
    index.build()
    return index, numbers


def promises(
    index: Index, judge: Judge, targets: Sequence[float], *, confidence: float, seen: int, judged: int, draws: int,
    seed: int, threads: int = 1, say: Any = print,
) -> list[dict[str, Any]]:   # fmt: skip
    """Of each target, how often ``judged`` queries outside the draw truly had the promised recall, for each share."""
    pool = Pool(index, judge.queries, threads)
    recalls: dict[tuple[float, float], list[float]] = {(target, share): [] for target in targets
                                                       for share in judge.limits}   # fmt: skip
    plans: dict[float, list[Any]] = {target: [] for target in targets}
    seconds = []
    for turn in range(draws):
        chance = np.random.default_rng([seed, turn])
        drawn = chance.permutation(len(judge.queries))
        rest = np.sort(drawn[seen : seen + judged])
        begin = time.perf_counter()
        choices = choose_each(pool, judge.queries[drawn[:seen]], recalls=targets, k=K, confidence=confidence,
                              seed=turn, progress=False)   # fmt: skip
        seconds.append(time.perf_counter() - begin)
        for target, choice in zip(targets, choices, strict=True):
            assert choice.plan is not None and choice.point is not None   # no budget forbids
            plan = replace(choice.plan, promise=None)   # without it, the searches below feed no watch
            plans[target].append((plan, choice.point.latency))
            for share in judge.limits:
                found = index.search(judge.queries[rest], K, plan, where=judge.where(share), threads=threads).ids
                recalls[target, share].append(float(judge.recalls(share, rest, found).mean()))
            truly = ", ".join(f"{recalls[target, share][-1]:.4f}" for share in judge.limits)
            say(f"{target:g}, draw {turn}: truly {truly}")
    exact = Plan.single(index.nesting.dim, k=K)
    return [{
        "target": target, "confidence": confidence, "k": K, "seen": seen,
        "judged": min(judged, len(judge.queries) - seen),
        "draws": draws, "plans": len({plan for plan, _ in plans[target]}),
        "exact": sum(plan == exact for plan, _ in plans[target]),
        "milliseconds": median(latency for _, latency in plans[target]), "plan_seconds": median(seconds),
        "filters": [outcome(share, judge.limits[share], recalls[target, share], target) for share in judge.limits],
    } for target in targets]   # fmt: skip


def outcome(share: float, rows: int, recalls: Sequence[float], target: float) -> dict[str, Any]:
    """How a promise fared among a share of the rows.

    >>> outcome(0.5, 100, [0.96, 0.94], 0.95)
    {'share': 0.5, 'rows': 100, 'kept': 1, 'recall': 0.95, 'least': 0.94}
    """
    kept = sum(recall >= target for recall in recalls)
    return {"share": share, "rows": rows, "kept": kept, "recall": fmean(recalls), "least": min(recalls)}
