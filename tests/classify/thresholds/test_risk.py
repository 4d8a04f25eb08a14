"""The promise on accuracy: its test is exact, and the promise is kept on fresh data."""

from __future__ import annotations

import math

import numpy as np
import pytest

from matryo.classify.outcomes import Outcomes
from matryo.classify.thresholds.risk import (
    _chance_of_loss_up_to,
    _rate_bound,
    certified,
    fewest_rows,
    loss_p_value,
    risk_thresholds,
)
from matryo.errors import InputError


def binomial(count: int, hits: int, rate: float) -> float:
    return math.comb(count, hits) * rate**hits * (1 - rate) ** (count - hits)


def trinomial(count: int, lost: int, won: int, up: float, down: float) -> float:
    ways = math.comb(count, lost) * math.comb(count - lost, won)
    return ways * up**lost * down**won * (1 - up - down) ** (count - lost - won)


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (0, 40), (3, 40), (39, 40), (17, 300)])
def test_the_bound_on_a_rate_is_clopper_and_pearsons(hits: int, count: int) -> None:
    for alpha in (0.5, 0.05, 0.0025):
        bound = _rate_bound(hits, count, alpha)
        assert math.fsum(binomial(count, few, bound) for few in range(hits + 1)) == pytest.approx(alpha)
    assert _rate_bound(count, count, 0.05) == 1


def test_the_bound_on_a_rate_is_scipys() -> None:
    beta = pytest.importorskip("scipy.stats").beta
    for hits, count in [(0, 10), (7, 2000), (500, 5000), (4999, 5000)]:
        assert _rate_bound(hits, count, 0.005) == pytest.approx(beta.ppf(0.995, hits + 1, count - hits), abs=1e-10)


@pytest.mark.parametrize(("rate", "loss"), [(0.3, 0.1), (0.02, 0.02), (0.5, 0.01), (0.04, 0.0)])
def test_the_chance_of_a_small_loss_is_the_sum_over_all_ways(rate: float, loss: float) -> None:
    count = 12
    for net in range(-count, count + 1):
        ways = [(a, b) for a in range(count + 1) for b in range(count + 1 - a) if a - b <= net]
        expected = math.fsum(trinomial(count, a, b, (rate + loss) / 2, (rate - loss) / 2) for a, b in ways)
        assert _chance_of_loss_up_to(net, count, rate, loss) == pytest.approx(expected, abs=1e-12)


def test_the_chance_of_a_small_loss_in_many_draws() -> None:
    stats = pytest.importorskip("scipy.stats")
    for count, rate, loss in [(400_000, 0.03, 0.005), (50_000, 0.0051, 0.005), (20_000_000, 1e-6, 1e-7)]:
        differ = np.arange(int(stats.binom.ppf(1e-14, count, rate)), int(stats.binom.ppf(1 - 1e-14, count, rate)) + 2)
        for net in (round(count * loss * 0.7), 0, -3):
            most = np.floor((differ + net) / 2)   # lost rows among those that differ
            given = stats.binom.cdf(most, differ, (1 + loss / rate) / 2)
            expected = float((stats.binom.pmf(differ, count, rate) * given).sum())
            assert _chance_of_loss_up_to(net, count, rate, loss) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("max_loss", [0.05, 0.15])
def test_a_cascade_that_breaks_the_promise_passes_seldom(max_loss: float) -> None:
    """The exact chance, over every sample there is, for losses at and above the limit and every rate of differences."""
    count, alpha = 60, 0.1
    samples = [(a, b) for a in range(count + 1) for b in range(count + 1 - a)]
    passing = [s for s in samples if loss_p_value(*s, count, max_loss, alpha) <= alpha]
    assert len(passing) > 20
    worst = 0.0
    for loss in (max_loss, max_loss + 0.02, 2 * max_loss):
        for rate in np.linspace(loss, 1, 24):
            up, down = (rate + loss) / 2, (rate - loss) / 2
            chance = math.fsum(trinomial(count, a, b, up, down) for a, b in passing)
            assert chance <= alpha
            worst = max(worst, chance)
    assert worst > alpha / 3   # nor is the test needlessly strict


