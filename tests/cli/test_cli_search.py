"""matryo search: hits equal to those of the index, by every kind of plan, as a table, JSON lines or files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index, Nesting, Plan
from matryo.cli import main

COUNT, DIM = 400, 32
RANDOM = np.random.default_rng(1)
VECTORS = (RANDOM.normal(size=(COUNT, DIM)) * np.linspace(2, 0.3, DIM)).astype(np.float32)
QUERIES = VECTORS[:3] + np.float32(0.2)
IDS = [f"d{row}" for row in range(COUNT)]
PAYLOAD: list[dict[str, Any]] = [{"year": 2000 + row % 30, "text": "é" * 60} if row % 2 else {} for row in range(COUNT)]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An index, and queries beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    np.save("q.npy", QUERIES)
    with Index.create("idx", nesting=Nesting([8, 16, 32]), int8_up_to=8) as made:
        made.add(VECTORS, IDS, PAYLOAD)
        yield made


def run(capsys: Capture, *words: Any) -> str:
    assert main(["search", *map(str, words)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def found(capsys: Capture, *words: Any) -> list[list[str]]:
    """The ids that --json tells for each query."""
    lines = run(capsys, "idx", *words, "--json").splitlines()
    return [[hit["id"] for hit in json.loads(line)["hits"]] for line in lines]


def refused(capsys: Capture, *words: Any) -> str:
    assert main(["search", *map(str, words)]) == 1
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("matryo: error: ")


def cosines() -> Any:
    unit = VECTORS / np.linalg.norm(VECTORS.astype(np.float64), axis=1, keepdims=True)
    asked = QUERIES / np.linalg.norm(QUERIES.astype(np.float64), axis=1, keepdims=True)
    return asked @ unit.T


def test_the_nearest_are_told(capsys: Capture) -> None:
    scores = cosines()
    lines = [json.loads(line) for line in run(capsys, "idx", "q.npy", "-k", 4, "--json").splitlines()]
    assert [line["query"] for line in lines] == [0, 1, 2]
    for row, line in enumerate(lines):
        best = np.argsort(-scores[row])[:4]
        assert [hit["id"] for hit in line["hits"]] == [IDS[one] for one in best]
        assert [hit["score"] for hit in line["hits"]] == pytest.approx(scores[row][best], abs=1e-5)
        assert [hit["payload"] for hit in line["hits"]] == [PAYLOAD[one] for one in best]
    text = run(capsys, "idx", "q.npy", "-k", 4).split("\n\n")
    assert [part.splitlines()[0] for part in text] == ["query 0", "query 1", "query 2"]
    best = np.argsort(-scores[1])[:4]
    title, *rows = text[1].splitlines()[1:]
    assert title.split() == ["id", "cosine", "payload"]
    assert [row.split()[:2] for row in rows] == [[IDS[one], f"{scores[1][one]:.4f}"] for one in best]
    assert all(len(row) <= 60 for row in rows)
    assert {row[-1] for row, one in zip(rows, best, strict=True) if one % 2} == {"…"}


def test_a_table_without_payloads_has_no_such_column(capsys: Capture) -> None:
    with Index.create("bare", nesting=Nesting([DIM]), metric="l2") as bare:
        bare.add(VECTORS[:5])
    lines = run(capsys, "bare", "q.npy", "-k", 9).splitlines()
    assert lines[1].split() == ["id", "l2"]
    assert len(lines) == 3 * (2 + 5) + 2   # five rows each, and nothing for what is not there
    assert "nothing found" not in "".join(lines)


def test_an_empty_index_has_nothing_to_search(capsys: Capture) -> None:
    with Index.create("none", nesting=Nesting([DIM])):
        pass
    for words in (["q.npy"], ["--like", "1"], ["q.npy", "--out", "hits.npz"]):
        told = refused(capsys, "none", *words)
        assert told == "none holds no vectors: add some first: matryo index none SOURCE"
    assert not Path("hits.npz").exists()


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_unused_places_are_never_shown(capsys: Capture, metric: Any) -> None:
    with Index.create("few", nesting=Nesting([DIM]), metric=metric) as few:
        few.add(VECTORS[:4], payload=[{"n": row} for row in range(4)])
    for words, count in [(["q.npy"], 4), (["--like", "1"], 3), (["q.npy", "--where", '{"n": {"$lt": 2}}'], 2)]:
        lines = [json.loads(line) for line in run(capsys, "few", *words, "-k", 100, "--json").splitlines()]
        assert {len(line["hits"]) for line in lines} == {count}
        assert all(hit["id"] >= 0 and np.isfinite(hit["score"]) for line in lines for hit in line["hits"])
        tables = run(capsys, "few", *words, "-k", 100).split("\n\n")
        assert {len(table.splitlines()) for table in tables} == {count + 2}
        assert "-inf" not in "".join(tables)
        run(capsys, "few", *words, "-k", 100, "--out", "hits.jsonl", "--force")
        assert [json.loads(line) for line in Path("hits.jsonl").read_text().splitlines()] == lines


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ([], None),
        (["--exact"], None),
        (["--dims", "8"], Plan.single(8, k=5)),
        (["--dims", "8,32", "--keep", "9"], Plan.adaptive(8, 32, keep=9, k=5)),
        (["--dims", "8,32"], Plan.adaptive(8, 32, keep=200, k=5)),
        (["--dims", "8,32", "--keep", "9", "--int8"], Plan.adaptive(8, 32, keep=9, k=5, precision="int8")),
        (["--dims", "8,16,32", "--keep", "20"], Plan.of([(8, 20), (16, 10), (32, 5)])),
        (["--dims", "8,16,32", "--keep", "7"], Plan.of([(8, 7), (16, 5), (32, 5)])),
        (["--dims", "8,16,32", "--keep", "20,6"], Plan.of([(8, 20), (16, 6), (32, 5)])),
        (["--dims", "8,32", "--keep", "20", "--funnel"], Plan.funnel(8, 32, keep=20, k=5)),
    ],
)
def test_plans_are_named_by_options(capsys: Capture, index: Index, words: list[str], plan: Plan | None) -> None:
    assert found(capsys, "q.npy", "-k", 5, *words) == index.search(QUERIES, 5, plan).ids.tolist()


def test_a_plan_in_a_file(capsys: Capture, index: Index) -> None:
    plan = Plan.of([(8, 12, "int8"), (16, 8), (32, 5)])
    Path("plan.json").write_text(json.dumps(plan.to_dict()))
    assert found(capsys, "q.npy", "--plan", "plan.json", "-k", 5) == index.search(QUERIES, 5, plan).ids.tolist()
    words = ["q.npy", "--plan", json.dumps(plan.to_dict()), "-k", 5]   # its text
    assert found(capsys, *words) == index.search(QUERIES, 5, plan).ids.tolist()
    for text, told in [
        ("{", "plan.json must be a plan in JSON (got Expecting property name"),
        ("[]", "a plan must have stages with dim and keep"),
        ('{"stages": [{"dim": 8}]}', "a plan must have stages with dim and keep"),
        ('{"stages": [{"dim": 8, "keep": 5}], "speed": 1}', "a plan must have stages"),
        ('{"stages": [{"dim": 12, "keep": 5}]}', "must be dims of the index: 8, 16, 32 (got 12)"),
    ]:
        Path("plan.json").write_text(text)
        assert told in refused(capsys, "idx", "q.npy", "--plan", "plan.json")
    assert "none.json must be a plan in JSON (got " in refused(capsys, "idx", "q.npy", "--plan", "none.json")


def test_rows_of_the_index_ask_and_do_not_find_themselves(capsys: Capture, index: Index) -> None:
    lines = [json.loads(line) for line in run(capsys, "idx", "--like", "d7", "d9", "-k", 3, "--json").splitlines()]
    assert [line["query"] for line in lines] == ["d7", "d9"]
    for line, row in zip(lines, (7, 9), strict=True):
        assert [hit["id"] for hit in line["hits"]] == index.search(VECTORS[row], 4).ids[0, 1:].tolist()
    late = {"year": {"$gte": 2025}}   # d7 is not among these, so nothing is left out
    assert found(capsys, "--like", "d7", "-k", 3, "--where", json.dumps(late)) == (
        index.search(VECTORS[7], 3, where=late).ids.tolist()
    )
    assert "the index has no such id (got 'x')" in refused(capsys, "idx", "--like", "d7", "x")
    with Index.create("numbers", nesting=Nesting([DIM])) as numbers:
        numbers.add(VECTORS)
    assert json.loads(run(capsys, "numbers", "--like", "7", "--json", "-k", 1))["query"] == 7
    assert "the ids of this index are integers (got 'd7')" in refused(capsys, "numbers", "--like", "d7")


def test_only_payloads_that_match(capsys: Capture, index: Index) -> None:
    where = {"year": {"$gte": 2027}}
    hits = found(capsys, "q.npy", "--where", json.dumps(where))
    assert hits == index.search(QUERIES, where=where).ids.tolist()
    assert all(PAYLOAD[int(id[1:])]["year"] >= 2027 for ids in hits for id in ids)
    assert found(capsys, "q.npy", "--where", '{"year": 1900}') == [[], [], []]
    assert "--where must be JSON (got year=2020: " in refused(capsys, "idx", "q.npy", "--where", "year=2020")
    assert "where must be a dict" in refused(capsys, "idx", "q.npy", "--where", "[1]")


def test_queries_with_ids_and_from_a_pipe(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(json.dumps({"id": f"q{row}", "embedding": QUERIES[row].tolist()}) + "\n" for row in range(3))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    told = [json.loads(line) for line in run(capsys, "idx", "-", "--json").splitlines()]
    assert [line["query"] for line in told] == ["q0", "q1", "q2"]
    assert [[hit["id"] for hit in line["hits"]] for line in told] == found(capsys, "q.npy")


def test_hits_in_files(capsys: Capture, index: Index) -> None:
    hits = index.search(QUERIES, 5)
    assert run(capsys, "idx", "q.npy", "-k", 5, "--out", "hits.npz") == "wrote the hits of 3 queries to hits.npz\n"
    with np.load("hits.npz", allow_pickle=False) as file:
        assert file["queries"].tolist() == [0, 1, 2]
        assert file["ids"].tolist() == hits.ids.tolist()
        np.testing.assert_array_equal(file["scores"], hits.scores)
    run(capsys, "idx", "q.npy", "-k", 5, "--out", "hits.jsonl")
    assert Path("hits.jsonl").read_text() == run(capsys, "idx", "q.npy", "-k", 5, "--json")
    assert "wrote the hits of 1 query to" in run(capsys, "idx", "--like", "d3", "--out", "one.npz")
    before = Path("hits.npz").read_bytes()
    assert "k must be" in refused(capsys, "idx", "q.npy", "-k", 0, "--out", "hits.npz")
    assert Path("hits.npz").read_bytes() == before


def test_what_cannot_be_asked(capsys: Capture) -> None:
    assert "k must be an integer of at least 1 (got 0)" in refused(capsys, "idx", "q.npy", "-k", 0)
    assert "k must be an integer of at least 1 (got 0)" in refused(capsys, "idx", "--like", "d1", "-k", 0)
    assert "there is no index in this folder" in refused(capsys, "none", "q.npy")
    np.save("wide.npy", np.ones((2, 40)))
    assert "queries must have the 32 dims of idx (got 40 in wide.npy)" in refused(capsys, "idx", "wide.npy")
    np.save("nan.npy", np.where(np.arange(DIM) == 3, np.nan, QUERIES))
    assert refused(capsys, "idx", "nan.npy") == (
        "nan.npy, row 0: a vector must have finite numbers (got nan at 3): drop that row, or encode it again"
    )
    np.save("zero.npy", np.zeros((2, DIM)))
    assert "a query must not be all zeros" in refused(capsys, "idx", "zero.npy")
    assert "must be a readable npy file" in refused(capsys, "idx", "none.npy")
    assert "must be dims of the index: 8, 16, 32 (got 12)" in refused(capsys, "idx", "q.npy", "--dims", "12,32")
    assert "--dims must list dims" in refused(capsys, "idx", "q.npy", "--dims", "32,8")
    assert "--keep must be numbers of rows (got 'many')" in refused(
        capsys, "idx", "q.npy", "--dims", "8,32", "--keep", "many"
    )
    for words in (["8,32", "--keep", "5"], ["8,16,32", "--keep", "20,5"], ["8,32", "--keep", "5", "--funnel"]):
        assert "keep must be at least k (got keep=5, k=10)" in refused(capsys, "idx", "q.npy", "--dims", *words)
    assert "(got 2 for 2 dims)" in refused(capsys, "idx", "q.npy", "--dims", "8,32", "--keep", "50,20")
    assert "a funnel needs a short dim" in refused(capsys, "idx", "q.npy", "--dims", "8,16,32", "--funnel")
    for option, value, guide in (("--probe", 0.1, "partition"), ("--ef", 200, "graph")):
        told = refused(capsys, "idx", "q.npy", "--dims", "8,32", option, value)
        assert f"a plan with {option[2:]} needs an index with a {guide}" in told


def test_options_that_contradict_each_other(capsys: Capture) -> None:
    for words, told in [
        ([], "pass either QUERIES or --like (got neither)"),
        (["q.npy", "--like", "d1"], "(got both): for example --like ID"),
        (["q.npy", "--out", "hits.csv"], "--out must end in .npz or .jsonl (got hits.csv)"),
        (["q.npy", "--out", "hits.npz", "--json"], "hits are either written or printed"),
        (["q.npy", "--exact", "--dims", "8,32"], "--exact takes no plan (got --dims): drop one"),
        (["q.npy", "--plan", "p.json", "--keep", "5"], "--plan already has stages (got --keep): drop one"),
        (["q.npy", "--keep", "5", "--funnel"], "a plan needs --dims (got --keep --funnel): for example"),
    ]:
        assert told in refused(capsys, "idx", *words)
