"""Shift: searches that score differently from the planning queries, because the queries or the index are others.

The k-th score says best how hard a query is for a plan: the lower it is, the more rows compete for the last places.
A watch collects the k-th scores of searches in blocks, and compares each block with the planning queries by the test
of Kolmogorov and Smirnov. If searches are like the planning queries, a watch warns with a probability of at most 1 %,
however long it runs: test number n may warn with probability 0.01 / (n (n + 1)), which sums to 0.01.
"""

from __future__ import annotations

import math
import threading
import warnings
from typing import TYPE_CHECKING

import numpy as np

from matryo.errors import ShiftWarning
from matryo.retrieve.plan.promise import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve.plan.promise import Promise
    from matryo.retrieve.vectors.types import Floats

__all__ = ["FALSE_ALARMS", "Watch", "Watches", "chance_of", "span"]

FALSE_ALARMS = 0.01
"""The largest probability that a watch ever warns while queries are like the planning queries."""
_FIRST, _MOST = 64, 512   # queries of the first block; each one has twice as many as the one before, up to the most
_FACTOR = 2.16863   # the bound of Wei and Dudley (2012) for two samples, at least 4 of each; 2 for large ones


def chance_of(distance: float, count: int, planned: int) -> float:
    """An upper bound on the probability of at least this distance between two samples of one distribution.

    >>> chance_of(0.25, 64, 500) < 0.01 < chance_of(0.20, 64, 500)
    True
    """
    if not count or not planned:
        return 1.0
    return min(1.0, _FACTOR * math.exp(-2 * distance**2 * count * planned / (count + planned)))


class Watch:
    """Compares the k-th scores of searches with a promise, and warns once. Threads may share it.

    Searches only add to a set, which is atomic. A thread that finds another one testing does not wait for it.
    """

    def __init__(self, promise: Promise) -> None:
        self.promise, self.column = promise, promise.k - 1
        self.block: set[float] = set()   # a set: a query that is repeated, as in a benchmark, counts once
        self.size, self.tests, self.done = _FIRST, 0, not promise.queries   # exact search keeps any promise
        self._testing = threading.Lock()

    def see(self, scores: Floats) -> None:
        """Add the scores [queries, k] of a search; warn if the block that they complete differs too much."""
        column, block = self.column, self.block
        if self.done or column >= scores.shape[1]:   # fewer hits than the plan was made for
            return
        if len(scores) == 1:
            block.add(scores.item(column))
        else:
            block.update(scores[:, column].tolist())
        if len(block) >= self.size:
            self._test()

    def _test(self) -> None:
        if not self._testing.acquire(blocking=False):
            return
        try:
            if self.done or len(self.block) < self.size:   # another thread has just tested
                return
            block, self.block = self.block, set()
            scores = distinct(np.array([*block]))
            self.tests += 1
            self.size = min(2 * self.size, _MOST)
            distance = self.promise.distance(scores)
            chance = chance_of(distance, len(scores), min(self.promise.queries))
            self.done = differ = chance <= FALSE_ALARMS / (self.tests * (self.tests + 1))
        finally:
            self._testing.release()
        if differ:
            warnings.warn(_message(self.promise, float(np.median(scores)), distance), ShiftWarning, stacklevel=6)


class Watches:
    """The watches of an open index, one per promise: a plan that is read from its file again keeps its watch."""

    def __init__(self) -> None:
        self._by_promise: dict[Promise, Watch] = {}

    def see(self, promise: Promise, scores: Floats) -> None:
        """Add the scores [queries, k] of a search with a plan of this promise."""
        watch = self._by_promise.get(promise)
        if watch is None:
            watch = self._by_promise.setdefault(promise, Watch(promise))
        watch.see(scores)


def span(values: Sequence[float]) -> str:
    """The smallest and the largest value, in words.

    >>> span([0.25]), span([0.5, 0.25, 1])
    ('0.25', '0.25 to 1')
    """
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _message(promise: Promise, median: float, distance: float) -> str:
    planned = f"{span(promise.medians)} when planning, distance {distance:.2f}"
    return (
        f"these queries score differently from those that the plan was made for, so its {promise.metric} of "
        f"{100 * promise.recall:.4g}% may not hold (got a median k-th score of {median:.4g}, {planned}): measure with "
        "index.check(queries, plan) or matryo check, and plan again with such queries"
    )
