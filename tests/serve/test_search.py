"""Search and changes over HTTP give what Index gives; no torch is needed for an index alone."""

import asyncio
import base64
import json
import subprocess
import sys
from functools import reduce

import numpy as np
import pytest

from conftest import HAS_TORCH, acall, call
from matryo import Compression, Index, Plan
from matryo.serve import Limits, app

ONE = "/v1/indexes/idx"


@pytest.fixture
def served(index_folder):
    service = app(index=index_folder, writable=True, limits=Limits(queries=50, rows=100, hits=5000))
    yield service
    service.close()


def search(served, **fields):
    answer = call(served, "POST", f"{ONE}/search", fields)
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, {}),
        ({"k": 3}, {"k": 3}),
        ({"dim": 8}, {"plan": Plan.single(8)}),
        ({"plan": Plan.adaptive(4, 16, keep=40, k=10).to_dict()}, {"plan": Plan.adaptive(4, 16, keep=40)}),
        ({"where": {"n": {"$lt": 50}}, "payload": True}, {"where": {"n": {"$lt": 50}}, "payload": True}),
        ({"recall": 0.99}, {}),  # no plan was made, so the search is exact
    ],
    ids=str,
)
def test_the_hits_are_those_of_the_index(served, index_folder, rows, fields, how):
    with Index.open(index_folder) as index:
        wanted = index.search(rows[:5] + 0.1, **how).to_dicts()
    for query in ((rows[:5] + 0.1).tolist(), base64.b64encode((rows[:5] + np.float32(0.1)).tobytes()).decode()):
        assert search(served, vector=query, **fields)["results"] == wanted
    assert search(served, vector=(rows[0] + 0.1).tolist(), **fields)["results"] == wanted[:1]


def test_concurrent_searches_of_different_kinds_keep_apart(served, index_folder, rows):
    kinds = [{"k": 2}, {"dim": 4}, {"k": 5, "payload": True}, {}]

    async def all_at_once():
        bodies = [{"vector": rows[n].tolist(), **kinds[n % 4]} for n in range(40)]
        return await asyncio.gather(*(acall(served, "POST", f"{ONE}/search", body) for body in bodies))

    answers = asyncio.run(all_at_once())
    with Index.open(index_folder) as index:
        hows = [{"k": 2}, {"plan": Plan.single(4)}, {"k": 5, "payload": True}, {}]
        for n, answer in enumerate(answers):
            assert answer.json["results"] == index.search(rows[n], **hows[n % 4]).to_dicts()


@pytest.mark.parametrize("broken", [False, True])
def test_searches_that_arrive_together_are_found_in_one_call(served, index_folder, rows, monkeypatch, broken):
    index, calls = served.indexes.find("idx"), []
    real = index._search

    def counted(how, items):
        calls.append(len(items))
        if broken and len(calls) == 2:
            raise RuntimeError("then the batcher searches")
        return real(how, items)

    monkeypatch.setattr(index, "_search", counted)
    monkeypatch.setattr(index.batcher, "_work", counted)
    monkeypatch.setattr("matryo.serve.indexes._AT_ONCE", 60.0)   # seconds: however busy the machine is
    monkeypatch.setattr("matryo.serve.indexes._TOGETHER", 60.0)
    search(served, vector=rows[0].tolist())   # measures the time of a search, in the batcher

    async def all_at_once():
        bodies = [{"vector": rows[n : n + 1 + n % 3].tolist()} for n in range(12)]
        return await asyncio.gather(*(acall(served, "POST", f"{ONE}/search", body) for body in bodies))

    answers = asyncio.run(all_at_once())
    assert calls[:2] == [1, 24] and (broken or len(calls) == 2)
    with Index.open(index_folder) as alone:
        for n, answer in enumerate(answers):
            wanted = alone.search(rows[n : n + 1 + n % 3]).to_dicts()
            assert [[hit["id"] for hit in hits] for hits in answer.json["results"]] == [
                [hit["id"] for hit in hits] for hits in wanted
            ]


def test_a_plan_is_made_kept_and_used(served, rows):
    made = call(served, "POST", f"{ONE}/plan", {"recall": 0.8, "k": 5, "queries": (rows[:200] * 1.01).tolist()[:100]})
    assert made.status == 200 and made.json["plan"]["stages"] and made.json["frontier"]
    used = search(served, vector=rows[0].tolist(), recall=0.8, k=5)
    direct = search(served, vector=rows[0].tolist(), plan=made.json["plan"], k=5)
    assert used == direct
    assert search(served, vector=rows[0].tolist(), recall=0.9, k=5)["plan"] == "exact"


