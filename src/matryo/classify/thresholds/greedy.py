"""The paper's thresholds: dim by dim, from a grid, as if the next dim were the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.arrays import Doubles
    from matryo.classify.outcomes import Outcomes

GRID = np.linspace(0, 1, 100)


def greedy_thresholds(outcomes: Outcomes) -> Doubles:
    """Return [dims − 1]: the smallest threshold of the grid with the best accuracy, given the previous ones.

    Confident rows stop at this dim, the others are answered at the next. Only rows that reach this dim are used,
    because the others count equally for every threshold.
    """
    thresholds = np.empty(len(outcomes.dims) - 1)
    rows = np.arange(outcomes.count)
    for place in range(len(thresholds)):
        confidence = outcomes.confidence[place, rows]
        here, there = (outcomes.correct[at, rows].astype(np.int64) for at in (place, place + 1))
        # The gain in right answers if the rows from each position on, sorted by confidence, stop here.
        order = np.argsort(confidence, kind="stable")
        gained = np.append(np.cumsum((here - there)[order][::-1])[::-1], 0)
        first = np.searchsorted(confidence[order], GRID, side="left")
        thresholds[place] = GRID[np.argmax(gained[first])]
        rows = rows[confidence < thresholds[place]]
    return thresholds
