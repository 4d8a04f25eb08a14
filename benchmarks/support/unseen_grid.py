"""The best plan by hand: an exhaustive grid over the plans that partitions can follow, compared on tuning queries.

A plan by hand has a shortlist (keep), a share of the rows to visit (probe), and may have a stage in int8 between the
first and the last or a margin on the first. Of the plans that differ in their probe only, the fastest one that reaches
the target is that with the smallest probe, so the grid runs no larger ones. Stages in between and margins are tried at
the shortlists whose plans without them are nearly the fastest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from matryo import Index, Nesting, Plan
from matryo.retrieve.plan.plan import Stage
from support.retrieval_peers import Vectors
from support.unseen_task import K, Task
from support.unseen_tuning import first, timed

FEW = 400   # tuning queries that find about where to look
HOPELESS = 0.02   # a recall of FEW queries that is so far below the target
TIMED, ROUNDS = 100, 3   # queries and rounds that compare the speed of all plans; the best of the rounds counts
FINAL, FINAL_TIMED, FINAL_ROUNDS = 6, 400, 5   # the fastest of these are compared again, by the median of the rounds
NEAR, NEAREST = 1.25, 6   # stages in between and margins are tried where plans take up to so many times the least
WIDEST = 12   # rungs of the probe that such a plan may be above the one without
PARTS = (2, 4, 8)   # shares of the shortlist that a stage in between keeps
MARGINS = (0.02, 0.05, 0.1, 0.2)

Search = Callable[[Vectors], Any]


def ladder(least: float, most: float, step: float) -> list[float]:
    """Numbers from ``least`` to ``most``, each about ``step`` times the one before.

    >>> ladder(1, 8, 2)
    [1.0, 2.0, 4.0, 8.0]
    """
    count = max(1, math.ceil(math.log(most / least) / math.log(step)))
    return [float(f"{least * (most / least) ** (number / count):.4g}") for number in range(count + 1)]


PROBES = ladder(1e-4, 1, 1.04)


def keeps(count: int, k: int = K) -> list[int]:
    """Shortlists, from the largest."""
    most = min(400 * k, count)
    return sorted({round(keep) for keep in ladder(k + 1, most, 1.15)}, reverse=True) if most > k + 1 else []


def by_hand(opening: Plan, dim: int, keep: int, k: int = K) -> Plan:
    """The plan of two stages with this shortlist; its probe is that of the opening."""
    return replace(opening, stages=(replace(opening.stages[0], keep=keep), Stage(dim, k)))


def variants(plan: Plan, nesting: Nesting, k: int = K) -> list[Plan]:
    """``plan`` with a stage in between, or with a margin."""
    start, last = plan.stages
    middles = [Stage(dim, start.keep // part, "int8") for dim in nesting.dims if dim >= start.dim for part in PARTS
               if start.keep // part > k]   # fmt: skip
    return [*(replace(plan, stages=(start, middle, last)) for middle in middles),
            *(replace(plan, stages=(replace(start, margin=margin), last)) for margin in MARGINS)]   # fmt: skip


@dataclass(frozen=True)
class Found:
    """A plan, its recall of all tuning queries, and its CPU seconds per tuning query."""

    plan: Plan
    recall: float
    seconds: float


class Grid:
    """The plans of one index; each is run once, for all targets."""

    def __init__(self, task: Task, index: Index, threads: int = 1) -> None:
        self.task, self.index, self.threads = task, index, threads
        self.queries = task.queries("tuning")
        self.recalls: dict[Plan, tuple[int, float]] = {}
        self.times: dict[Plan, float] = {}

    def best(self, target: float) -> Found:
        """The fastest plan whose recall of the tuning queries reaches ``target``; exact search if no other does."""
        nesting = self.index.nesting
        opening = next(plan for plan in self.index.openings if plan.probe is not None)
        plain, start = [Plan.single(nesting.dim, k=K)], 0
        for keep in keeps(len(self.index)):
            # A shorter list needs at least as large a probe, but for a few misses that are due to chance.
            found = self.least(by_hand(opening, nesting.dim, keep), target, max(0, start - 3))
            if found is None:
                break
            start, passed = found
            plain.append(passed)
        order = self.fastest(plain)
        near = [plan for plan in order[:NEAREST] if self.time(plan) <= NEAR * self.time(order[0])]
        more = []
        for plan in near:
            if plan.probe is not None:
                rung = PROBES.index(plan.probe)
                passing = (self.least(one, target, rung, rung + WIDEST) for one in variants(plan, nesting))
                more += [found[1] for found in passing if found is not None]
        return self.compared(self.fastest([*near, *more])[:FINAL])

    def least(self, plan: Plan, target: float, start: int = 0, stop: int = len(PROBES)) -> tuple[int, Plan] | None:
        """The smallest probe of those from ``start`` to ``stop`` with which ``plan`` reaches the target: its rung."""
        rungs = [replace(plan, probe=probe) for probe in PROBES[start:stop]]
        number = first(len(rungs), lambda place: self.recall(rungs[place], FEW) >= target)
        if number is None:
            if self.recall(rungs[-1], FEW) < target - HOPELESS:
                return None
            number = len(rungs) - 1
        while number < len(rungs) and self.recall(rungs[number]) < target:
            number += 1
        while 0 < number < len(rungs) and self.recall(rungs[number - 1]) >= target:
            number -= 1
        return None if number == len(rungs) else (start + number, rungs[number])

    def recall(self, plan: Plan, count: int | None = None) -> float:
        """Of the first ``count`` tuning queries, by default of all; or of more, where that is known."""
        wanted = count or len(self.queries)
        known = self.recalls.get(plan, (0, 0.0))
        if known[0] < wanted:
            found = self.index.search(self.queries[:wanted], K, plan, threads=self.threads).ids
            known = self.recalls[plan] = min(wanted, len(self.queries)), self.task.recall("tuning", found)
        return known[1]

    def time(self, plan: Plan) -> float:
        """CPU seconds for one query after another, the least of some rounds."""
        if plan not in self.times:
            search = searching(self.index, plan)
            search(self.queries[0])
            count = len(self.queries[:TIMED])
            self.times[plan] = min(timed(search, self.queries[:TIMED])[1] / count for _ in range(ROUNDS))
        return self.times[plan]

    def fastest(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans, sorted by time."""
        return sorted(dict.fromkeys(plans), key=self.time)

    def compared(self, plans: Sequence[Plan]) -> Found:
        """The fastest of a few plans, which take turns."""
        searches = {str(number): searching(self.index, plan) for number, plan in enumerate(plans)}
        times = in_turns(searches, self.queries[-FINAL_TIMED:], FINAL_ROUNDS, seconds=0.5)
        number = min(range(len(plans)), key=lambda place: median(times[str(place)]))
        return Found(plans[number], self.recall(plans[number]), median(times[str(number)]))


