"""A promise that holds on fresh data: at most so much accuracy lost against the last dim, with so much confidence.

Learn, then test. One part of the rows shapes the thresholds. From that shape follows a series of cascades, from one
that hardly ever stops early to ever bolder ones, all thresholds moving together. The other part, which had no say in
them, tests one after the other, and the boldest before the first that fails is kept. The chance of keeping one that
breaks the promise is then at most that of a single test going wrong (fixed-sequence testing), whatever the heads are
like. Rows must be drawn alike: the promise is on data like the hold-out.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.classify.outcomes import NEVER
from matryo.classify.thresholds.budget import Climb
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.classify.outcomes import Outcomes

    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["certified", "fewest_rows", "loss_p_value", "risk_thresholds"]

_SHAPING = 0.25   # of the rows shape a few thresholds; the test is as sharp as the others are many
_BOLDER = np.linspace(16, -16, 513)   # added to the log-odds of the shape, one after the other
_NUISANCE = 0.05   # of the allowed error goes to the bound on how many rows differ


def risk_thresholds(outcomes: Outcomes, max_loss: float, confidence: float, seed: int) -> Doubles | None:
    """[dims − 1]: the cheapest cascade certified to lose at most ``max_loss``; None if none that stops early is."""
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
    for thresholds in _bolder_and_bolder(shape):
        if not certified(test, thresholds, max_loss, confidence):
            break
        kept = thresholds
    return None if kept is None or (kept == NEVER).all() else kept


def fewest_rows(max_loss: float, confidence: float) -> int:
    """How many rows are needed to certify anything: with fewer, not even a cascade that never errs would be.

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
    """The cheapest thresholds that these rows, by a normal approximation, would themselves certify."""
    climb, margin = Climb(outcomes), NormalDist().inv_cdf(confidence)
    full, all_dims = int(outcomes.correct[-1].sum()), outcomes.count * outcomes.dims[-1]

    def worth(tallies: Integers) -> Doubles:
        right, apart, dims = tallies
        excess = full - right + margin * np.sqrt(apart) - max_loss * outcomes.count
        return np.asarray(np.where(excess <= 0, -dims, -all_dims - excess), np.float64)

    starts = [np.full(len(outcomes.dims) - 1, level) for level in (NEVER, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4)]
    return climb.best([climb.climb(start, worth) for start in starts], worth)


def _bolder_and_bolder(shape: Doubles) -> Iterator[Doubles]:
    """All thresholds move together on the scale of log-odds; a dim that never answers keeps silent."""
    inside = np.clip(shape, 1e-6, 1 - 1e-6)
    odds = np.log(inside / (1 - inside))
    yield from (np.where(shape == NEVER, NEVER, 1 / (1 + np.exp(-odds - shift))) for shift in _BOLDER)


def certified(outcomes: Outcomes, thresholds: Doubles, max_loss: float, confidence: float) -> bool:
    """Whether these rows show that the cascade loses at most ``max_loss`` against the last dim."""
    right, full = outcomes.right(thresholds), outcomes.correct[-1]
    lost, won = int((full & ~right).sum()), int((right & ~full).sum())
    return loss_p_value(lost, won, outcomes.count, max_loss, 1 - confidence) <= 1 - confidence


@lru_cache(maxsize=4096)
def loss_p_value(lost: int, won: int, count: int, max_loss: float, alpha: float) -> float:
    """A valid p-value of "the cascade loses more than ``max_loss``", for a test at level ``alpha``.

    Of ``count`` rows, ``lost`` were right at the last dim only and ``won`` in the cascade only. The loss is the mean of
    ``count`` draws from {1, 0, −1}. How often they are not 0 is unknown, so a Clopper–Pearson bound on that rate takes
    its place, and the chance that the bound is wrong is added (Berger and Boos, 1994). The rest is exact: as long as
    the bound is at most ½, each draw is a sum of two independent coins, hence the total unimodal around its mean
    (Darroch, 1964), hence below the mean the chance of so small a loss grows with the rate and is largest at the bound.
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
    # Totals beyond ±reach are less likely than rounding: they lie 12 deviations away, or 60 where these are small.
    reach = max(abs(net), min(count, math.ceil(count * loss + 12 * math.sqrt(count * rate) + 60)))
    size = 1 << (2 * reach).bit_length()   # at least 2·reach + 1, so that no total is taken for another
    turn = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    one = 1 - rate + (rate + loss) / 2 * turn + (rate - loss) / 2 * turn.conj()
    chances = np.roll(np.fft.irfft(one**count, size), reach)   # of the totals −reach, …, reach
    return float(chances[: net + reach + 1].sum())


def _rate_bound(hits: int, count: int, alpha: float) -> float:
    """Clopper and Pearson's upper bound: the largest rate at which so few hits have a chance of ``alpha``."""
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
