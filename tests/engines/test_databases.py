"""Every installed engine passes the same tests; the oracle is exact search by numpy."""

import json
import os
import re
import subprocess
import sys
import time

import engine_urls
import numpy as np
import pytest

from matryo import EmbeddingSet, Index, Plan, engines
from matryo.cli import main
from matryo.errors import EngineError, InputError, MatryoError

COUNT, DIM, K = 1500, 32, 10
RNG = np.random.default_rng(0)
VECTORS = (RNG.normal(size=(COUNT, DIM)) * np.linspace(2, 0.2, DIM)).astype(np.float32)
QUERIES = (VECTORS[:40] + RNG.normal(size=(40, DIM)) * 0.3).astype(np.float32)
WORDS = ["é", "it's", "%s $1 {}", 'quo"te', "back\\slash", "drop table", "Z", "😀"]
PAYLOAD = [
    {"n": row, "word": WORDS[row % len(WORDS)], "deep": {"even": row % 2 == 0}}
    | ({"tags": [row % 3, f"t{row % 4}"]} if row % 5 else {"none": None})
    for row in range(COUNT)
]
HOSTILE = 'tâble "x"; DROP TABLE y; -- %s'
NAMES = sorted(engine_urls.NEEDS)
slow = pytest.mark.skipif("MATRYO_ENGINES" not in os.environ, reason="runs in `make engines`; PostgreSQL always runs")
MOST = [pytest.param(name, marks=() if name == "postgresql" else slow) for name in NAMES]


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def url(name):
    return engine_urls.url(name)


@pytest.fixture(scope="module")
def loaded(url):
    """An engine with all rows, in a table with a hostile name."""
    with engines.open(url, table=HOSTILE, metric="cosine", dims=[8, 16, 32]) as engine:
        assert engine.load(VECTORS, payload=PAYLOAD) == COUNT
        for dim in (8, 16, 32):
            engine.prepare(dim)
        yield engine


