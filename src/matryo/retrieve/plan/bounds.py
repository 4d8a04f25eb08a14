"""Lower confidence bounds on a mean recall, and how many queries they need (Waudby-Smith and Ramdas, 2024).

The bound assumes only that values lie in [0, 1]. A bound from the normal distribution would promise too much, because
recalls near 1 are far from normal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Doubles

_STAKES = np.linspace(0.05, 0.95, 19)   # below 1: with a stake of 1, one query of recall 0 loses the whole capital


def lower_bound(values: Doubles, base: Doubles, stake: float, confidence: float) -> float:
    """The lower bound, at ``confidence``, on mean(``values``) / mean(``base``).

    Both arrays lie in [0, 1] and have one entry per query; for a recall, ``base`` is 1 everywhere. The bound comes from
    a betting game against each candidate ratio t. A query multiplies the capital by
    ``1 − stake · base + stake · value / t``. If the true ratio were at most t, the game would lose on average, and
    would end with ``1 / (1 − confidence)`` times the initial capital with probability at most ``1 − confidence``. So
    every t against which the game wins that much is rejected. The ``stake`` must not depend on these queries.

    >>> round(lower_bound(np.ones(400), np.ones(400), 0.95, 0.95), 4)
    0.9921
    """
    return float(_lower_bounds(values, base, np.array([stake]), -math.log1p(-confidence))[0])


def best_stake(values: Doubles, base: Doubles, tests: int, confidence: float) -> float:
    """The stake with the highest predicted bound for ``tests`` queries like these."""
    return float(_STAKES[_predicted(values, base, tests, confidence).argmax()])


def predicted_bound(values: Doubles, base: Doubles, tests: int, confidence: float) -> float:
    """The bound that ``tests`` queries like these would give."""
    return float(_predicted(values, base, tests, confidence).max())


def fewest_tests(target: float, confidence: float) -> int:
    """The number of test queries from which a plan that misses nothing reaches the bound ``target``."""
    stake = _STAKES[-1]
    return math.ceil(-math.log1p(-confidence) / math.log1p(stake * (1 - target) / target))


def _predicted(values: Doubles, base: Doubles, tests: int, confidence: float) -> Doubles:
    return _lower_bounds(values, base, _STAKES, -math.log1p(-confidence) * len(values) / tests)


def _lower_bounds(values: Doubles, base: Doubles, stakes: Doubles, log_gain: float) -> Doubles:
    """One bound per stake: the largest ratio against which the log capital still reaches ``log_gain``."""
    # The final capital decreases as t grows, so bisection finds the bound, for all stakes at once.
    low, high = np.zeros(len(stakes)), np.full(len(stakes), 2.0)
    for _ in range(50):
        ratio = (low + high) / 2
        factors = 1 - stakes[:, None] * base + (stakes / ratio)[:, None] * values
        rejected = np.log(factors).sum(axis=1) >= log_gain
        low, high = np.where(rejected, ratio, low), np.where(rejected, high, ratio)
    return low
