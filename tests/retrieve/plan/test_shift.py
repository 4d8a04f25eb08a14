"""A watch warns of other queries, almost never of the same kind, once, from any thread, and changes no hit."""

from __future__ import annotations

import json
import math
import threading
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo import Index, Plan
from matryo.errors import InputError, ShiftWarning
from matryo.retrieve.plan.promise import Promise, distinct
from matryo.retrieve.plan.shift import FALSE_ALARMS, Watch, chance_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

K = 5
SCALE = np.linspace(2, 0.2, 32)


def promise(scores: Any, **fields: Any) -> Promise:
    return Promise.of([np.asarray(scores)], **{"recall": 0.9, "k": K, "confidence": 0.95, **fields})


def alarms(planned: Promise, scores: np.ndarray, step: int = 64) -> int:
    """How many warnings a new watch issues for these k-th scores, in batches of ``step``."""
    watch = Watch(planned)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for start in range(0, len(scores), step):
            watch.see(np.repeat(scores[start : start + step, None], K, axis=1))
    return len(caught)


# ── the statistics ────────────────────────────────────────────────────────────────────────────────────────────────


def exact_chance(distance: float, count: int, planned: int) -> float:
    """The probability of at least this distance between two samples of one distribution, by counting paths."""
    ways = [1.0] + [0.0] * planned   # of orders of both samples whose distance stays below, as shares of all orders
    for row in range(count + 1):
        for column in range(planned + 1):
            if row or column:
                above = ways[column] * row if row else 0.0
                before = ways[column - 1] * column if column else 0.0
                inside = abs(row * planned - column * count) < distance * count * planned - 1e-9
                ways[column] = (above + before) / (row + column) if inside else 0.0
    return 1 - ways[planned]


@pytest.mark.parametrize(("count", "planned"), [(64, 82), (64, 500), (128, 200), (5, 7), (100, 100)])
def test_the_chance_is_an_upper_bound_of_the_exact_one(count: int, planned: int) -> None:
    for distance in (0.15, 0.2, 0.25, 0.3, 0.4):
        exact, bound = exact_chance(distance, count, planned), chance_of(distance, count, planned)
        assert exact <= bound + 1e-12
        if 1e-9 < exact < 0.1 and count >= 64:
            assert bound < 3 * exact   # and not a wasteful one
    assert chance_of(0.9, 0, planned) == chance_of(0.9, count, 0) == 1


@pytest.mark.parametrize("count", [3, 49, 82, 333])
def test_quantiles_and_distances_are_those_of_plain_loops(count: int) -> None:
    random = np.random.default_rng(count)
    planned, scores = random.normal(size=count), random.normal(0.4, 2, size=70)
    made, order = promise(planned), sorted(planned.tolist())
    for part, quantile in enumerate(made.scores[0], start=1):
        assert quantile == order[math.ceil(part * count / 50) - 1]
    wanted = max(
        abs(sum(score <= at for score in scores.tolist()) / 70 - sum(score <= at for score in order) / count)
        for at in made.scores[0]
    )
    assert made.distance(scores) == pytest.approx(wanted)
    assert made.distance(np.repeat(scores, 3)) == made.distance(scores)   # a query that is repeated counts once
    assert made.distance(planned) == pytest.approx(0)


def test_scores_that_are_not_finite_do_not_count() -> None:
    assert distinct(np.array([1, -np.inf, 1, np.nan, 0.5])).tolist() == [0.5, 1]
    assert promise([1.0, 2.0, -np.inf]).queries == (2,)
    assert promise([-np.inf]) == promise([])
    assert promise([1.0, 2.0]).distance(np.array([-np.inf])) == 0


@pytest.mark.parametrize("planned", [82, 1000])
def test_false_alarms_are_no_more_frequent_than_stated(planned: int) -> None:
    random, runs, false = np.random.default_rng(0), 400, 0
    for _ in range(runs):
        scores = random.beta(8, 3, planned + 1600).astype(np.float32)
        false += alarms(promise(scores[:planned]), scores[planned:])
    assert false / runs <= FALSE_ALARMS + 2 * math.sqrt(FALSE_ALARMS / runs)


