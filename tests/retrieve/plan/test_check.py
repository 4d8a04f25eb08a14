"""A check measures what plain loops count, and its verdicts are seldom wrong."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo import Index, Plan
from matryo.errors import InputError
from matryo.retrieve.plan.check import Check, _bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.retrieve.plan.choice import Choice

K = 5
SCALE = np.linspace(2, 0.2, 32)


def near(seed: int, count: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(count, 32)) * SCALE).astype(np.float32)


def far(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.create(tmp_path_factory.mktemp("check") / "idx", nesting=[4, 8, 16, 32]) as made:
        made.add(near(0, 1500))
        yield made


@pytest.fixture(scope="module")
def choice(index: Index) -> Choice:
    return index.plan(0.9, K, near(1, 300), cost="bytes", progress=False)   # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def broken(index: Index, choice: Choice) -> Check:
    with warnings.catch_warnings():   # a check feeds no watch: even many such queries do not warn
        warnings.simplefilter("error")
        return index.check(far(2, 400), choice)


def test_the_recall_is_that_of_plain_loops(index: Index, choice: Choice, broken: Check) -> None:
    vectors, queries, plan = near(0, 1500), far(2, 400), replace(choice.plan, promise=None)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    shares, kth = [], []
    for query in queries:
        true = sorted(range(1500), key=lambda row, query=query: -float(units[row] @ query))[:K]
        [hits] = index.search(query, K, plan)
        shares.append(len({hit.id for hit in hits} & {*true}) / K)
        kth.append(hits[-1].score)
    assert broken.recall == pytest.approx(np.mean(shares))
    assert broken.score == pytest.approx(np.median(kth))
    assert broken.distance == pytest.approx(choice.plan.promise.distance(np.array(kth, np.float32)))
    assert broken.lower < broken.recall < broken.upper < 0.9
    assert (broken.verdict, broken.shifted, broken.queries, broken.k) == ("broken", True, 400, K)
    assert (broken.target, broken.planned_scores) == (0.9, choice.plan.promise.medians)
    assert broken.latency > 0 and broken.exact_latency > 0


def test_the_promise_holds_for_queries_like_those_of_the_planner(index: Index, choice: Choice) -> None:
    result = index.check(near(3, 3000), choice.plan, recall=0.85)
    assert (result.verdict, result.shifted) == ("holds", False)
    assert "the plan reaches its recall on these queries" in str(result)


def test_few_queries_do_not_decide_and_enough_are_named(index: Index, choice: Choice) -> None:
    result = index.check(near(4, 20), choice)
    assert result.verdict == "undecided"
    assert f"20 queries are too few to decide: about {result.needed:,} would decide" in str(result)
    assert index.check(near(4, 2 * result.needed), choice, recall=result.target).verdict != "undecided"
    close = replace(result, needed=None)
    assert close.message == "20 queries are too few to decide: plan again with them to be safe"


@pytest.mark.parametrize("mean", [0.9, 0.99])
def test_the_bounds_are_seldom_on_the_wrong_side(mean: float) -> None:
    random, runs, wrong = np.random.default_rng(0), 300, np.zeros(2)
    for _ in range(runs):
        lower, upper = _bounds(random.binomial(10, mean, 200) / 10, 0.95)
        wrong += lower > mean, upper < mean
    assert (wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)).all()


def test_plans_of_any_form_are_checked(index: Index, choice: Choice, broken: Check) -> None:
    text = json.dumps(choice.plan.to_dict())
    for plan in (choice.plan, choice.plan.to_dict(), text):
        assert index.check(far(2, 400), plan).recall == broken.recall
    bare = replace(choice, plan=replace(choice.plan, promise=None))   # as made by hand
    result = index.check(far(2, 400), bare)
    assert (result.verdict, result.recall, result.chance, result.shifted) == ("broken", broken.recall, None, None)
    assert "k-th score 0." in str(result) and "when planning" not in str(result)
    hand = index.check(far(2, 400), Plan.single(32), recall=0.95)
    assert (hand.k, hand.recall, hand.verdict) == (10, 1, "holds")
    assert index.check(far(2, 100), choice, k=3).distance is None   # planned for another k


def test_a_check_comes_back_through_json_and_is_one_row(broken: Check) -> None:
    figures = json.loads(json.dumps(broken.to_figures()))
    assert Check.from_figures(figures) == broken
    assert (figures["verdict"], figures["shifted"]) == ("broken", True)
    [row] = broken.to_rows()
    assert row["recall"] == broken.recall
    assert all(not isinstance(value, dict | list) for value in row.values())
    assert "promise    recall@5 ≥ 90%: broken" in str(broken)
    assert "plan again with queries=… of all kinds" in str(broken)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"plan": Plan.single(32)}, "the plan promises no recall, so the check needs one .* pass recall=0.95"),
        ({"recall": 95.0}, r"recall must be a number from 0 to 1 \(got 95.0\): write 95 % as 0.95"),
        ({"queries": None}, "a check needs queries .* pass vectors of real queries"),
        ({"queries": near(0, 19)}, r"a check needs at least 20 queries \(got 19\): pass more queries"),
        ({"confidence": 2.0}, "confidence must be a number from 0.5 to 0.999999"),
        ({"plan": 3}, "plan must be a Plan, a choice of index.plan"),
        ({"queries": np.ones((30, 3))}, "32"),
    ],
)
def test_what_cannot_be_checked(index: Index, choice: Choice, change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        index.check(**({"queries": near(5, 30), "plan": choice} | change))


def test_a_promise_of_map_is_no_recall(index: Index) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 300), random.integers(0, 3, 1500)
    choice = index.plan(0.8, K, near(1, 300), cost="bytes", labels=labels, progress=False)
    assert choice.plan.promise.metric == "mAP"
    with pytest.raises(InputError, match="the plan promises mAP, not recall, so the check needs one"):
        index.check(near(5, 100), choice)
    assert index.check(near(5, 100), choice, recall=0.5).target == 0.5
