"""Thresholds chosen together, to maximise an objective: here, accuracy within a budget of dims.

With all thresholds but one fixed, the best value of that one is found exactly: sort the rows that reach its dim by
confidence, and sum what stopping changes for every possible cut. Repeating this from the last dim to the first until
nothing improves reaches a local optimum (coordinate ascent). For a budget, ascents start along a path of prices per dim
in both directions, and from the greedy thresholds, so that the result is never worse than these. Finally, single
thresholds are moved while the others adapt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from matryo.classify.outcomes import ALWAYS, NEVER
from matryo.classify.thresholds.greedy import greedy_thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Doubles, Integers
    from matryo.classify.outcomes import Outcomes

Worth = Callable[["Integers"], "Doubles"]
"""An objective of cascades, from their tallies [3, cascades] over all rows: right answers, rows where exactly one of
cascade and last dim is right, and dims used. Tallies are integers, so that equal cascades compare equal."""

_PRICES = 32
_SWEEPS = 50
_STARTS = 3


class Climb:
    """Coordinate ascent: improves one threshold at a time, each exactly, on some rows."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes
        self.orders = np.argsort(-outcomes.confidence[:-1], axis=1, kind="stable")
        apart = outcomes.correct != outcomes.correct[-1]
        dims = np.broadcast_to(np.array(outcomes.dims)[:, None], apart.shape)
        self.tallies = np.stack([outcomes.correct, apart, dims], axis=1).astype(np.int64)   # [dims, 3, n]

    def total(self, thresholds: Doubles) -> Integers:
        """Return [3]: the tallies of the cascade with these ``thresholds``."""
        exits = self.outcomes.exits(thresholds)
        return np.asarray(self.tallies[exits, :, np.arange(len(exits))].sum(axis=0))

    def value(self, thresholds: Doubles, worth: Worth) -> float:
        """Return the objective of the cascade with these ``thresholds``."""
        return float(worth(self.total(thresholds)))

    def best(self, cascades: list[Doubles], worth: Worth) -> Doubles:
        """Return the first of ``cascades`` with the largest objective."""
        return max(cascades, key=lambda thresholds: self.value(thresholds, worth))

    def climb(self, thresholds: Doubles, worth: Worth) -> Doubles:
        """Improve ``thresholds`` until no single change helps."""
        for _ in range(_SWEEPS):
            before, thresholds = thresholds, self._sweep(thresholds, worth)
            if (before == thresholds).all():
                break
        return thresholds

    def exchange(self, thresholds: Doubles, worth: Worth) -> Doubles:
        """Leave a local optimum: move one threshold, let all others adapt, keep improvements."""
        value = self.value(thresholds, worth)
        for place, confidence in enumerate(np.sort(self.outcomes.confidence[:-1], axis=1)):
            for other in _elsewhere(confidence, thresholds[place]):
                moved = thresholds.copy()
                moved[place] = other
                moved = self._sweep(moved, worth, fixed=place)
                if self.value(moved, worth) > value:
                    thresholds = self.climb(moved, worth)
                    value = self.value(thresholds, worth)
        return thresholds

    def _sweep(self, thresholds: Doubles, worth: Worth, fixed: int | None = None) -> Doubles:
        improved, exits = thresholds.copy(), self.outcomes.exits(thresholds)
        settled = self.tallies[exits, :, np.arange(len(exits))].T   # [3, n]: for rows that stop earlier
        later = self.tallies[-1]                                    # [3, n]: for rows that stop later
        for place in reversed(range(len(improved))):
            confidence = self.outcomes.confidence[place]
            if place != fixed:
                order = self.orders[place][exits[self.orders[place]] >= place]
                none_stops = np.where(exits < place, settled, later).sum(axis=1)
                totals = np.column_stack([none_stops, (self.tallies[place] - later)[:, order]]).cumsum(axis=1)
                improved[place] = _cut(confidence[order], totals, worth, improved[place])
            later = np.where(confidence >= improved[place], self.tallies[place], later)
        return improved


