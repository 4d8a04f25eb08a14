"""The paper's thresholds: one dim after the other, from a grid, as if the next dim were the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matryo.classify.outcomes import Outcomes

    Doubles = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["GRID", "greedy_thresholds"]

GRID = np.linspace(0, 1, 100)


def greedy_thresholds(outcomes: Outcomes) -> Doubles:
    """[dims − 1]: the smallest threshold of the grid with the best accuracy, given those before it.

    Rows that are sure stop at this dim, the others are answered at the next. Rows that stopped earlier count for
    every threshold alike, so only those that reach this dim are looked at.
    """
    thresholds = np.empty(len(outcomes.dims) - 1)
    rows = np.arange(outcomes.count)
    for place in range(len(thresholds)):
        confidence = outcomes.confidence[place, rows]
        here, there = (outcomes.correct[at, rows].astype(np.int64) for at in (place, place + 1))
        # Right answers when the rows from some place on, in order of confidence, stop here.
        order = np.argsort(confidence, kind="stable")
        gained = np.append(np.cumsum((here - there)[order][::-1])[::-1], 0)
        first = np.searchsorted(confidence[order], GRID, side="left")
        thresholds[place] = GRID[np.argmax(gained[first])]
        rows = rows[confidence < thresholds[place]]
    return thresholds