def searching(index: Index, plan: Any) -> Search:
    """The search of one query [d]."""
    return lambda query: index.search(query[None], K, plan).ids[0]


def in_turns(searches: dict[str, Search], queries: Vectors, rounds: int, seconds: float) -> dict[str, list[float]]:
    """CPU seconds per query of each search in each round, of as many queries as take about ``seconds``."""
    counts = {}
    for name, search in searches.items():
        few = queries[:20]
        timed(search, few)   # wakes caches
        each = max(timed(search, few)[1] / len(few), 1e-7)
        counts[name] = min(len(queries), max(50, round(seconds / each)))
    times: dict[str, list[float]] = {name: [] for name in searches}
    for number in range(rounds):
        order = list(searches) if number % 2 == 0 else list(searches)[::-1]
        for name in order:
            asked = queries[: counts[name]]
            times[name].append(timed(searches[name], asked)[1] / len(asked))
    return times


def compare(task: Task, index: Index, target: float, grid: Grid, rounds: int, seconds: float) -> dict[str, Any]:
    """The plan of the planner beside plans by hand: the fastest at the target, and the fastest that is as safe.

    The planner promises the target for other queries, so its plan has a recall above the target. The plan that is as
    safe has at least this recall of the tuning queries. The difference between the two is the price of the promise.
    """
    tuning, tests = task.queries("tuning"), task.queries("test")
    begin = time.perf_counter()
    choice = index.plan(recall=target, k=K, queries=tuning, progress=False)
    plan_seconds = time.perf_counter() - begin
    bare = replace(choice.plan, promise=None)
    hand = grid.best(target)
    safe = grid.best(max(target, grid.recall(bare)))
    plans = {"chosen": choice.plan, "bare": bare, "hand": hand.plan, "safe": safe.plan}
    times = in_turns({name: searching(index, plan) for name, plan in plans.items()}, tests, rounds, seconds)
    if median(times["safe"]) < median(times["hand"]):   # it reaches the target as well
        plans["hand"], times["hand"] = plans["safe"], times["safe"]
    figures: dict[str, Any] = {"target": target, "plan_seconds": plan_seconds, "grid_plans": len(grid.recalls)}
    for name, plan in plans.items():
        alone = replace(plan, promise=None)
        found = index.search(tests, K, alone, threads=grid.threads).ids
        figures[name] = {
            "plan": alone.to_dict(), "tuning_recall@10": grid.recall(alone),
            "recall@10": task.recall("test", found), "cpu_microseconds": [round(1e6 * t, 3) for t in times[name]],
        }  # fmt: skip
    return figures


def ratio(figures: dict[str, Any], name: str, other: str) -> float:
    """How many times as long one plan takes as another: the median over the rounds."""
    pairs = zip(figures[name]["cpu_microseconds"], figures[other]["cpu_microseconds"], strict=True)
    return float(median(one / another for one, another in pairs))
