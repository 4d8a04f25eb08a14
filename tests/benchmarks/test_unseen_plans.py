import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pages import unseen_plans as page
from support.unseen_grid import PROBES, Grid, by_hand, compare, in_turns, keeps, ladder, ratio, variants
from support.unseen_promise import Judge, Pool, cosines, numbered, outcome, promises, shares_found
from support.unseen_task import K, Task
from unseen_plans import grid_table, promise_table

from matryo import Index, Nesting, Plan
from matryo.results import stamp

RNG = np.random.default_rng(0)
DATABASE = RNG.standard_normal((1500, 32)).astype("f4") * np.linspace(2, 0.2, 32, dtype="f4")
QUERIES = RNG.standard_normal((600, 32)).astype("f4") * np.linspace(2, 0.2, 32, dtype="f4")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets") / "some"
    folder.mkdir()
    for part, vectors in (("database", DATABASE), ("tuning", QUERIES[:400]), ("test", QUERIES[400:])):
        np.save(folder / f"{part}.npy", vectors)
    counts = {"database": 1500, "tuning": 400, "test": 200}
    about = {"nesting": [16, 32], "dim": 32, "metric": "cosine", "counts": counts}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    return Task(folder)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    made = Index.create(tmp_path_factory.mktemp("index") / "mine", [16, 32])
    made.add(DATABASE)
    made.compact()   # rows that were added recently have no guide
    made.build()
    return made


def opening_of(index):
    return next((plan for plan in index.openings if plan.probe is not None), None)


def test_ladders_end_where_they_should():
    assert PROBES[0] == 1e-4 and PROBES[-1] == 1
    assert all(1.03 < after / before < 1.05 for before, after in pairwise(PROBES))
    assert ladder(1, 10, 100) == [1, 10]
    assert keeps(10_000)[0] == 4000 and keeps(10_000)[-1] == K + 1 and keeps(5) == []


def test_variants_of_a_plan_are_plans_of_the_same_shortlist():
    plan = Plan.of([(16, 80, "int8"), (32, 10)])
    plan = replace(plan, probe=0.1)
    found = variants(plan, Nesting([8, 16, 32]))
    assert {(one.stages[1].dim, one.stages[1].keep) for one in found if len(one.stages) == 3} == {
        (16, 40), (16, 20), (32, 40), (32, 20)}  # fmt: skip
    assert [one.stages[0].margin for one in found if len(one.stages) == 2] == [0.02, 0.05, 0.1, 0.2]
    assert all(one.stages[0].keep == 80 and one.probe == 0.1 for one in found)


def test_the_smallest_probe_is_that_of_all_probes(task, index):
    opening = opening_of(index)
    if opening is None:
        pytest.skip("partitions need the compiled core")
    grid, plan = Grid(task, index), by_hand(opening, 32, 60)
    rung, found = grid.least(plan, 0.9)
    recalls = [grid.recall(replace(plan, probe=probe)) for probe in PROBES[: rung + 1]]
    assert found.probe == PROBES[rung] and recalls[-1] >= 0.9 > recalls[-2]
    assert grid.least(by_hand(opening, 32, 11), 0.9999) is None
    assert grid.least(plan, 0.9, rung - 2, rung) is None and grid.least(plan, 0.9, rung + 1)[0] == rung + 1


def test_a_chosen_plan_is_compared_with_plans_by_hand(task, index):
    if opening_of(index) is None:
        pytest.skip("partitions need the compiled core")
    found = compare(task, index, 0.9, Grid(task, index), 2, 0.01)
    plans = {name: Plan.from_dict(found[name]["plan"]) for name in ("chosen", "bare", "hand", "safe")}
    assert plans["chosen"] == plans["bare"]
    assert found["hand"]["tuning_recall@10"] >= 0.9
    assert found["safe"]["tuning_recall@10"] >= found["chosen"]["tuning_recall@10"]
    assert all(len(found[name]["cpu_microseconds"]) == 2 for name in plans)
    assert "some at 0.9" in grid_table([found | {"set": "some"}])