def test_other_scores_are_noticed_soon_and_once() -> None:
    random = np.random.default_rng(1)
    planned, searched = promise(random.normal(0.6, 0.1, 500)), random.normal(0.45, 0.1, 5000)
    assert alarms(planned, searched[:64], 1) == 1
    assert alarms(planned, searched) == alarms(planned, searched, 5000) == 1
    late = np.concatenate([random.normal(0.6, 0.1, 3000), searched])
    assert alarms(planned, late[:3000]) == 0
    assert alarms(planned, late) == 1


def test_a_promise_for_groups_covers_every_mixture_of_them() -> None:
    random, false, runs = np.random.default_rng(5), 0, 300

    def drawn(count: int, share: float) -> np.ndarray:
        return random.normal(np.where(random.random(count) < share, 0.3, 0.7), 0.05)

    for run in range(runs):
        both = Promise.of([drawn(150, 1), drawn(400, 0)], recall=0.9, k=K, confidence=0.95)
        false += alarms(both, drawn(1000, (run % 6) / 5))
    assert false / runs <= FALSE_ALARMS + 2 * math.sqrt(FALSE_ALARMS / runs)
    assert both.queries == (150, 400)
    assert alarms(both, random.normal(0.5, 0.01, 1000)) == 0   # between both: could be a mixture, as far as shares say
    assert alarms(both, random.normal(0.1, 0.05, 64)) == alarms(both, random.normal(0.9, 0.05, 64)) == 1


def test_the_distance_from_groups_is_that_of_plain_loops() -> None:
    random = np.random.default_rng(6)
    groups, scores = [random.normal(0, 1, 90), random.normal(2, 1, 300)], random.normal(3, 1, 70)
    made = Promise.of(groups, recall=0.9, k=K, confidence=0.95)

    def shares(group: int, at: float) -> tuple[float, float]:
        count, known = len(groups[group]), made.scores[group]
        at_most = [math.ceil(part * count / 50) / count for part, score in enumerate(known, start=1) if score <= at]
        before_next = [math.ceil(part * count / 50) / count for part, score in enumerate(known, start=1) if score >= at]
        return max(at_most, default=0.0), min(before_next, default=1.0)

    wanted = 0.0
    for at in (score for group in made.scores for score in group):
        share, (a, b) = float((scores <= at).mean()), (shares(0, at), shares(1, at))
        wanted = max(wanted, share - max(a[1], b[1]), min(a[0], b[0]) - share)
    assert 0.1 < made.distance(scores) == pytest.approx(wanted)


def test_one_query_many_times_is_no_shift() -> None:
    planned = promise(np.random.default_rng(2).normal(0.6, 0.1, 500))
    assert alarms(planned, np.full(5000, 0.3), 1) == 0
    assert alarms(planned, np.tile(np.linspace(0.2, 0.3, 40), 100), 7) == 0


def test_threads_warn_once_in_all() -> None:
    watch, scores = Watch(promise(np.linspace(0.5, 1, 300))), np.random.default_rng(3).random((8000, 1, K)) / 3
    barrier = threading.Barrier(8)

    def search(part: np.ndarray) -> None:
        barrier.wait()
        for row in part:
            watch.see(row)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=search, args=(part,)) for part in np.array_split(scores, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(caught) == 1


# ── promises that travel ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_promise_comes_back_through_json_and_changes_no_plan() -> None:
    made = promise(np.random.default_rng(4).random(500).astype(np.float32))
    assert Promise.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    bare = Plan.adaptive(8, 32, keep=20, k=K)
    plan = replace(bare, promise=made)
    assert plan == bare
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))).promise == made
    assert "promise" not in bare.to_dict()   # files without one stay as they were
    assert Plan.from_dict(bare.to_dict()).promise is None
    assert plan.for_k(K + 1).promise == made


RULE = "a promise has a number of queries and 49 rising scores per group"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"scores": [0.5]}, RULE),
        ({"scores": [[1 - n / 49 for n in range(49)]]}, RULE),
        ({"scores": [["a"] * 49]}, RULE),
        ({"scores": []}, RULE),
        ({"queries": [0]}, RULE),
        ({"queries": 3}, RULE),
        ({"recall": 95}, "recall must be a number from 0 to 1"),
        ({"k": 0}, "k must be an integer of at least 1"),
        ({"color": 1}, "a plan must have stages with dim and keep"),
    ],
)
def test_damaged_promises_are_refused(change: dict[str, Any], rule: str) -> None:
    fields = promise(np.linspace(0, 1, 100)).to_dict() | change
    with pytest.raises(InputError, match=rule) as error:
        Plan.from_dict(Plan.single(32).to_dict() | {"promise": fields})
    assert "matryo plan --out" in str(error.value)


