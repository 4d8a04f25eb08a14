"""matryo plan: the frontier and the plan that was chosen, for eyes, for programs and for matryo search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index, Nesting, Plan
from matryo.cli import main
from matryo.retrieve.plan.choice import Choice

COUNT, DIM = 600, 32
RANDOM = np.random.default_rng(2)
SCALE = np.linspace(2, 0.05, DIM)
VECTORS = (RANDOM.normal(size=(COUNT, DIM)) * SCALE).astype(np.float32)
QUERIES = (RANDOM.normal(size=(120, DIM)) * SCALE).astype(np.float32)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("q.npy", QUERIES)
    with Index.create("idx", nesting=Nesting([8, 16, 32])) as index:
        index.add(VECTORS)


def run(capsys: Capture, *words: Any) -> str:
    assert main(["plan", "idx", "--cost", "bytes", "--quiet", *map(str, words)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: Capture, *words: Any) -> str:
    assert main(["plan", *map(str, words)]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("matryo: error: ")


def test_a_plan_is_chosen_and_searched_by(capsys: Capture) -> None:
    printed = run(capsys, "--queries", "q.npy", "--recall", 0.9, "--out", "plan.json", "-k", 5)
    plan = Plan.from_dict(json.loads(Path("plan.json").read_text()))
    assert plan.bytes(COUNT) < Plan.single(DIM).bytes(COUNT)
    assert printed.splitlines()[0].split()[:2] == ["plan", "recall"]
    assert "recall@5 ≥ 90% on new queries like these, with 95% confidence" in printed
    assert "guides allow faster plans: matryo index idx --build" in printed
    assert printed.splitlines()[-1] == "wrote the plan to plan.json: matryo search idx QUERIES --plan plan.json"
    with Index.open("idx") as index:
        exact, quick = index.search(QUERIES, 5).ids, index.search(QUERIES, 5, plan).ids
    assert main(["search", "idx", "q.npy", "--plan", "plan.json", "-k", "5", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[hit["id"] for hit in line["hits"]] for line in told] == quick.tolist()
    shared = [len(set(a) & set(b)) / 5 for a, b in zip(exact.tolist(), quick.tolist(), strict=True)]
    assert np.mean(shared) > 0.85


def test_rows_stand_in_for_queries_and_all_is_told_as_json(capsys: Capture) -> None:
    choice = Choice.from_figures(json.loads(run(capsys, "--recall", 0.9, "-k", 5, "--json")))
    assert (choice.met, choice.target, choice.k, choice.unit) == (True, 0.9, 5, "bytes")
    assert choice.frontier[0].plan.dim == DIM


def test_the_frontier_is_drawn(capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    printed = run(capsys, "--queries", "q.npy", "--recall", 0.9, "-k", 5, "--figure", "frontier.svg")
    assert printed.splitlines()[-1] == "wrote the figure to frontier.svg"
    assert Path("frontier.svg").read_text().startswith("<?xml")


def test_a_budget_that_buys_nothing(capsys: Capture) -> None:
    words = ["idx", "--queries", "q.npy", "--recall", 0.9, "--cost", "bytes", "--quiet", "--budget", 10, "-k", 5]
    assert main(["plan", *map(str, words), "--out", "plan.json"]) == 1
    printed = capsys.readouterr()
    assert "no plan within 10 bytes per query reaches recall@5 ≥ 90%" in printed.out
    assert printed.err == (
        "matryo: error: no plan within the budget reaches the recall (got 10.0): raise --budget or lower --recall\n"
    )
    assert not Path("plan.json").exists()


def test_planning_again_prints_the_stored_result(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[Any] = ["--queries", "q.npy", "--recall", 0.9, "-k", 5]
    calls: list[str] = []
    plan = Index.plan

    def counted(self: Index, **options: Any) -> Choice:
        calls.append("plan")
        return plan(self, **options)

    monkeypatch.setattr(Index, "plan", counted)
    note = "this is the stored result of an earlier run (--again plans anew)"
    first = run(capsys, *words)
    assert note not in first
    again = run(capsys, *words, "--out", "plan.json").splitlines()
    table = first.splitlines()[:-1]   # without the note on guides
    assert again[: len(table)] == table
    assert again[len(table)] == note
    assert len(calls) == 1
    with Index.open("idx") as index:
        figures = json.loads(run(capsys, *words, "--json"))
        assert Choice.from_figures(figures).plan == Plan.from_dict(json.loads(Path("plan.json").read_text()))
        assert index.verify() is None   # type: ignore[func-returns-value]
    assert len(calls) == 1
    np.save("copy.npy", QUERIES)
    run(capsys, "--queries", "copy.npy", *words[2:])   # the content counts, not the name
    assert len(calls) == 1
    assert note not in run(capsys, *words, "--again")
    np.save("q.npy", QUERIES + 1)
    for changed in ([], ["--confidence", 0.9], ["--budget", 1e9], ["-k", 4], ["--recall", 0.8], ["--cost", "mflops"]):
        before = len(calls)
        assert note not in run(capsys, *words, *changed)
        assert note in run(capsys, *words, *changed)
        assert len(calls) == before + 1
    with Index.open("idx", writable=True) as index:
        index.delete([0])
    assert note not in run(capsys, *words)
    assert note in run(capsys, *words)
    assert main(["index", "idx", "--backup", "copy"]) == 0
    assert not Path("copy/plans").exists()


def test_what_cannot_be_planned(capsys: Capture) -> None:
    assert "recall must be between 0 and 1 (got 1.5): write 1.5 % as 0.015" in refused(capsys, "idx", "--recall", 1.5)
    assert "k must be an integer" in refused(capsys, "idx", "-k", 0)
    assert "there is no index in this folder" in refused(capsys, "none")
    assert "--figure must end in .svg or .png" in refused(capsys, "idx", "--figure", "a.pdf")
    assert "--format applies to --queries (got no --queries)" in refused(capsys, "idx", "--format", "npy")
    assert "needs at least 418 queries (got 120)" in refused(capsys, "idx", "--queries", "q.npy", "--quiet")
    np.save("wide.npy", np.ones((2, 40)))
    assert "must have the 32 dims of idx (got 40 in wide.npy)" in refused(capsys, "idx", "--queries", "wide.npy")
