"""matryo check: the verdict on a saved plan, for eyes, for programs and for the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index, Plan
from matryo.cli import main
from matryo.retrieve.plan.check import Check

DIM = 32
SCALE = np.linspace(2, 0.05, DIM)
Capture = pytest.CaptureFixture[str]


def made(seed: int, count: int, scale: Any = SCALE) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(count, DIM)) * scale).astype(np.float32)


@pytest.fixture(autouse=True)
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    for name, queries in (("q", made(1, 120)), ("more", made(2, 1500)), ("other", made(3, 200, 1))):
        np.save(f"{name}.npy", queries)
    with Index.create("idx", nesting=[8, 16, DIM]) as index:
        index.add(made(0, 600))
    words = ["idx", "--queries", "q.npy", "--recall", "0.9", "-k", "5", "--cost", "bytes", "--out", "plan.json"]
    assert main(["plan", *words, "--quiet"]) == 0
    capsys.readouterr()


def run(capsys: Capture, *words: Any) -> tuple[int, str, str]:
    code = main(["check", "idx", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_plan_keeps_its_promise_and_breaks_it_for_other_queries(capsys: Capture) -> None:
    assert Plan.from_dict(json.loads(Path("plan.json").read_text())).promise is not None
    code, out, err = run(capsys, "more.npy", "--plan", "plan.json", "--recall", 0.85)
    assert (code, err) == (0, "")
    assert "promise    recall@5 ≥ 85%: holds" in out
    code, out, err = run(capsys, "other.npy", "--plan", "plan.json")
    assert code == 1
    assert "promise    recall@5 ≥ 90%: broken" in out
    assert "when planning: differs (distance" in out
    assert err.startswith("matryo: error: the recall on these queries is below 0.9 (got at most 0.")
    assert "plan again: matryo plan idx --recall 0.9 --queries SOURCE" in err


def test_the_check_is_printed_as_json(capsys: Capture) -> None:
    code, out, _ = run(capsys, "other.npy", "--plan", "plan.json", "--json")
    with Index.open("idx") as index:
        wanted = index.check(np.load("other.npy"), "plan.json")
    result = Check.from_figures(json.loads(out))
    assert (code, result.recall, result.lower, result.distance) == (1, wanted.recall, wanted.lower, wanted.distance)


def test_plans_without_a_promise_need_a_recall(capsys: Capture) -> None:
    bare = json.dumps(Plan.adaptive(8, DIM, keep=300).to_dict())   # as files of earlier versions are
    code, _, err = run(capsys, "q.npy", "--plan", bare)
    assert (code, "the plan promises no recall, so the check needs one" in err) == (1, True)
    code, out, _ = run(capsys, "q.npy", "--plan", bare, "--recall", 0.5, "-k", 3)
    assert (code, "recall@3 ≥ 50%: holds" in out) == (0, True)


def test_what_cannot_be_checked(capsys: Capture) -> None:
    assert "none.json must be a plan in JSON" in run(capsys, "q.npy", "--plan", "none.json")[2]
    np.save("wide.npy", np.ones((30, 40)))
    assert "must have the 32 dims of idx (got 40 in wide.npy)" in run(capsys, "wide.npy", "--plan", "plan.json")[2]
    with pytest.raises(SystemExit):
        main(["check", "idx", "q.npy"])


def test_a_search_warns_of_other_queries_in_one_line(capsys: Capture) -> None:
    for name, lines in (("more", 0), ("other", 1)):
        assert main(["search", "idx", f"{name}.npy", "-k", "5", "--plan", "plan.json", "--out", "hits.npz"]) == 0
        err = capsys.readouterr().err
        assert len(err.splitlines()) == lines
    assert err.startswith("matryo: warning: these queries score differently from those that the plan was made for")
    assert "measure with index.check(queries, plan) or matryo check" in err
