"""Trials: plans that were run on the tuning queries, with what they find and what they cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.retrieve.plan.bounds import best_stake, lower_bound, predicted_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matryo.retrieve.plan.choice import Cost
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.plan.workload import Workload
    from matryo.retrieve.vectors.types import Doubles, Indices

_TIMED, _ROUNDS, _PATIENCE = 60, 4, 0.5   # timing: queries, rounds, and the most seconds per plan and round


class Trial(NamedTuple):
    """A plan that was run: its recall (or AP) per tuning query, and its cost per query."""

    plan: Plan
    worth: Doubles
    latency: float | None
    bytes: float
    mflops: float


@dataclass(frozen=True, eq=False)
class Goal:
    """A recall to be promised: the target, the confidence, and the queries whose mean must reach it."""

    target: float
    confidence: float
    base: Doubles
    """The quality of exact search per query: the tuning queries, then the test queries."""
    groups: Indices
    """The group of each query: the mean of every group must reach the target."""
    tuning: int
    """The number of tuning queries."""

    def expected(self, worth: Doubles) -> float:
        """The bound that the test queries would give if they were like the tuning queries."""
        return min(predicted_bound(worth[own], self.base[: self.tuning][own], tests, self.confidence)
                   for own, tests in self._parts(tuning=True))  # fmt: skip

    def is_sure(self, worth: Doubles) -> bool:
        """Whether the expected bound is above the target by three standard errors, of the tuning and test queries."""
        for own, tests in self._parts(tuning=True):
            base = self.base[: self.tuning][own]
            error = np.std(worth[own] - self.target * base) * (1 / len(own) + 1 / tests) ** 0.5 / max(base.mean(), 1e-9)
            if predicted_bound(worth[own], base, tests, self.confidence) - 3 * error < self.target:
                return False
        return True

    def lower(self, before: Doubles, worth: Doubles) -> float:
        """The bound from the ``worth`` of the test queries; ``before`` is that of the tuning queries."""
        bases = self.base[: self.tuning], self.base[self.tuning :]
        bounds = []
        for (own, tests), (other, _) in zip(self._parts(tuning=True), self._parts(tuning=False), strict=True):
            stake = best_stake(before[own], bases[0][own], tests, self.confidence)   # from the tuning queries only
            bounds.append(lower_bound(worth[other], bases[1][other], stake, self.confidence))
        return min(bounds)

    def _parts(self, *, tuning: bool) -> list[tuple[Indices, int]]:
        parts = []
        for group in range(int(self.groups.max(initial=0)) + 1):
            before, after = self.groups[: self.tuning] == group, self.groups[self.tuning :] == group
            parts.append((np.flatnonzero(before if tuning else after), int(after.sum())))
        return parts


class Trials:
    """Runs plans on the first ``tuning`` queries of a workload, each plan once."""

    def __init__(self, workload: Workload, tuning: int, cost: Cost, bar: Any) -> None:
        self.workload, self.tuning, self.cost, self.bar = workload, tuning, cost, bar
        self._worth: dict[Plan, Doubles] = {}

    def worth(self, plan: Plan) -> Doubles:
        """The recall (or AP) of ``plan`` per tuning query."""
        if plan not in self._worth:
            self._worth[plan] = self.workload.run(plan, slice(self.tuning))
            self.bar.update()
        return self._worth[plan]

    def scores(self, plan: Plan, k: int) -> Doubles:
        """The scores of the ``k`` hits of ``plan`` for each tuning query."""
        return np.asarray(self.workload.find(plan, k, slice(self.tuning)).scores, np.float64)

    def run(self, plans: Sequence[Plan], read: Callable[[Plan], tuple[float, float]] | None = None) -> list[Trial]:
        """Run plans and measure their costs; ``read`` returns bytes and MFLOPs if they are not those of the plan."""
        read = read or self.read
        return self.timed([Trial(plan, self.worth(plan), None, *read(plan)) for plan in plans])

    def timed(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials with their latency, if that is the cost."""
        if self.cost != "latency":
            return list(trials)
        taken = self.time([trial.plan for trial in trials])
        return [trial._replace(latency=latency) for trial, latency in zip(trials, taken, strict=True)]

    def time(self, plans: Sequence[Plan]) -> list[float]:
        """Milliseconds per query, one at a time: the mean over queries of the best round.

        Plans alternate within a round, so that they share what else the machine does.
        """
        queries = self.workload.queries[: min(_TIMED, self.tuning)]
        best = [np.full(len(queries), np.inf) for _ in plans]
        for number in range(_ROUNDS):
            for plan, times in zip(plans, best, strict=True):
                if not number:   # warm up
                    self.workload.searcher.search(queries[:2], self.workload.k, plan)
                end = time.perf_counter() + _PATIENCE
                for place, query in enumerate(queries):
                    start = time.perf_counter()
                    if start > end and place:
                        break
                    self.workload.searcher.search(query[None], self.workload.k, plan)
                    times[place] = min(times[place], time.perf_counter() - start)
        return [1000 * float(times[np.isfinite(times)].mean()) for times in best]

    def read(self, plan: Plan) -> tuple[float, float]:
        """Bytes and MFLOPs per query."""
        searcher = self.workload.searcher
        return plan.bytes(searcher.count, searcher.dtype), plan.mflops(searcher.count)

    def price(self, trial: Trial) -> float:
        """The cost of the plan, in the unit to minimise."""
        return float(getattr(trial, self.cost))

    def share(self, trial: Trial) -> float:
        """The recall, or the mAP relative to exact search."""
        return float(trial.worth.sum() / self.workload.base[: self.tuning].sum())


def widened(plan: Plan, effort: float, keep: float) -> Plan:
    """``plan`` with its probe or ef multiplied by ``effort``, and its keeps and margins by ``keep``.

    >>> from matryo.retrieve.plan.plan import Plan
    >>> [stage.keep for stage in widened(Plan.of([(16, 100), (32, 40), (64, 10)]), 1, 2).stages]
    [200, 80, 10]
    """
    *before, last = plan.stages
    wide = tuple(
        replace(stage, keep=max(last.keep, round(stage.keep * keep)),
                margin=None if stage.margin is None else float(f"{stage.margin * keep:.3g}"))
        for stage in before
    )  # fmt: skip
    probe = None if plan.probe is None else float(f"{min(1.0, plan.probe * effort):.3g}")
    ef = None if plan.ef is None else max(round(plan.ef * effort), wide[0].keep if wide else last.keep)
    return replace(plan, stages=(*wide, last), probe=probe, ef=ef)