def test_searches_take_turns():
    asked = []
    searches = {name: lambda _, name=name: asked.append(name) for name in "ab"}
    times = in_turns(searches, QUERIES[:60], 3, 0)
    assert [len(values) for values in times.values()] == [3, 3]
    order = "".join(dict.fromkeys(name + str(number // 50) for number, name in enumerate(asked[80:])))
    assert order == "a0b1b2a3a4b5"


def test_ratios_are_medians_of_turns():
    figures = {"a": {"cpu_microseconds": [1, 2, 9]}, "b": {"cpu_microseconds": [1, 1, 3]}}
    assert ratio(figures, "a", "b") == 2


def test_recalls_are_those_of_brute_force():
    numbers = RNG.permutation(len(DATABASE))
    judge = Judge(DATABASE, QUERIES[:50], numbers, (1.0, 0.1, 0.004))
    unit = DATABASE.astype("f8") / np.linalg.norm(DATABASE.astype("f8"), axis=1, keepdims=True)
    scores = QUERIES[:50].astype("f8") @ unit.T
    some = np.array([3, 40])
    for share, limit in ((1.0, 1500), (0.1, 150), (0.004, 6)):
        allowed = np.where(numbers < limit, scores, -np.inf)
        best = np.argsort(-allowed, axis=1)[:, :K]
        best[np.take_along_axis(allowed, best, 1) == -np.inf] = -1
        assert judge.recalls(share, some, best[some]).tolist() == [1, 1]
        assert judge.where(share) == (None if share == 1 else {"n": {"$lt": limit}})
        missed = best[some].copy()
        missed[0, 0] = np.flatnonzero(numbers >= limit)[0] if share < 1 else missed[0, 1]
        np.testing.assert_allclose(judge.recalls(share, some, missed), [1 - 1 / min(K, limit), 1])


def test_cosines_ignore_lengths():
    rows = np.array([[0, 1], [2, 3]])
    wanted = cosines(DATABASE, QUERIES[:2], rows)
    np.testing.assert_allclose(cosines(DATABASE * 7, QUERIES[:2] / 3, rows), wanted, rtol=1e-6)


def test_a_row_counts_once_and_ties_count():
    found = np.array([[5, 5], [5, 6]])
    assert shares_found(np.ones((2, 2)), found, np.ones(2), 2).tolist() == [0.5, 1]
    assert shares_found(np.full((2, 2), 1 - 1e-7), found, np.ones(2), 1).tolist() == [1, 1]


def test_a_pool_searches_as_its_index_does(index):
    pool = Pool(index, QUERIES)
    assert (pool.count, pool.nesting, pool.openings) == (len(index), index.nesting, index.openings)
    some, exact = QUERIES[[9, 3, *range(20, 40)]], Plan.single(32)
    for plan in (None, exact, Plan.adaptive(16, 32, keep=40)):
        for queries in (some, some[:1]):
            mine, theirs = pool.search(queries, K, plan), index.search(queries, K, plan)
            np.testing.assert_array_equal(mine.ids, theirs.ids)
            np.testing.assert_array_equal(mine.scores, theirs.scores)


def test_promises_are_judged_by_the_other_queries(tmp_path, capsys):
    index, numbers = numbered(tmp_path / "index", DATABASE, [16, 32], 0)
    judge = Judge(DATABASE, QUERIES, numbers, (1.0, 0.5))
    (found,) = promises(index, judge, [0.8], confidence=0.9, seen=300, judged=900, draws=2, seed=0)
    assert (found["draws"], found["judged"]) == (2, 300)
    assert [part["rows"] for part in found["filters"]] == [1500, 750]
    assert all(part["least"] <= part["recall"] <= 1 for part in found["filters"])
    assert capsys.readouterr().out.count("truly") == 2
    assert "some at 0.8, 50.0% of rows" in promise_table([found | {"set": "some"}])


def rows_of(chosen, hand, kept):
    plans = {name: {"recall@10": 0.96, "cpu_microseconds": times}
             for name, times in (("chosen", chosen), ("hand", hand), ("safe", chosen))}   # fmt: skip
    filters = [outcome(share, rows, [0.96] * kept + [0.94] * (10 - kept), 0.95)
               for share, rows in ((1.0, 1500), (0.5, 750))]   # fmt: skip
    grid = {"target": 0.95, "grid_plans": 1234, **plans}
    promise = {"target": 0.95, "draws": 10, "filters": filters}
    return [stamp(kind, "some, 1,500 × 32", figures, seed=0)
            for kind, figures in zip(page.KINDS, (grid, promise), strict=True)]   # fmt: skip


def test_the_page_shows_the_latest_rows():
    rows = [*rows_of([9, 9, 9], [1, 1, 1], 0), *rows_of([2, 3, 4], [2, 2, 2], 9)]
    by_hand = page.MAKERS[page.KINDS[0]](rows)[-1].splitlines()
    assert by_hand[2:] == ["| some, 1,500 × 32 | 0.95 | 0.9600 | 3.0 | 0.9600 | 2.0 | 1.50 × | 1.00 × | 1,234 |"]
    kept = page.MAKERS[page.KINDS[1]](rows)[-1].splitlines()
    assert kept[2:] == [
        "| some, 1,500 × 32 | 0.95 | all | 9 of 10 | 0.9580 | 0.9400 |",
        "| some, 1,500 × 32 | 0.95 | 50 %: 750 | 9 of 10 | 0.9580 | 0.9400 |",
    ]
    assert page.finding(rows) == (
        "The chosen plan takes 1.50 × the time of the best plan by hand in the median of 1 cases, and 1.50 × at most "
        "(some at 0.95). Plans kept their promised recall in 9 of 10 draws, and under filters that they were not "
        "planned for in 9 of 10."
    )
    assert page.finding([]) == ""
