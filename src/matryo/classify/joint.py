"""Thresholds chosen together, for whatever a cascade is worth: here, the best accuracy within a budget of dims.

With all thresholds but one fixed, the best value of that one is found exactly: sort the rows that reach its dim by
confidence, and for every place to cut add up what stopping there changes. Doing so dim after dim, from the last to the
first, until nothing improves climbs to a local optimum. For a budget, climbs start along a path of prices a dim that is
walked in both directions, and from the greedy thresholds, so that the result is never worse than these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.classify.greedy import greedy_thresholds
from matryo.classify.outcomes import ALWAYS, NEVER

if TYPE_CHECKING:
    from matryo.classify.outcomes import Outcomes

    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Climb", "Worth", "budget_thresholds", "price_path"]

Worth = Callable[["Integers"], "Doubles"]
"""What cascades are worth, from their tallies [3, cascades] over all rows: right answers, rows that are right where the
last dim is wrong or the other way round, and dims used. Tallies are whole numbers, so equal cascades are equal."""

_PRICES = 32
_SWEEPS = 50
_STARTS = 4


class Climb:
    """Improves thresholds, one at a time and each exactly, by what they make of some rows."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes
        self.orders = np.argsort(-outcomes.confidence[:-1], axis=1, kind="stable")
        apart = outcomes.correct != outcomes.correct[-1]
        dims = np.broadcast_to(np.array(outcomes.dims)[:, None], apart.shape)
        self.tallies = np.stack([outcomes.correct, apart, dims], axis=1).astype(np.int64)   # [dims, 3, n]

    def total(self, thresholds: Doubles) -> Integers:
        """[3]: the tallies of the cascade with these ``thresholds``."""
        exits = self.outcomes.exits(thresholds)
        return np.asarray(self.tallies[exits, :, np.arange(len(exits))].sum(axis=0))

    def best(self, cascades: list[Doubles], worth: Worth) -> Doubles:
        """The one of ``cascades`` that is worth most; the first of equals."""
        return max(cascades, key=lambda thresholds: float(worth(self.total(thresholds))))

    def climb(self, thresholds: Doubles, worth: Worth) -> Doubles:
        """Improve ``thresholds`` until no single change does."""
        for _ in range(_SWEEPS):
            better = self._sweep(thresholds, worth)
            if self.best([thresholds, better], worth) is thresholds:
                break
            thresholds = better
        return thresholds

    def _sweep(self, thresholds: Doubles, worth: Worth) -> Doubles:
        found, exits = thresholds.copy(), self.outcomes.exits(thresholds)
        settled = self.tallies[exits, :, np.arange(len(exits))].T   # [3, n]: of rows that stop earlier
        later = self.tallies[-1]                                    # [3, n]: of rows that go on from here
        for place in reversed(range(len(found))):
            order = self.orders[place][exits[self.orders[place]] >= place]
            none_stops = settled[:, exits < place].sum(axis=1) + later[:, order].sum(axis=1)
            changes = np.cumsum(self.tallies[place][:, order] - later[:, order], axis=1)
            totals = none_stops[:, None] + np.pad(changes, ((0, 0), (1, 0)))
            confidence = self.outcomes.confidence[place]
            found[place] = _cut(confidence[order], totals, worth)
            later = np.where(confidence >= found[place], self.tallies[place], later)
        return found


def _cut(confidence: Doubles, totals: Integers, worth: Worth) -> float:
    """The threshold that stops the best number of rows, most confident first; equal ones stay together."""
    places = np.flatnonzero(confidence[:-1] > confidence[1:]) + 1
    places = np.unique(np.concatenate([[0], places, [len(confidence)]]))
    values = worth(totals[:, places])
    best = places[len(places) - 1 - int(np.argmax(values[::-1]))]   # of equals, the one that stops most rows
    if best == len(confidence):
        return ALWAYS
    if best == 0:
        return NEVER
    # Midway, so that no row changes sides when another batch rounds its confidence differently.
    above, below = confidence[best - 1], confidence[best]
    middle = (above + below) / 2
    return float(middle if middle > below else above)


def price_path(outcomes: Outcomes) -> list[Doubles]:
    """Cascades from the most accurate to the cheapest: for each of a series of prices a dim, the best that is found."""
    dims, climb = outcomes.dims, Climb(outcomes)
    if len(dims) == 1:
        return [np.empty(0)]
    # Below the lowest price one right answer is worth more than all dims; at the highest none is worth the second.
    prices = np.geomspace(0.5 / (outcomes.count * dims[-1]), 1 / (dims[1] - dims[0]), _PRICES).tolist()
    rising = _walk(climb, greedy_thresholds(outcomes), prices)
    falling = _walk(climb, np.full(len(dims) - 1, ALWAYS), prices[::-1])[::-1]
    return [
        climb.best([one, other], _priced(price)) for price, one, other in zip(prices, rising, falling, strict=True)
    ]


def _walk(climb: Climb, thresholds: Doubles, prices: list[float]) -> list[Doubles]:
    found = []
    for price in prices:
        thresholds = climb.climb(thresholds, _priced(price))
        found.append(thresholds)
    return found


def budget_thresholds(outcomes: Outcomes, expected_dim: float, path: list[Doubles] | None = None) -> Doubles:
    """[dims − 1]: the most accurate cascade found whose expected dim on these rows is at most ``expected_dim``.

    It is at least as accurate as the greedy cascade, stopped at any dim, that keeps to the budget. A ``path`` of
    :func:`price_path` serves several budgets.
    """
    # A mean that was measured on these very rows may have been rounded down.
    climb, worth = Climb(outcomes), _within(expected_dim * outcomes.count * (1 + 1e-9))
    greedy = greedy_thresholds(outcomes)
    stopped = [np.where(np.arange(len(greedy)) < last, greedy, ALWAYS) for last in range(len(greedy) + 1)]
    starts = [*(price_path(outcomes) if path is None else path), *stopped]
    starts.sort(key=lambda thresholds: -float(worth(climb.total(thresholds))))
    return climb.best([climb.climb(start, worth) for start in starts[:_STARTS]], worth)


def _priced(price: float) -> Worth:
    return lambda tallies: tallies[0] - price * tallies[2]


def _within(limit: float) -> Worth:
    # Right answers count; among as many, fewer dims do; beyond the limit nothing does but the way back.
    return lambda tallies: np.where(
        tallies[2] <= limit, tallies[0] - tallies[2] / (limit + 1), -tallies[2].astype(np.float64)
    )
