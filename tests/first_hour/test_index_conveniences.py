"""An index takes what is meant: lists of dims, plans in any form, tables of vectors; and errors name the cure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index, Nesting, Plan
from matryo.cli import main
from matryo.errors import InputError
from matryo.retrieve.plan.choice import Choice, Point

VECTORS = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32) * np.linspace(2, 0.1, 8, dtype=np.float32)


@pytest.fixture
def index(tmp_path: Path) -> Any:
    with Index.create(tmp_path / "idx", nesting=[2, 4, 8]) as made:
        made.add(VECTORS, ids=[f"d{row}" for row in range(200)], payload=[{"n": row} for row in range(200)])
        yield made


def chosen(plan: Plan) -> Choice:
    """The choice of a planner."""
    points = tuple(Point(each, 1.0, 1.0, True, None, each.bytes(200), 1.0) for each in (Plan.single(8), plan))
    return Choice(plan, points, target=0.9, k=5, tuned_on=30, tested_on=90, unit="bytes")


def test_lists_of_dims_make_a_nesting(index: Index) -> None:
    assert index.nesting == Nesting([2, 4, 8])


def test_every_form_of_a_plan_gives_the_same_hits(index: Index, tmp_path: Path) -> None:
    plan = Plan.adaptive(2, 8, keep=20, k=5)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_dict()))
    wanted = index.search(VECTORS[:9], 5, plan)
    assert (wanted.ids != index.search(VECTORS[:9], 5).ids).any()   # the plan matters
    for form in (plan.to_dict(), json.dumps(plan.to_dict()), path, str(path)):
        np.testing.assert_array_equal(index.search(VECTORS[:9], 5, plan=form).ids, wanted.ids)
    np.testing.assert_array_equal(index.search(VECTORS[:9], 5, plan=chosen(plan)).ids, wanted.ids)


def test_a_choice_without_a_plan_says_why(index: Index) -> None:
    choice = replace(chosen(Plan.single(8)), plan=None, budget=1)
    with pytest.raises(InputError, match="the planner chose no plan: raise the budget; no plan within 1 bytes"):
        index.search(VECTORS[:1], 5, plan=choice)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (7, r"plan must be a Plan, a choice of index.plan\(…\), a dict or the path .* \(got 7\): for example"),
        ("none.json", r"none.json must be a plan in JSON \(got .*No such file.*\): write a plan with: matryo plan"),
        ("{", r"plan must be a plan in JSON \(got Expecting"),
        ({"dims": [2]}, r"a plan must have stages with dim and keep \(got 'stages'\)"),
    ],
)
def test_anything_else_is_refused_with_the_cure(index: Index, plan: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        index.search(VECTORS[:1], plan=plan)


@pytest.mark.parametrize("queries", ["a cat", ["a cat", "a dog"]])
def test_texts_are_no_queries(index: Index, queries: Any) -> None:
    with pytest.raises(InputError, match=r"holds vectors, not texts \(got 'a cat'\): encode .*load\(.*\)\.encode"):
        index.search(queries)


def test_ids_are_looked_up(index: Index) -> None:
    assert len(index) == 200
    assert "d7" in index
    assert all(other not in index for other in ("x", 7, None, 1.5, True, ["d7"]))
    vector, payload = index["d7"]
    np.testing.assert_array_equal(vector, VECTORS[7])
    assert payload == index["d7"].payload == {"n": 7}
    assert index.ids.tolist() == [f"d{row}" for row in range(200)]
    for id, cure in (("x", "index.ids has all ids"), (7, "use a string, as all ids of this index")):
        with pytest.raises(KeyError) as stop:
            index[id]
        assert str(stop.value) == f"the index has no such id (got {id!r}): {cure}"
    index.delete(["d7"])
    assert "d7" not in index


def test_an_index_describes_itself(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    folder = index.path
    assert repr(index) == f"Index({str(folder)!r}): 200 × 8, cosine, float32\n  dims 2, 4, 8; guides: none"
    index.compact()
    facts = index.describe()
    assert (facts.count, facts.nesting, facts.ids, facts.segments) == (200, Nesting([2, 4, 8]), "strings", 1)
    assert (facts.fields, facts.guides, facts.dtype, facts.metric) == (("n",), {}, "float32", "cosine")
    assert facts.bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    index.close()
    assert repr(index) == f"Index({str(folder)!r}): closed"
    assert main(["index", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["count"], told["fields"], told["dims"]) == (200, ["n"], [2, 4, 8])


@pytest.mark.usefixtures("index")
def test_an_index_exists_or_not(tmp_path: Path) -> None:
    assert Index.exists(tmp_path / "idx")
    assert Index.exists(str(tmp_path / "idx"))
    assert not Index.exists(tmp_path)
    assert not Index.exists(tmp_path / "none")


def test_tables_of_vectors_are_added_and_searched(index: Index, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    wanted = index.search(VECTORS[:3], 4)
    frame = pandas.DataFrame({"id": [f"d{row}" for row in range(200)], "vector": list(VECTORS)})
    with Index.create(tmp_path / "frame", nesting=[8]) as other:
        other.add(pandas.DataFrame(VECTORS), ids=frame["id"])
        np.testing.assert_array_equal(other.search(frame["vector"][:3], 4).ids, wanted.ids)
        np.testing.assert_array_equal(other.search(pandas.DataFrame(VECTORS[:3]), 4).ids, wanted.ids)
    np.testing.assert_array_equal(index.search(VECTORS[:3].tolist(), 4).ids, wanted.ids)


def test_planning_on_too_few_vectors_or_with_percents(tmp_path: Path) -> None:
    with Index.create(tmp_path / "empty", nesting=[8]) as empty:
        with pytest.raises(InputError) as stop:
            empty.plan(k=10)
        assert str(stop.value) == "the index holds 0 vectors, too few to plan for k=10: add vectors first"
        with pytest.raises(InputError) as stop:
            empty.plan(recall=95.0)
        assert str(stop.value) == "recall must be between 0 and 1 (got 95.0): write 95 % as 0.95"


def test_files_of_the_user_are_kept(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, mine = str(index.path), tmp_path / "mine.parquet"
    mine.write_bytes(b"PAR1")
    plan = ["plan", folder, "--recall", "0.9", "-k", "5", "--cost", "bytes", "--quiet", "--out"]
    assert main([*plan, str(mine)]) == 1
    assert f"{mine} exists: choose another name, or --force to overwrite" in capsys.readouterr().err
    assert mine.read_bytes() == b"PAR1"
    out = str(tmp_path / "plan.json")
    assert main([*plan, out]) == main([*plan, out]) == main([*plan, str(mine), "--force"]) == 0   # ours, ours, forced
    assert Plan.from_dict(json.loads(mine.read_text())).dim == 8
    search = ["search", folder, "--like", "d1", "--out"]
    for name in ("hits.npz", "hits.jsonl"):
        hits = tmp_path / name
        hits.write_text('{"mine": 1}')
        assert main([*search, str(hits)]) == 1
        assert hits.read_text() == '{"mine": 1}'
        assert main([*search, str(hits), "--force"]) == main([*search, str(hits)]) == 0
