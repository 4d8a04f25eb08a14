"""The bound holds for recalls of any shape, where a normal one does not; a choice says what was found, in words too."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from matryo.errors import InputError, MissingExtra
from matryo.retrieve.plan import picture
from matryo.retrieve.plan.bounds import best_stake, fewest_tests, lower_bound, predicted_bound
from matryo.retrieve.plan.choice import Choice, Point, outline
from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Draw = Callable[[np.random.Generator, int], np.ndarray]

RUNS, TESTS, ALPHA = 600, 300, 0.05


def all_or_nothing(random: np.random.Generator, count: int) -> np.ndarray:
    return (random.random(count) < 0.99).astype(float)


def one_of_ten(random: np.random.Generator, count: int) -> np.ndarray:
    return 1 - random.binomial(10, 0.01, count) / 10


def rarely_lost(random: np.random.Generator, count: int) -> np.ndarray:
    return np.where(random.random(count) < 0.005, 0.0, one_of_ten(random, count))


def spread(random: np.random.Generator, count: int) -> np.ndarray:
    return random.binomial(10, 0.8, count) / 10


MEANS = {all_or_nothing: 0.99, one_of_ten: 0.99, rarely_lost: 0.995 * 0.99, spread: 0.8}


@pytest.mark.parametrize(("draw", "mean"), MEANS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_the_bound_exceeds_the_mean_no_more_often_than_said(draw: Draw, mean: float) -> None:
    random, too_high, normal = np.random.default_rng(0), 0, 0
    for _ in range(RUNS):
        tuning, tests = draw(random, 100), draw(random, TESTS)
        stake = best_stake(tuning, np.ones(100), TESTS, 1 - ALPHA)
        too_high += lower_bound(tests, np.ones(TESTS), stake, 1 - ALPHA) > mean
        normal += tests.mean() - 1.645 * tests.std(ddof=1) / math.sqrt(TESTS) > mean
    chance = 3 * math.sqrt(ALPHA * (1 - ALPHA) / RUNS)
    assert too_high / RUNS <= ALPHA + chance
    if draw is all_or_nothing:   # far from normal, the usual bound promises too much
        assert normal / RUNS > 2 * ALPHA


def test_the_bound_holds_for_shares_of_a_base_that_varies() -> None:
    random, too_high = np.random.default_rng(1), 0
    for _ in range(RUNS):
        base = random.beta(2, 1, 100 + TESTS)
        values = np.where(random.random(100 + TESTS) < 0.04, 0.0, base)   # 0.96 of the base in the mean
        stake = best_stake(values[:100], base[:100], TESTS, 1 - ALPHA)
        too_high += lower_bound(values[100:], base[100:], stake, 1 - ALPHA) > 0.96
    assert too_high / RUNS <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / RUNS)


def test_at_the_bound_exactly_enough_is_won() -> None:
    random = np.random.default_rng(2)
    base = random.random(200)
    values = base * random.choice([0.5, 1.0], 200, p=[0.1, 0.9])
    for stake in (0.1, 0.5, 0.95):
        bound, won = lower_bound(values, base, stake, 0.95), 1.0
        for value, of in zip(values.tolist(), base.tolist(), strict=True):
            won *= 1 - stake * of + stake * value / bound
        assert won == pytest.approx(20, rel=1e-6)
        assert bound < values.sum() / base.sum()


def test_a_flawless_test_has_a_closed_form() -> None:
    for count, stake in ((50, 0.5), (375, 0.95)):
        wanted = stake / (20 ** (1 / count) - 1 + stake)
        assert lower_bound(np.ones(count), np.ones(count), stake, 0.95) == pytest.approx(wanted)
    assert lower_bound(np.zeros(9), np.ones(9), 0.5, 0.95) == pytest.approx(0)


def test_the_best_stake_is_the_best_of_all() -> None:
    values = one_of_ten(np.random.default_rng(3), 200)
    bounds = {stake: lower_bound(values, np.ones(200), stake, 0.95) for stake in np.linspace(0.05, 0.95, 19)}
    assert best_stake(values, np.ones(200), 200, 0.95) == max(bounds, key=lambda stake: bounds[stake])
    assert predicted_bound(values, np.ones(200), 200, 0.95) == max(bounds.values())
    # With more tests to come, the same queries promise more.
    assert predicted_bound(values, np.ones(200), 800, 0.95) > max(bounds.values())


@pytest.mark.parametrize(("target", "confidence"), [(0.5, 0.9), (0.95, 0.95), (0.99, 0.95), (0.999, 0.99)])
def test_fewest_tests_are_just_enough(target: float, confidence: float) -> None:
    count = fewest_tests(target, confidence)
    enough, few = (lower_bound(np.ones(n), np.ones(n), 0.95, confidence) for n in (count, count - 1))
    assert few < target <= enough + 1e-9


# ── a choice ──────────────────────────────────────────────────────────────────────────────────────────────────────

POINTS = (
    Point(Plan.single(64), 1.0, 1.0, True, 0.8, 25.6e6, 6.4),
    Point(Plan.adaptive(16, 64, keep=80), 0.995, 0.991, True, 0.21, 6.4e6, 1.6),
    Point(Plan((Stage(8, 90, "int8", 0.25), Stage(64, 10)), probe=0.1), 0.9, 0.87, False, 0.1, 1e5, 0.1),
)
MET = Choice(POINTS[1].plan, POINTS, target=0.99, k=10, tuned_on=125, tested_on=375)


def test_a_choice_knows_its_point() -> None:
    assert MET.met
    assert MET.point is POINTS[1]
    assert MET.cheapest is POINTS[1]
    none = replace(MET, plan=None, budget=0.15)
    assert not none.met
    assert none.point is None
    assert none.cheapest is POINTS[1]


def test_the_table_marks_the_chosen_and_those_that_held() -> None:
    lines = str(MET).splitlines()
    assert [line.startswith(" ▸") for line in lines] == [False, False, True, False, False]
    assert [line.endswith(" passed") for line in lines] == [False, True, True, False, False]
    assert "probe 10%: 8 int8:≤90 within 0.25 → 64" in lines[3]
    untimed = replace(MET, frontier=tuple(replace(point, latency=None) for point in POINTS), unit="bytes")
    assert [line.split()[3:-2] for line in (lines[0], str(untimed).splitlines()[0])] == [["least", "ms"], ["least"]]
    assert [row["chosen"] for row in MET.to_rows()] == [False, True, False]
    assert MET.to_rows()[1]["plan"] == "16:80 → 64"


def test_the_message_says_what_is_promised_or_why_nothing_is() -> None:
    assert MET.message == "recall@10 ≥ 99% on new queries like these, with 95% confidence: 0.21 ms per query"
    exact = replace(MET, plan=POINTS[0].plan, frontier=POINTS[:1], unit="bytes", metric="mAP")
    assert exact.message == ("mAP@10 ≥ 99% of exact search's on new queries like these, with 95% confidence: 25.6M "
                             "bytes per query; no plan cheaper than exact search reaches it")  # fmt: skip
    assert "≥ 99% on queries like the rows of the index, with" in replace(MET, from_rows=True).message
    short = replace(MET, plan=None, budget=0.15)
    assert short.message == ("no plan within 0.15 ms per query reaches recall@10 ≥ 99%, with 95% confidence: the "
                             "cheapest plan that does costs 0.21 ms; "
                             "within the budget, the best is 90% (at least 87%)")  # fmt: skip
    assert replace(short, budget=0.01).message.endswith("costs 0.21 ms, and no tested plan is within the budget")


@pytest.mark.parametrize("choice", [MET, replace(MET, plan=None, budget=0.15)], ids=["met", "not met"])
def test_figures_come_back_through_json(choice: Choice) -> None:
    assert Choice.from_figures(json.loads(json.dumps(choice.to_figures()))) == choice


def test_an_outline_leaves_out_what_is_plain() -> None:
    assert outline(Plan.single(64), 10) == "64"
    assert outline(Plan.adaptive(16, 64, keep=80, precision="int8", ef=100), 10) == "ef 100: 16 int8:80 → 64"


# ── drawn ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_drawing_has_every_point_the_target_and_the_budget() -> None:
    pytest.importorskip("matplotlib")
    (axes,) = picture.draw(replace(MET, budget=0.5)).axes
    drawn = {str(line.get_label()): line for line in axes.get_lines()}
    assert sorted(drawn["not passed"].get_xdata()) == [0.1, 0.21, 0.8]
    assert sorted(drawn["passed the test"].get_ydata()) == [0.995, 1.0]
    assert set(drawn["target"].get_ydata()) == {0.99}
    assert set(drawn["budget"].get_xdata()) == {0.5}
    assert list(drawn["chosen"].get_xdata()) == [0.21]


def test_the_same_choice_gives_the_same_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        picture.save(MET, tmp_path / name)
    for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        one, other = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "ab")
        assert one == other
        assert one.startswith(start)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.svg or \.png"):
        picture.save(MET, tmp_path / "a.pdf")


def test_without_matplotlib_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"matryo\[report\]"):
        picture.draw(MET)