def exact(metric, queries, rows=None, vectors=VECTORS):
    """Ids and scores of the nearest rows, in float64."""
    rows = np.arange(len(vectors)) if rows is None else np.flatnonzero(rows)
    some, queries = vectors[rows].astype(np.float64), queries.astype(np.float64)
    if metric == "cosine":
        some = some / np.linalg.norm(some, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    scores = queries @ some.T
    if metric == "l2":
        scores = -((queries[:, None] - some[None]) ** 2).sum(-1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    return rows[order], np.take_along_axis(scores, order, 1)


def recall(hits, true):
    pairs = zip(hits.ids.tolist(), true.tolist(), strict=True)
    return np.mean([len({*found} & {*row}) / len(row) for found, row in pairs])


@pytest.mark.parametrize("queries", [QUERIES, QUERIES[:3]], ids=["one pass", "by the database"])
def test_exact_search_is_that_of_numpy(loaded, queries):
    hits = loaded.search(queries, K)
    ids, scores = exact("cosine", queries)
    np.testing.assert_array_equal(hits.ids, ids)
    np.testing.assert_allclose(hits.scores, scores, atol=2e-6)


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_other_metrics(url, metric):
    with engines.open(url, table=f"by {metric}", metric=metric) as engine:
        engine.load(VECTORS)
        engine.prepare(16)
        for queries in (QUERIES, QUERIES[:2]):
            hits, (ids, scores) = engine.search(queries, K), exact(metric, queries)
            np.testing.assert_array_equal(hits.ids, ids)
            np.testing.assert_allclose(hits.scores, scores, rtol=1e-4, atol=1e-4)
        # A shortlist that holds everything finds what exact search finds.
        plan = Plan.adaptive(16, 32, keep=COUNT, ef=COUNT) if engine.needs_index else Plan.adaptive(16, 32, keep=COUNT)
        assert recall(engine.search(QUERIES, K, plan), exact(metric, QUERIES)[0]) > 0.97
        assert engine.metric == metric
        engine.drop(table=True)


def guided(engine, keep, dim=8):
    return Plan.adaptive(dim, DIM, keep=keep, **({"ef": 2 * keep} if engine.needs_index else {}))


def test_a_plan_finds_more_with_a_longer_shortlist(loaded):
    true = exact("cosine", QUERIES)[0]
    short, long = (recall(loaded.search(QUERIES, K, guided(loaded, keep)), true) for keep in (12, 300))
    assert short < long
    assert long > 0.95
    three = Plan.of([(8, 300), (16, 60), (32, 10)])
    three = Plan(three.stages, ef=600) if loaded.needs_index else three
    assert recall(loaded.search(QUERIES, K, three), true) > 0.9
    scores = loaded.search(QUERIES, K, three).scores
    assert (np.diff(scores, axis=1) <= 1e-6).all()


FILTERS = [
    ({"n": {"$lt": 700}}, lambda p: p["n"] < 700),
    ({"n": 7}, lambda p: p["n"] == 7),
    ({"word": {"$in": WORDS[:5]}}, lambda p: p["word"] in WORDS[:5]),
    ({"word": {"$gte": "Z"}}, lambda p: p["word"] >= "Z"),
    ({"n": {"$gte": 3.5, "$lte": 1200}, "deep.even": True}, lambda p: 3.5 <= p["n"] <= 1200 and p["deep"]["even"]),
    ({"$not": {"deep.even": True}}, lambda p: not p["deep"]["even"]),
    ({"tags": {"$contains": "t1"}}, lambda p: "t1" in p.get("tags", [])),
    ({"tags": {"$contains": 2}}, lambda p: 2 in p.get("tags", [])),
    ({"none": {"$exists": True}}, lambda p: "none" in p),
    ({"none": None}, lambda p: "none" in p),
    ({"none": {"$exists": False}, "n": {"$ne": 3}}, lambda p: "none" not in p and p["n"] != 3),
    ({"n": "7"}, lambda _: False),
    ({"word": {"$ne": WORDS[1]}}, lambda p: p["word"] != WORDS[1]),
    ({"word": {"$contains": "quo\""}}, lambda p: 'quo"' in p["word"]),
    ({"$or": [{"n": {"$lt": 5}}, {"word": "é", "missing": {"$nin": [1]}}]}, lambda p: p["n"] < 5 or p["word"] == "é"),
    ({}, lambda _: True),
    ({"$or": []}, lambda _: False),
]


@pytest.mark.parametrize(("where", "matches"), FILTERS, ids=[json.dumps(where) for where, _ in FILTERS])
def test_filters_mean_what_they_mean_for_an_index(loaded, where, matches):
    rows = np.array([matches(fields) for fields in PAYLOAD])
    try:
        loaded.explain(None, K, where)
        loaded.search(QUERIES[:1], K, where=where)
    except InputError as error:   # an engine may refuse a filter, but must say what to do instead
        assert loaded.schemes[0] == "qdrant-edge", error
        assert re.search("finds no parts of texts|matches no booleans|orders numbers only", str(error))
        return
    wanted, _ = exact("cosine", QUERIES[:12], rows)
    for queries in (QUERIES[:12], QUERIES[:2]):
        hits = loaded.search(queries, K, where=where)
        np.testing.assert_array_equal(hits.ids[:, : wanted.shape[1]], wanted[: len(queries)])
        assert np.isneginf(hits.scores[:, wanted.shape[1] :]).all()
    planned = loaded.search(QUERIES[:12], K, guided(loaded, 200), where)
    assert rows[planned.ids[np.isfinite(planned.scores)]].all()
    if rows.any():
        assert recall(planned, wanted) > 0.9


def test_loading_again_changes_nothing_and_overwriting_replaces(url):
    with engines.open(url, table="again", metric="cosine") as engine:
        assert engine.load(VECTORS[:300], ids=[f"ключ {row}" for row in range(300)]) == 300
        assert engine.load(VECTORS[:400], ids=[f"ключ {row}" for row in range(400)]) == 100
        assert engine.count == 400
        assert engine.search(VECTORS[:1], 1).ids[0, 0] == "ключ 0"
        assert engine.load(VECTORS[400:401], ids=["ключ 0"], overwrite=True) == 1
        assert engine.search(VECTORS[400:401], 1).ids.tolist() == [["ключ 0"]]
        assert engine.search(VECTORS[400:410], 1).ids[0, 0] == "ключ 0"
        assert engine.count == 400
        with pytest.raises(InputError, match="finite"):
            engine.load(np.full((2, DIM), np.nan), ids=["a", "b"])
        assert engine.count == 400
        engine.drop(table=True)
    with engines.open(url, table="again") as engine:
        assert engine.count == 0
        with pytest.raises(InputError, match="load"):
            engine.search(QUERIES, K)


def test_embeddings_and_indexes_can_be_loaded(url, tmp_path):
    folder = EmbeddingSet.write(tmp_path / "set", VECTORS[:50], labels=np.arange(50) % 3, nesting=[8, 32])
    with engines.open(url, table="from a set", metric="cosine") as engine:
        engine.load(folder)
        assert engine.nesting.dims == (8, 32)
        assert set(engine.search(QUERIES[:2], 5, where={"label": 1}).ids.ravel() % 3) == {1}
        engine.drop(table=True)
    with Index.create(tmp_path / "index", nesting=[16, 32]) as index:
        index.add(VECTORS[:60], payload=PAYLOAD[:60])
        with engines.open(url, table="from an index", metric="cosine") as engine:
            engine.load(index)
            assert engine.nesting.dims == (16, 32)
            found = engine.search(QUERIES[:4], 5, where={"n": {"$lt": 30}})
            np.testing.assert_array_equal(found.ids, index.search(QUERIES[:4], 5, where={"n": {"$lt": 30}}).ids)
            engine.drop(table=True)


LOADING = """
import sys, numpy as np
from matryo import engines
def batches():
    rng = np.random.default_rng(5)
    for part in range(40):
        print(part, flush=True)
        yield rng.normal(size=(50, 16)).astype("f4"), list(range(50 * part, 50 * part + 50))
with engines.open(sys.argv[1], table="killed", metric="cosine") as engine:
    print("held", engine.count, flush=True)
    print("new", engine.load(batches(), progress=False), engine.count, flush=True)
    print("found", *engine.search(np.random.default_rng(5).normal(size=(9, 16)), 1).ids.ravel(), flush=True)
"""


@pytest.mark.parametrize("name", MOST, indirect=True, scope="module")
def test_a_load_that_is_killed_is_resumed(name):
    url = engine_urls.url(name)   # of its own, as another process opens it
    process = subprocess.Popen([sys.executable, "-c", LOADING, url], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line == "20\n":   # 20 batches are acknowledged
            process.kill()
            break
    process.wait()
    process.stdout.close()
    time.sleep(0.2)
    done = subprocess.run([sys.executable, "-c", LOADING, url], capture_output=True, text=True, check=True)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert 1000 <= int(said["held"]) < 2000
    assert said["new"] == f"{2000 - int(said['held'])} 2000"
    assert said["found"].split() == [str(row) for row in range(9)]


@pytest.mark.parametrize("name", MOST, indirect=True, scope="module")
def test_the_planner_keeps_its_promise_here(loaded):
    learn = (VECTORS[RNG.integers(COUNT, size=80)] + RNG.normal(size=(80, DIM)) * 0.3).astype(np.float32)
    choice = loaded.plan(0.9, K, learn, progress=False)
    true = exact("cosine", QUERIES)[0]
    assert recall(loaded.search(QUERIES, K, choice.plan), true) >= 0.9
    assert "use" in loaded.advice(choice)
    assert choice.frontier[0].latency > 0
    assert loaded.explain(choice.plan)


def test_without_an_index_the_plan_is_exact_search(loaded):
    choice = loaded.plan(0.9, K, QUERIES, dims=[], progress=False, confidence=0.5)
    assert choice.plan == Plan.single(DIM, k=K)
    assert "exact search" in loaded.advice(choice)


def test_suggestions_come_from_a_pass_and_build_nothing(loaded):
    before = loaded.prepared()
    plans = loaded.suggest(0.95, K, QUERIES)
    assert plans and all(plan.dim == DIM for plan in plans)
    assert loaded.work(8).statements == ()   # it is there
    assert loaded.prepared() == before


def test_errors_say_what_to_do(loaded):
    with pytest.raises(MatryoError, match="dims of the"):
        loaded.search(QUERIES, K, Plan.adaptive(7, DIM, keep=50))
    with pytest.raises(InputError, match="full precision"):
        loaded.search(QUERIES, K, Plan.adaptive(8, DIM, keep=50, probe=0.1))
    with pytest.raises(InputError, match="columns"):
        loaded.search(QUERIES[:, :5], K)
    with pytest.raises(InputError, match="all zeros"):
        loaded.search(np.zeros((1, DIM)), K)
    with pytest.raises(InputError, match="operator"):
        loaded.search(QUERIES, K, where={"n": {"$like": 1}})


def test_only_what_matryo_made_is_dropped(url):
    with engines.open(url, table="dropped", metric="cosine", dims=[8, 32]) as engine:
        engine.load(VECTORS[:100])
        engine.prepare(8)
        dropped = engine.drop()
        assert engine.count == 100
        assert not any(index.ours for index in engine.prepared())
        assert len(dropped) == 1
        engine.drop(table=True)


@pytest.mark.parametrize("name", MOST, indirect=True, scope="module")
def test_the_command_line(url, tmp_path, capsys):
    np.save(tmp_path / "rows.npy", VECTORS)
    np.save(tmp_path / "queries.npy", QUERIES)
    place = f"{url}{'&' if '?' in url else '?'}table=typed&metric=cosine"
    assert main(["engines", "load", place, str(tmp_path / "rows.npy"), "--quiet"]) == 0
    assert "loaded 1,500 rows" in capsys.readouterr().out
    assert main(["search", place, str(tmp_path / "queries.npy"), "-k", "3", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [hit["id"] for hit in lines[4]["hits"]] == exact("cosine", QUERIES[4:5])[0][0, :3].tolist()
    learn = (VECTORS[:60] + RNG.normal(size=(60, DIM)) * 0.3).astype(np.float32)
    np.save(tmp_path / "learn.npy", learn)
    words = ["plan", place, "--recall", "0.9", "--queries", str(tmp_path / "learn.npy"), "--quiet"]
    assert main([*words, "--prepare", "16", "--out", str(tmp_path / "plan.json")]) == 0
    out = capsys.readouterr().out
    assert "recall@10 ≥ 90%" in out
    assert main(["engines", "explain", place, "--plan", str(tmp_path / "plan.json")]) == 0
    assert main(["engines", "list", place]) == 0
    assert "1,500 × 32" in capsys.readouterr().out
    assert main(["search", place, "--like", "3"]) == 1
    assert main(["engines", "drop", place, "--table"]) == 0
    assert main(["engines", "list"]) == 0
    with engines.open(place) as engine:
        assert engine.count == 0


def test_a_missing_driver_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MatryoError, match=r"pip install 'matryo\[postgres\]'"):
        engines.open("postgresql://nobody@localhost/nothing?table=t")


@pytest.mark.parametrize("bad", ["nothing://x", "docs", 3, "postgresql://host:port/x?table=t"])
def test_bad_urls(bad):
    with pytest.raises(InputError, match=": "):
        engines.open(bad)


def test_credentials_never_leak(capsys):
    pytest.importorskip("psycopg")
    secret = "p%40ss-w0rd"
    place = f"postgresql://ann:{secret}@127.0.0.1:1/db?table=t&connect_timeout=1"
    with pytest.raises(EngineError) as caught:
        engines.open(place)
    shown = f"{caught.value!r} {caught.value} {caught.value.__cause__}"
    assert main(["plan", place]) == 1
    shown += capsys.readouterr().err
    for form in (secret, "p@ss-w0rd"):
        assert form not in shown
    assert "127.0.0.1:1/db" in shown