def _cut(confidence: Doubles, totals: Integers, worth: Worth, threshold: float) -> float:
    """Return the threshold that stops the best number of rows; the given one if none is better."""
    between = np.flatnonzero(confidence[:-1] > confidence[1:]) + 1   # rows of equal confidence stay together
    cuts = np.concatenate([[0], between, [len(confidence)]])
    values = worth(totals[:, cuts])
    if float(worth(totals[:, (confidence >= threshold).sum()])) >= values.max():
        return threshold
    best = cuts[len(cuts) - 1 - np.argmax(values[::-1])]   # of equals, the cut that stops most rows
    return _between(confidence[::-1], len(confidence) - int(best))


def _between(confidence: Doubles, below: int) -> float:
    """Return a threshold above the first ``below`` of ``confidence``, which is sorted, and not above the rest."""
    if below == 0:
        return ALWAYS
    if below == len(confidence):
        return NEVER
    # Midway, so that no row changes sides when another batch rounds its confidence differently.
    low, high = confidence[below - 1], confidence[below]
    middle = (low + high) / 2
    return float(middle if middle > low else high)


def _elsewhere(confidence: Doubles, threshold: float) -> list[float]:
    """Return other thresholds to try: some more or fewer rows stop, and steps over the whole range."""
    count, here = len(confidence), int(np.searchsorted(confidence, threshold))
    steps = [max(1, count * percent // 100) for percent in (1, 4, 16)]
    places = {*(here + step for step in steps), *(here - step for step in steps), *range(0, count + 1, -(-count // 4))}
    return [_between(confidence, place) for place in sorted(places) if 0 <= place <= count and place != here]


def price_path(outcomes: Outcomes) -> list[Doubles]:
    """Return cascades from the most accurate to the cheapest: the best found for each of a series of prices per dim."""
    dims, climb = outcomes.dims, Climb(outcomes)
    if len(dims) == 1:
        return [np.empty(0)]
    # At the lowest price one right answer outweighs all dims; at the highest it does not outweigh the second dim.
    prices = np.geomspace(0.5 / (outcomes.count * dims[-1]), 1 / (dims[1] - dims[0]), _PRICES).tolist()
    rising = _walk(climb, greedy_thresholds(outcomes), prices)
    falling = _walk(climb, np.full(len(dims) - 1, ALWAYS), prices[::-1])[::-1]
    return [
        climb.best([up, down], _priced(price)) for price, up, down in zip(prices, rising, falling, strict=True)
    ]


def _walk(climb: Climb, thresholds: Doubles, prices: list[float]) -> list[Doubles]:
    path = []
    for price in prices:
        thresholds = climb.climb(thresholds, _priced(price))
        path.append(thresholds)
    return path


def budget_thresholds(outcomes: Outcomes, budgets: Sequence[float]) -> list[Doubles]:
    """Return the most accurate cascade found for each expected dim of ``budgets`` on these rows.

    It is at least as accurate as any greedy cascade within the budget, stopped at any dim.
    """
    climb, greedy = Climb(outcomes), greedy_thresholds(outcomes)
    stopped = [np.where(np.arange(len(greedy)) < last, greedy, ALWAYS) for last in range(len(greedy) + 1)]
    starts = [*price_path(outcomes), *stopped]
    chosen: dict[float, Doubles] = {}
    best: Doubles | None = None
    for budget in sorted(budgets, reverse=True):
        limit = budget * outcomes.count * (1 + 1e-9)   # the budget may be a rounded mean over these rows
        if best is None or climb.total(best)[2] > limit:   # else the best for a larger budget fits this one too
            best = _best_within(climb, starts, limit)
        chosen[budget] = best
    return [chosen[budget] for budget in budgets]


def _best_within(climb: Climb, starts: list[Doubles], limit: float) -> Doubles:
    worth = _within(limit)
    near = sorted(starts, key=lambda thresholds: -climb.value(thresholds, worth))[:_STARTS]
    return climb.exchange(climb.best([climb.climb(start, worth) for start in near], worth), worth)


def _priced(price: float) -> Worth:
    return lambda tallies: tallies[0] - price * tallies[2]


def _within(limit: float) -> Worth:
    # Within the limit: right answers, then fewer dims. Beyond the limit: only fewer dims.
    return lambda tallies: np.where(
        tallies[2] <= limit, tallies[0] - tallies[2] / (limit + 1), -tallies[2].astype(np.float64)
    )
