"""Thresholds with a certified bound on the accuracy lost against the last dim, on new data.

The method is learn-then-test. One part of the rows fixes the relation of the thresholds. From it follows a series of
cascades that stop earlier and earlier, all thresholds moving together. The other part of the rows tests them in order,
and the last cascade before the first failure is kept. The probability of keeping one that exceeds the bound is then at
most the error of a single test (fixed-sequence testing), for any heads. The bound holds for new rows that are drawn
like the hold-out.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from matryo.classify.outcomes import NEVER
from matryo.classify.thresholds.budget import Climb
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.arrays import Doubles, Integers
    from matryo.classify.outcomes import Outcomes

_SHAPING = 0.25   # share of rows that fix the thresholds' relation; the others make the test powerful
_SHIFTS = np.linspace(16, -16, 513)   # added to the log-odds of all thresholds, in turn
_NUISANCE = 0.05   # share of the allowed error for the bound on the rate of differing rows


def risk_thresholds(outcomes: Outcomes, max_loss: float, confidence: float, seed: int) -> Doubles | None:
    """Return [dims − 1]: the cheapest cascade certified to lose at most ``max_loss``; None if there is none."""
    if outcomes.count < (fewest := fewest_rows(max_loss, confidence)):
        raise InputError(
            f"at least {fewest:,} rows are needed to certify a loss of at most {100 * max_loss:g} %",
            got=outcomes.count,
            cure="hold out more rows, or allow a greater loss",
        )
    order = np.random.default_rng(seed).permutation(outcomes.count)
    shaping = round(_SHAPING * outcomes.count)
    shape = _shape(outcomes.select(order[:shaping]), max_loss, confidence)
    test, kept = outcomes.select(order[shaping:]), None
    for thresholds in _earlier_and_earlier(shape):
        if not certified(test, thresholds, max_loss, confidence):
            break
        kept = thresholds
    return None if kept is None or (kept == NEVER).all() else kept


def fewest_rows(max_loss: float, confidence: float) -> int:
    """Return the number of rows needed to certify anything; with fewer, not even a flawless cascade passes.

    >>> fewest_rows(0.005, 0.95)
    1149
    """
    few, many = 1, 2
    while not _flawless(many, max_loss, confidence):
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if _flawless(middle, max_loss, confidence) else (middle, many)
    return many


def _flawless(count: int, max_loss: float, confidence: float) -> bool:
    tested = count - round(_SHAPING * count)
    return loss_p_value(0, 0, tested, max_loss, 1 - confidence) <= 1 - confidence


def _shape(outcomes: Outcomes, max_loss: float, confidence: float) -> Doubles:
    """Return the cheapest thresholds that these rows would certify by a normal approximation."""
    climb, margin = Climb(outcomes), NormalDist().inv_cdf(confidence)
    full, all_dims = int(outcomes.correct[-1].sum()), outcomes.count * outcomes.dims[-1]

    def worth(tallies: Integers) -> Doubles:
        right, apart, dims = tallies
        excess = full - right + margin * np.sqrt(apart) - max_loss * outcomes.count
        return np.asarray(np.where(excess <= 0, -dims, -all_dims - excess), np.float64)

    starts = [np.full(len(outcomes.dims) - 1, level) for level in (NEVER, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4)]
    return climb.best([climb.climb(start, worth) for start in starts], worth)


def _earlier_and_earlier(shape: Doubles) -> Iterator[Doubles]:
    """Yield thresholds that move together on the log-odds scale; a dim that never answers stays so."""
    inside = np.clip(shape, 1e-6, 1 - 1e-6)
    odds = np.log(inside / (1 - inside))
    yield from (np.where(shape == NEVER, NEVER, 1 / (1 + np.exp(-odds - shift))) for shift in _SHIFTS)


def certified(outcomes: Outcomes, thresholds: Doubles, max_loss: float, confidence: float) -> bool:
    """Whether these rows show that the cascade loses at most ``max_loss`` against the last dim."""
    right, full = outcomes.right(thresholds), outcomes.correct[-1]
    lost, won = int((full & ~right).sum()), int((right & ~full).sum())
    return loss_p_value(lost, won, outcomes.count, max_loss, 1 - confidence) <= 1 - confidence


@lru_cache(maxsize=4096)
def loss_p_value(lost: int, won: int, count: int, max_loss: float, alpha: float) -> float:
    """Return a valid p-value of "the cascade loses more than ``max_loss``", for a test at level ``alpha``.

    Of ``count`` rows, ``lost`` were right at the last dim only and ``won`` in the cascade only. The loss is the mean of
    ``count`` draws from {1, 0, −1}. The rate of non-zero draws is unknown, so a Clopper–Pearson bound replaces it, and
    the probability that the bound is wrong is added (Berger and Boos, 1994). The rest is exact. While the bound is at
    most ½, each draw is a sum of two independent coins, so the total is unimodal around its mean (Darroch, 1964).
    Below the mean, the probability of such a small loss then grows with the rate and is largest at the bound.
    """
    spent = _NUISANCE * alpha
    rate = _rate_bound(lost + won, count, spent)
    if rate < max_loss:   # fewer rows differ than would have to be lost
        return spent
    if rate > 0.5 or lost - won >= math.floor((count - 1) * max_loss):
        return 1.0
    return spent + _chance_of_loss_up_to(lost - won, count, rate, max_loss)


def _chance_of_loss_up_to(net: int, count: int, rate: float, loss: float) -> float:
    """P(lost − won ≤ net) in ``count`` draws with P(1) + P(−1) = rate and P(1) − P(−1) = loss."""
    # Totals beyond ±reach have a probability below rounding error: they are 12 deviations away, or 60 if small.
    reach = max(abs(net), min(count, math.ceil(count * loss + 12 * math.sqrt(count * rate) + 60)))
    size = 1 << (2 * reach).bit_length()   # at least 2·reach + 1, so that totals do not wrap around
    turn = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    one = 1 - rate + (rate + loss) / 2 * turn + (rate - loss) / 2 * turn.conj()
    chances = np.roll(np.fft.irfft(one**count, size), reach)   # of the totals −reach, …, reach
    return float(chances[: net + reach + 1].sum())


def _rate_bound(hits: int, count: int, alpha: float) -> float:
    """Return the Clopper–Pearson upper bound: the rate at which ``hits`` or fewer have probability ``alpha``."""
    if hits == count:
        return 1.0
    steps = np.arange(1, hits + 1)
    log_ways = np.concatenate([[0.0], np.cumsum(np.log((count - steps + 1) / steps))])
    places, low, high = np.arange(hits + 1), hits / count, 1.0
    while high - low > 1e-12:
        rate = (low + high) / 2
        chance = np.exp(log_ways + places * math.log(rate) + (count - places) * math.log1p(-rate)).sum()
        low, high = (rate, high) if chance > alpha else (low, rate)
    return high