def test_the_chance_grows_with_the_rate_below_the_mean() -> None:
    """What the p-value rests on where it puts a bound in the place of the rate."""
    count, loss = 80, 0.1
    for net in range(-10, math.floor((count - 1) * loss)):
        chances = [_chance_of_loss_up_to(net, count, rate, loss) for rate in np.linspace(loss, 0.5, 30)]
        assert (np.diff(chances) >= -1e-13).all()


def test_more_losses_and_fewer_gains_count_against_a_cascade() -> None:
    for lost in range(12):
        for won in range(1, 12):
            here = loss_p_value(lost, won, 400, 0.03, 0.05)
            assert loss_p_value(lost + 1, won, 400, 0.03, 0.05) >= here - 1e-12
            assert loss_p_value(lost + 1, won - 1, 400, 0.03, 0.05) >= here - 1e-12
    assert loss_p_value(200, 200, 400, 0.03, 0.05) == 1.0       # too many differences to say anything
    assert loss_p_value(11, 0, 400, 0.03, 0.05) == 1.0          # nearly as much as is allowed


def population(count: int = 20_000) -> Outcomes:
    """Two classes and three dims: each adds independent evidence, and is surer of it than it should be."""
    rng = np.random.default_rng(7)
    y = rng.choice([-1.0, 1.0], count)
    evidence = np.cumsum([0.5 * y + rng.normal(size=count) * 1.2 for _ in range(3)], axis=0)
    return Outcomes((8, 16, 64), 1 / (1 + np.exp(-np.abs(evidence))), np.sign(evidence) == y)


def test_the_promise_is_kept_in_183_of_200_resamples() -> None:
    everyone, max_loss, rng = population(), 0.02, np.random.default_rng(1)
    full = everyone.correct[-1].mean()
    kept, dims = 0, []
    for turn in range(200):
        sample = everyone.select(rng.integers(everyone.count, size=800))
        thresholds = risk_thresholds(sample, max_loss, 0.95, seed=turn)
        assert thresholds is not None
        true = everyone.measure(thresholds)   # samples are drawn from these rows, so this is the truth
        kept += full - true.accuracy <= max_loss
        dims.append(true.expected_dim)
    assert kept >= 183
    assert np.mean(dims) < 44   # and it is worth something: to all 20,000 rows the cheapest that keeps it is 27


def test_rows_that_lose_are_not_certified() -> None:
    rows, rng = 2000, np.random.default_rng(0)
    right = np.stack([np.zeros(rows, bool), np.ones(rows, bool)])
    certain = Outcomes((8, 16), np.stack([np.ones(rows), np.full(rows, 0.9)]), right)
    assert risk_thresholds(certain, 0.005, 0.95, seed=0) is None   # dim 8 is always sure and always wrong
    unsure = Outcomes((8, 16), rng.random((2, rows)) * 0.9, right)
    assert risk_thresholds(unsure, 0.005, 0.95, seed=0) is None    # and here always wrong
    assert not certified(unsure, np.array([0.5]), 0.005, 0.95)
    assert certified(unsure, np.array([1.0]), 0.005, 0.95)


def test_equally_good_dims_are_used_from_the_first() -> None:
    rng = np.random.default_rng(0)
    right = np.broadcast_to(rng.random(3000) < 0.7, (3, 3000))
    alike = Outcomes((8, 16, 32), rng.uniform(0.2, 1, (3, 3000)), right)
    thresholds = risk_thresholds(alike, 0.005, 0.95, seed=0)
    assert thresholds is not None
    assert alike.measure(thresholds).expected_dim == 8


def test_the_fewest_rows_that_can_certify() -> None:
    for max_loss, confidence in [(0.005, 0.95), (0.02, 0.95), (0.1, 0.8), (0.5, 0.5)]:
        count = fewest_rows(max_loss, confidence)
        flawless = Outcomes((8, 16), np.full((2, count), 0.9), np.ones((2, count), bool))
        assert risk_thresholds(flawless, max_loss, confidence, seed=0) is not None
        with pytest.raises(InputError, match=f"at least {count:,} rows are needed to certify a loss"):
            risk_thresholds(flawless.select(range(count - 1)), max_loss, confidence, seed=0)