# ── searches ──────────────────────────────────────────────────────────────────────────────────────────────────────


def near(seed: int, count: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(count, 32)) * SCALE).astype(np.float32)


def far(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.create(tmp_path_factory.mktemp("shift") / "idx", nesting=[4, 8, 16, 32]) as made:
        made.add(near(0, 1500), payload=[{"even": row % 2 == 0} for row in range(1500)])
        yield made


@pytest.fixture
def reader(index: Index) -> Iterator[Index]:
    with Index.open(index.path) as opened:   # with watches of its own
        yield opened


@pytest.fixture(scope="module")
def plan(index: Index) -> Plan:
    choice = index.plan(0.9, K, near(1, 300), cost="bytes", progress=False)
    assert choice.plan.promise.queries == (300,)
    found = index.search(near(1, 300), K, replace(choice.plan, promise=None)).scores[:, -1]
    assert choice.plan.promise == promise(found)
    return choice.plan   # type: ignore[no-any-return]


def test_searches_warn_once_where_the_user_calls(reader: Index, plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    with pytest.warns(ShiftWarning, match=r"recall of 90% may not hold .* measure with index\.check") as caught:
        for query in far(2, 200):
            reader.search(query, K, tmp_path / "plan.json")   # is read each time
    assert [warning.filename for warning in caught] == [__file__]
    reader.search(far(3, 500), K, plan)   # an error, if there were a second warning


def test_planning_queries_and_exact_plans_do_not_warn(reader: Index, plan: Plan) -> None:
    for query in near(4, 300):
        reader.search(query, K, plan)
    reader.search(near(5, 1000), K, plan)
    strict = reader.plan(0.9, K, near(1, 300), cost="bytes", budget=1e9, progress=False)
    exact = replace(plan, promise=promise([]))
    reader.search(far(6, 1000), K, exact)
    reader.search(far(6, 1000), K, replace(strict.plan, promise=None))
    reader.search(far(6, 1000), K - 1, plan)   # the score of the k-th hit is not known
    reader.search(far(6, 1000), K, plan, where={"even": True})   # a filter changes the scores of any query


def test_more_hits_than_planned_are_compared_at_the_planned_k(reader: Index, plan: Plan) -> None:
    reader.search(near(7, 1000), 3 * K, plan)
    with pytest.warns(ShiftWarning):
        reader.search(far(7, 1000), 3 * K, plan)


def test_hits_are_those_of_the_plan_without_its_promise(reader: Index, plan: Plan) -> None:
    with pytest.warns(ShiftWarning):
        watched = reader.search(far(8, 300), K, plan)
    bare = reader.search(far(8, 300), K, replace(plan, promise=None))
    assert (watched.ids == bare.ids).all()
    assert (watched.scores == bare.scores).all()


def test_rows_as_queries_are_named_in_the_promise(index: Index) -> None:
    choice = index.plan(0.9, K, cost="bytes", progress=False)
    assert choice.from_rows
    assert "on queries like the rows of the index" in choice.message
    ids, rows = index.sample(1500, 0)
    hits = index.search(rows, K + 1, replace(choice.plan, promise=None))
    others = [[s for i, s in zip(*pair, strict=True) if i != own][:K]
              for own, *pair in zip(ids, hits.ids, hits.scores, strict=True)]   # fmt: skip
    assert choice.plan.promise.distance(np.array(others)[:, -1]) == pytest.approx(0, abs=1e-3)


def test_a_robust_plan_does_not_warn_for_any_of_its_groups(reader: Index) -> None:
    queries, names = np.concatenate([near(1, 300), far(1, 200)]), ["near"] * 300 + ["far"] * 200
    plan = reader.plan(0.9, K, queries, robust=names, cost="bytes", progress=False).plan
    assert plan.promise.queries == (200, 300)   # names in order
    reader.search(far(9, 600), K, plan)
    reader.search(near(9, 600), K, plan)
