"""A check: the recall of a plan on given queries, and whether the promise of the planner holds for them.

>>> from matryo.retrieve.plan.plan import Plan
>>> print(Check(Plan.adaptive(16, 64, keep=80), k=10, target=0.95, recall=0.902, lower=0.889, upper=0.915,
...             confidence=0.95, queries=1000, latency=0.05, exact_latency=0.6,
...             score=0.41, planned_scores=(0.64,), distance=0.58, chance=1e-80))
plan       16:80 → 64
recall@10  90.20% on 1,000 queries; between 88.90% and 91.50%, each with 95% confidence
promise    recall@10 ≥ 95%: broken
latency    0.05 ms per query; exact search takes 0.6 ms
k-th score 0.41 in the median, 0.64 when planning: differs (distance 0.58)
the plan misses its recall on these queries: plan again with queries=… of all kinds, and name the kinds with robust=…
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from matryo.arguments import as_number
from matryo.errors import InputError
from matryo.results import Result
from matryo.retrieve.plan.bounds import best_stake, lower_bound, predicted_bound
from matryo.retrieve.plan.choice import Choice, as_plan, outline, short_number
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.plan.promise import Promise, distinct
from matryo.retrieve.plan.shift import FALSE_ALARMS, chance_of, span
from matryo.retrieve.plan.trials import Trials
from matryo.retrieve.plan.workload import workload_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from matryo.retrieve.plan.searcher import Searcher
    from matryo.retrieve.vectors.types import Doubles

_FEWEST = 20   # queries
_TUNING = 0.25   # the share of queries that determines the stakes of the bounds; the others give the bounds
_FAR = 1_000_000   # queries that nobody would collect to decide


@dataclass(frozen=True)
class Check(Result):
    """The recall of a plan on some queries, relative to exact search, with bounds for all queries of their kind."""

    kind: ClassVar[str] = "check"
    plan: Plan
    k: int
    target: float
    """The promised recall, or the one that was passed."""
    recall: float
    """The mean over the queries."""
    lower: float
    """The mean over all queries of this kind is at least this, with ``confidence``."""
    upper: float
    """It is at most this, with ``confidence``."""
    confidence: float
    queries: int
    """The number of queries."""
    latency: float
    """Milliseconds per query of the plan, one query at a time."""
    exact_latency: float
    """Milliseconds per query of exact search."""
    score: float
    """The median k-th score that the plan found."""
    planned_scores: tuple[float, ...] = ()
    """The median k-th score of each group of planning queries; empty for a plan without a promise."""
    distance: float | None = None
    """How far the k-th scores are distributed from those of the planning queries, 0 to 1; None without a promise."""
    chance: float | None = None
    """An upper bound on the probability of this distance for queries like the planning queries."""
    needed: int | None = None
    """If undecided: about how many queries like these would decide; None if more than a million."""

    @property
    def verdict(self) -> Literal["holds", "broken", "undecided"]:
        """Whether all queries of this kind reach the target in the mean; each answer is right with ``confidence``."""
        return "holds" if self.lower >= self.target else "broken" if self.upper < self.target else "undecided"

    @property
    def shifted(self) -> bool | None:
        """Whether these queries differ from the planning queries, with a false-alarm rate of 1 %."""
        return None if self.chance is None else self.chance <= FALSE_ALARMS

    @property
    def message(self) -> str:
        """One sentence: the verdict, and what to do."""
        if self.verdict == "holds":
            return "the plan reaches its recall on these queries"
        if self.verdict == "broken":
            cure = "plan again with queries=… of all kinds, and name the kinds with robust=…"
            return f"the plan misses its recall on these queries: {cure}"
        cure = "plan again with them to be safe" if self.needed is None else f"about {self.needed:,} would decide"
        return f"{self.queries:,} queries are too few to decide: {cure}"

    def to_rows(self) -> list[dict[str, Any]]:
        """The check as a list of one flat dict, for a data frame or a CSV file."""
        planned = span(self.planned_scores) if self.planned_scores else None
        own = {"plan": outline(self.plan, self.k), "planned_scores": planned}
        return [self.to_figures() | own]

    def to_figures(self) -> dict[str, Any]:
        """The check as plain JSON values, for the figures of a stored row."""
        return super().to_figures() | {"plan": self.plan.to_dict(), "verdict": self.verdict, "shifted": self.shifted}

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Self:
        """Rebuild a check from :meth:`to_figures`."""
        fields = {name: value for name, value in figures.items() if name not in ("verdict", "shifted")}
        return cls(**{**fields, "plan": Plan.from_dict(figures["plan"]),
                      "planned_scores": tuple(figures["planned_scores"])})   # fmt: skip

    def __str__(self) -> str:
        name, bounds = f"recall@{self.k}", f"between {100 * self.lower:.2f}% and {100 * self.upper:.2f}%"
        planned = ""
        if self.planned_scores:
            differs = "differs" if self.shifted else "no difference detected"
            planned = f", {span(self.planned_scores)} when planning: {differs} (distance {self.distance:.2f})"
        lines = {
            "plan": outline(self.plan, self.k),
            name: f"{100 * self.recall:.2f}% on {self.queries:,} queries; {bounds}, each with {self.confidence:.0%} "
                  "confidence",
            "promise": f"{name} ≥ {100 * self.target:.4g}%: {self.verdict}",
            "latency": f"{short_number(self.latency)} ms per query; exact search takes "
                       f"{short_number(self.exact_latency)} ms",
            "k-th score": f"{self.score:.4g} in the median{planned}",
        }   # fmt: skip
        return "\n".join([*(f"{title:10} {text}" for title, text in lines.items()), self.message])


def check(
    searcher: Searcher,
    queries: Any,
    plan: Any,
    *,
    k: int | None = None,
    recall: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Check:
    """Measure the mean recall of ``plan`` on ``queries`` [n, d] against exact search, and judge its promise.

    ``recall`` and ``k`` are those of the promise by default; a plan without a promise needs ``recall``, and k is 10.
    A quarter of the queries determines the stakes of the two bounds, and the others give the bounds.
    """
    promise = _promise_of(plan)
    plan = replace(as_plan(plan), promise=None)   # without it, the searches below feed no watch
    target = _target(promise, recall)
    as_number(confidence, "confidence", 0.5, 0.999999, cure="pass confidence=0.95")
    if queries is None:
        raise InputError("a check needs queries", got=None, cure="pass vectors of real queries")
    k = k if k is not None else promise.k if promise is not None else 10
    workload = workload_of(searcher, queries, k, None, 0, seed, False)
    if workload.count < _FEWEST:
        raise InputError(f"a check needs at least {_FEWEST} queries", got=workload.count, cure="pass more queries")
    k, hits = workload.k, workload.find(plan, workload.k)
    worth, scores = workload.worth(hits), hits.scores[:, -1].astype(np.float64)
    lower, upper = _bounds(worth, confidence)
    trials, exact = Trials(workload, workload.count, "latency", None), Plan.single(searcher.nesting.dim, k=k)
    latency, exact_latency = trials.time([plan, exact])
    result = Check(
        plan=plan, k=k, target=target, recall=float(worth.mean()), lower=lower, upper=upper, confidence=confidence,
        queries=workload.count, latency=latency, exact_latency=exact_latency, score=float(np.median(scores)),
        **_shift(promise, k, scores),
    )  # fmt: skip
    return replace(result, needed=_needed(worth, target, confidence)) if result.verdict == "undecided" else result


def _promise_of(plan: Any) -> Promise | None:
    promise = as_plan(plan).promise
    if promise is None and isinstance(plan, Choice):   # made by hand
        promise = Promise(plan.target, plan.k, plan.confidence, queries=(), scores=(), metric=plan.metric)
    return promise


def _target(promise: Promise | None, recall: float | None) -> float:
    if recall is None and (promise is None or promise.metric != "recall"):
        lacks = "the plan promises no recall" if promise is None else "the plan promises mAP, not recall"
        raise InputError(f"{lacks}, so the check needs one", got="recall=None", cure="pass recall=0.95")
    given = promise.recall if recall is None and promise is not None else recall
    return as_number(given, "recall", 0, 1, cure="write 95 % as 0.95")


def _shift(promise: Promise | None, k: int, scores: Doubles) -> dict[str, Any]:
    """The comparison with the planning queries, if they had as many hits."""
    if promise is None or not promise.scores or promise.k != k:
        return {}
    distance = promise.distance(scores)
    chance = chance_of(distance, len(distinct(scores)), min(promise.queries))
    return {"planned_scores": promise.medians, "distance": distance, "chance": chance}


def _bounds(worth: Doubles, confidence: float) -> tuple[float, float]:
    """The lower and the upper bound on the mean, for queries in random order; the mean itself lies between them."""
    tuning, tests = np.split(worth, [max(1, round(_TUNING * len(worth)))])
    ends = []
    for before, values in ((tuning, tests), (1 - tuning, 1 - tests)):   # the upper bound is the lower one of the misses
        stake = best_stake(before, np.ones(len(before)), len(values), confidence)
        ends.append(lower_bound(values, np.ones(len(values)), stake, confidence))
    mean = float(worth.mean())
    return min(ends[0], mean), max(1 - ends[1], mean)


def _needed(worth: Doubles, target: float, confidence: float) -> int | None:
    """About how many queries like these would decide; None if more than a million."""
    base, count = np.ones(len(worth)), len(worth)
    while count < _FAR:
        count *= 2
        tests = round((1 - _TUNING) * count)
        lower, misses = (predicted_bound(values, base, tests, confidence) for values in (worth, 1 - worth))
        if lower >= target or 1 - misses < target:
            return int(float(f"{count:.2g}"))
    return None