def test_changes_are_seen_by_the_next_search_and_by_other_processes(served, index_folder, rows):
    far = (100 * np.eye(16)[0]).tolist()
    answer = call(
        served, "POST", f"{ONE}/upsert", {"ids": ["new", "r0"], "vectors": [far, far], "payload": [{"n": -1}, None]}
    )
    assert answer.json == {"index": "idx", "upserted": 2, "count": 401}
    assert {hit["id"] for hit in search(served, vector=far, k=2)["results"][0]} == {"new", "r0"}
    assert search(served, vector=far, where={"n": -1}, k=1)["results"][0][0]["id"] == "new"
    got = call(served, "POST", f"{ONE}/get", {"ids": ["new", "r1"]}).json["rows"]
    assert got[0] == {"id": "new", "vector": far, "payload": {"n": -1}}
    np.testing.assert_array_equal(np.float32(got[1]["vector"]), rows[1])
    assert call(served, "POST", f"{ONE}/delete", {"ids": ["new"]}).json["count"] == 400
    assert call(served, "POST", f"{ONE}/get", {"ids": ["new"]}).status == 404
    assert call(served, "POST", f"{ONE}/compact").status == 202
    with Index.open(index_folder) as index:
        assert len(index) == 400 and index["r0"].vector.tolist() == far


def test_a_load_is_acknowledged_batch_by_batch_and_later_rows_win(served, rows):
    lines = [{"id": f"r{n % 1500}", "vector": rows[n % 400].tolist(), "payload": {"n": n}} for n in range(2500)]
    body = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    answer = call(served, "POST", f"{ONE}/load", raw=body.encode(), headers=[("content-type", "application/x-ndjson")])
    acknowledged = [json.loads(line) for line in answer.body.splitlines()]
    assert acknowledged[-1] == {"committed": 2500, "done": True} and len(acknowledged) > 2
    got = call(served, "POST", f"{ONE}/get", {"ids": ["r0", "r999", "r1499"], "vectors": False}).json["rows"]
    assert [row["payload"]["n"] for row in got] == [1500, 2499, 1499]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"id": 1, "vector": [1]}', 400, "16 dims"),
        (b'{"id": "a"}', 400, "16 dims"),
        (b"nonsense", 400, "line 1"),
        (b'{"id": "a", "vector": [], "colour": 1}', 400, "colour"),
        (b'{"vector": [1]}', 400, "id"),
        (b'{"id": "a", "text": "cat"}', 400, "model"),
        (b"\xff\xfe{}", 400, "JSON"),
    ],
    ids=str,
)
def test_a_wrong_line_is_named(served, body, status, says):
    answer = call(served, "POST", f"{ONE}/load", raw=body, headers=[("content-type", "application/x-ndjson")])
    assert answer.status == status and says in answer.json["error"]["message"]


def test_what_was_committed_before_a_wrong_line_stays(served, rows):
    good = b"".join(json.dumps({"id": f"x{n}", "vector": rows[0].tolist()}).encode() + b"\n" for n in range(1000))
    answer = call(served, "POST", f"{ONE}/load", raw=good + b"{broken\n")
    first, last = map(json.loads, answer.body.splitlines())
    assert first == {"committed": 1000}
    assert last["committed"] == 1000 and "line 1001" in last["error"]["message"]
    assert call(served, "GET", ONE).json["count"] == 1400


V = [0.5] * 16
DEEP = reduce(lambda inner, _: {"$not": inner}, range(400), {"n": 1})


@pytest.mark.parametrize(
    ("action", "body", "status", "param"),
    [
        ("search", {}, 400, "vector"),
        ("search", {"vector": V, "text": "a"}, 400, "text"),
        ("search", {"vector": V[:15]}, 400, "vector"),
        ("search", {"vector": []}, 400, "vector"),
        ("search", {"vector": [V] * 51}, 400, "vector"),
        ("search", {"vector": [V, V[:3]]}, 400, "vector"),
        ("search", {"vector": "AAAA"}, 400, "vector"),
        ("search", {"vector": "é"}, 400, "vector"),
        ("search", {"vector": [1e39, *V[1:]]}, 400, "vector"),
        ("search", {"vector": [True, *V[1:]]}, 400, "vector"),
        ("search", {"vector": V, "k": 0}, 400, "k"),
        ("search", {"vector": V, "k": 5001}, 400, "k"),
        ("search", {"vector": V, "dim": 5}, 400, "dim"),
        ("search", {"vector": V, "dim": 8, "recall": 0.9}, 400, "dim"),
        ("search", {"vector": V, "plan": {"stages": []}}, 400, "plan"),
        ("search", {"vector": V, "plan": "f"}, 400, "plan"),
        ("search", {"vector": V, "plan": {"stages": [{"dim": 4, "keep": 10, "x": 1}]}}, 400, "plan"),
        ("search", {"vector": V, "where": {"zzz": {"$lt": 1}}}, 400, None),
        ("search", {"vector": V, "where": DEEP}, 400, "where"),
        ("search", {"vector": V, "plan": DEEP}, 400, "plan"),
        ("search", {"vector": V, "fast": 1}, 400, "fast"),
        ("search", {"text": "a cat"}, 400, "model"),
        ("search", {"vector": V, "model": "m"}, 400, "model"),
        ("get", {"ids": ["zz"]}, 404, "ids"),
        ("get", {"ids": [1.5]}, 400, "ids"),
        ("get", {}, 400, "ids"),
        ("delete", {"ids": ["zz"]}, 404, "ids"),
        ("delete", {"ids": "r0"}, 400, "ids"),
        ("upsert", {"ids": ["a"], "vectors": [V, V]}, 400, "ids"),
        ("upsert", {"ids": ["a"]}, 400, "vectors"),
        ("upsert", {"ids": ["a", "a"], "vectors": [V, V]}, 400, None),
        ("upsert", {"ids": [1], "vectors": [V]}, 400, None),
        ("upsert", {"ids": ["a"], "vectors": [V], "payload": [7]}, 400, None),
        ("upsert", {"ids": ["a"], "vectors": [V], "payload": [DEEP]}, 400, "payload"),
        ("plan", {"recall": 2}, 400, "recall"),
        ("fly", {}, 404, None),
    ],
    ids=lambda value: str(value)[:80],
)
def test_wrong_requests_are_refused_and_change_nothing(served, action, body, status, param):
    answer = call(served, "POST", f"{ONE}/{action}", body)
    assert answer.status == status and answer.json["error"]["param"] == param, answer.body
    assert call(served, "GET", ONE).json["count"] == 400


