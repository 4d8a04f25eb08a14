"""The fastest search settings of an index that reach a recall on the tuning queries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from support.retrieval_peers import Rows, Settings, Vectors
from support.unseen_peers import Opened, Search
from support.unseen_task import K, Task

FEW = 400   # tuning queries that find about where to look
TIMED = 200   # queries that compare the speed of settings
SPENT, LEAST = 10.0, 500   # seconds of CPU time for the recall of a setting; slow ones see fewer queries, but so many
FINAL = 2   # of the fastest settings by FEW queries, so many are adjusted on all


class Tuner:
    """Remembers the recall of each setting that was tried."""

    def __init__(self, task: Task, opened: Opened) -> None:
        self.task, self.opened, self.queries = task, opened, task.queries("tuning")
        self.recalls: dict[str, tuple[int, float]] = {}

    def fastest(self, target: float) -> tuple[Settings, float] | None:
        """The settings and their recall of all tuning queries; None if none reaches ``target``."""
        near = list[tuple[int, list[Settings]]]()
        for rungs in self.rungs():
            number = first(len(rungs), lambda i, rungs=rungs: self.recall(rungs[i], FEW) >= target)   # type: ignore[misc]
            if number is not None or self.recall(rungs[-1]) >= target:
                near.append((len(rungs) - 1 if number is None else number, rungs))
        if len(near) > FINAL:
            near = sorted(near, key=lambda found: self.seconds(found[1][found[0]]))[:FINAL]
        passed = [settings for number, rungs in near if (settings := self.adjusted(number, rungs, target)) is not None]
        if not passed:
            return None
        settings = min(passed, key=self.seconds) if len(passed) > 1 else passed[0]
        return settings, self.recall(settings)

    def rungs(self) -> list[list[Settings]]:
        """The ladder at each of its other settings, from the cheapest rung."""
        ladder = self.opened.ladder
        return [[({ladder.name: value} if ladder.name else {}) | other for value in ladder.values]
                for other in ladder.others]  # fmt: skip

    def adjusted(self, number: int, rungs: list[Settings], target: float) -> Settings | None:
        """The lowest rung near ``number`` that reaches the target on all tuning queries."""
        while number < len(rungs) and self.recall(rungs[number]) < target:
            number += 1
        while 0 < number < len(rungs) and self.recall(rungs[number - 1]) >= target:
            number -= 1
        return rungs[number] if number < len(rungs) else None

    def recall(self, settings: Settings, count: int | None = None) -> float:
        """Of the first ``count`` queries, by default all that there is time for; or of more where that is known."""
        wanted = count or len(self.queries)
        known = self.recalls.get(str(settings), (0, 0.0))
        if known[0] < wanted:
            found = ask(self.opened.search(settings), self.queries[:wanted])
            known = self.recalls[str(settings)] = wanted, self.task.recall("tuning", found)
        return known[1]

    def seconds(self, settings: Settings) -> float:
        """CPU time, the least of three."""
        search = self.opened.search(settings)
        return min(timed(search, self.queries[:TIMED])[1] for _ in range(3))


def first(count: int, passes: Callable[[int], bool]) -> int | None:
    """The first number that passes, where all later ones do: in steps that double, then by halves."""
    low, high, step = -1, 0, 1
    while not passes(high):
        if high == count - 1:
            return None
        low, high, step = high, min(high + step, count - 1), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def ask(search: Search, queries: Vectors) -> Rows:
    """The ids [n, k], −1 where fewer were found; of fewer queries where they take long."""
    found = np.full((len(queries), K), -1, np.int64)
    begin = time.process_time()
    for number, query in enumerate(queries):
        if number >= LEAST and time.process_time() - begin > SPENT:
            return found[:number]
        ids: Any = np.asarray(search(query)).astype(np.int64)
        found[number, : len(ids)] = ids[:K]
    return found


def timed(search: Search, queries: Vectors) -> tuple[float, float]:
    """Wall time and CPU time of all queries, one at a time."""
    each = list(queries)
    wall, cpu = time.perf_counter(), time.process_time()
    for query in each:
        search(query)
    return time.perf_counter() - wall, time.process_time() - cpu