def test_an_index_that_is_open_for_reading_takes_no_changes(index_folder):
    service = app(index={"mine": index_folder})
    try:
        for action, body in (("upsert", {"ids": ["a"], "vectors": [V]}), ("delete", {"ids": ["r0"]}), ("load", None)):
            answer = call(service, "POST", f"/v1/indexes/mine/{action}", body)
            assert (answer.status, answer.json["error"]["code"]) == (403, "read_only")
        assert call(service, "GET", "/v1/indexes").json["indexes"][0]["writable"] is False
    finally:
        service.close()


def test_paths_reach_only_the_names_that_are_served(served):
    for name in ("..", "../idx", "%2e%2e", "idx/..", "/etc", "idx\0", "idx%00", "", "IDX", "con", "." * 5000):
        for action in ("", "/search", "/upsert"):
            method = "POST" if action else "GET"
            answer = call(served, method, f"/v1/indexes/{name}{action}", {} if action else None)
            assert answer.status in (404, 405), (name, action, answer.status)


def test_an_index_of_codes_is_searched_by_its_codes(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    with Index.create(tmp_path / "idx", compression=Compression.fit(vectors, bits=4, progress=False)) as index:
        index.add(vectors)
        wanted = index.search(vectors[:2], 5)
    service = app(index=tmp_path / "idx")
    answer = search(service, vector=vectors[:2].tolist(), k=5)
    assert [[hit["id"] for hit in hits] for hits in answer["results"]] == wanted.ids.tolist()
    assert answer["plan"] == "codes" and answer["results"][0][0]["score"] == pytest.approx(wanted.scores[0, 0])
    refused = call(service, "POST", f"{ONE}/search", {"vector": vectors[0].tolist(), "dim": 16})
    assert refused.status == 400 and "a plan needs the full vectors" in refused.json["error"]["message"]
    service.close()


def test_an_index_alone_needs_no_torch(index_folder):
    code = (
        "import sys, asyncio; sys.path.insert(0, sys.argv[2])\n"
        "sys.modules['torch'] = None\n"
        "from conftest import call\nfrom matryo.serve import app\n"
        "service = app(index=sys.argv[1])\n"
        "print(call(service, 'POST', '/v1/indexes/idx/search', {'vector': [0.5] * 16}).status)\n"
        "service.close()"
    )
    here = __file__.rpartition("/")[0]
    printed = subprocess.run([sys.executable, "-c", code, str(index_folder), here], capture_output=True, text=True)
    assert printed.stdout.strip() == "200", printed.stderr


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_texts_are_encoded_by_the_model_of_the_index(request, tmp_path):
    from matryo.serve import app

    folder = request.getfixturevalue("model_folder")
    Index.create(tmp_path / "texts", nesting=[8, 32]).close()
    service = app(folder, tmp_path / "texts", writable=True)
    try:
        words = ["cat", "dog bark", "sun moon river"]
        body = {"ids": words, "text": words, "payload": [{"long": len(word)} for word in words]}
        assert call(service, "POST", "/v1/indexes/texts/upsert", body).json["count"] == 3
        lines = b'{"id": "tree", "text": "tree leaf"}\n{"id": "fish", "text": "fish swim"}'
        assert b'"done":true' in call(service, "POST", "/v1/indexes/texts/load", raw=lines).body
        for query in ("dog bark", "tree leaf"):
            hits = call(service, "POST", "/v1/indexes/texts/search", {"text": query, "k": 1}).json["results"][0]
            vector = call(
                service,
                "POST",
                "/v1/embeddings",
                {"model": "tiny", "input": query, "dimensions": 32, "input_type": "query"},
            ).json["data"][0]["embedding"]
            direct = call(service, "POST", "/v1/indexes/texts/search", {"vector": vector, "k": 1}).json["results"][0]
            assert hits[0]["id"] == direct[0]["id"] and abs(hits[0]["score"] - direct[0]["score"]) < 1e-5
    finally:
        service.close()
