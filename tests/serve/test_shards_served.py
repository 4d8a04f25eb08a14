"""Shards behind a router, in real processes: equal to one index, failover, hedging, partial answers and changes."""

import base64
import os
import signal
import time

import numpy as np
import pytest

from conftest import call
from matryo import Index, Plan
from matryo.compiled import NUMPY, isa
from matryo.errors import InputError
from matryo.retrieve.shards import ShardedIndex
from matryo.serve import Limits, Routing, app
from matryo.serve.http.metrics import Metrics
from matryo.serve.shards import RoutedIndex
from matryo.serve.shards.client import Server
from matryo.serve.shards.replicas import Replicas

PATH = "/v1/indexes/docs/search"


@pytest.fixture
def folders(tmp_path):
    """One index and a sharded one with the same rows; small integers, so that many scores tie."""
    rows = np.random.default_rng(0).integers(1, 4, (300, 8)).astype(np.float32)
    ids, payload = [f"r{n}" for n in range(300)], [{"n": n} for n in range(300)]
    create = ShardedIndex.create
    with Index.create(tmp_path / "one", [4, 8]) as one, create(tmp_path / "many", [4, 8], shards=3) as many:
        for start in range(0, 300, 50):
            part = slice(start, start + 50)
            one.add(rows[part], ids[part], payload[part])
            many.add(rows[part], ids[part], payload[part])
    return tmp_path / "one", [tmp_path / "many" / f"shard-{n:04d}" for n in range(3)]


def route(serve, shards, *words):
    urls = ["|".join(server.url for server in replicas) for replicas in shards]
    return serve("--shards", f"docs={urls[0]}", *urls[1:], "--quiet", *words)


def test_a_router_answers_as_one_index_and_survives_a_killed_shard(serve, folders):
    one, shards = folders
    first, second, twin, third = (serve("--index", shards[n], "--quiet") for n in (0, 1, 1, 2))
    router = route(serve, [[first], [second, twin], [third]], "--shard-timeout", "2")
    queries = np.random.default_rng(1).integers(1, 4, (5, 8)).astype(np.float32)
    encoded = base64.b64encode(queries.tobytes()).decode()
    with Index.open(one) as index:
        for more in ({}, {"where": {"n": {"$lt": 40}}}, {"plan": {"stages": [{"dim": 4, "keep": 300},
                                                                             {"dim": 8, "keep": 7}]}}):   # fmt: skip
            answer = router.ask("POST", PATH, {"vector": encoded, "k": 7, "payload": True, **more})
            assert answer.status == 200, answer.body
            wanted = index.search(queries, 7, where=more.get("where"), payload=True).to_dicts()
            assert answer.json["results"] == wanted and "partial" not in answer.json
        rows = router.ask("POST", "/v1/indexes/docs/get", {"ids": ["r7", "r250"]}).json["rows"]
        assert [row["vector"] for row in rows] == index.get(["r7", "r250"])[0].tolist()
    assert router.ask("GET", "/v1/indexes/docs").json["count"] == 300
    assert router.ask("POST", PATH, {"vector": encoded, "where": {"n": {"$near": 1}}}).status == 400
    assert router.ask("POST", "/v1/indexes/docs/upsert", {"ids": ["x"], "vectors": [[1] * 8]}).status == 403

    os.kill(second.process.pid, signal.SIGSTOP)   # it hangs: its replica answers
    slowest = 0.0
    for _ in range(6):
        begin = time.monotonic()
        answer = router.ask("POST", PATH, {"vector": encoded, "k": 7})
        slowest = max(slowest, time.monotonic() - begin)
        assert answer.status == 200 and "partial" not in answer.json, answer.body
    assert slowest < 1.9
    second.process.kill()
    assert all(router.ask("POST", PATH, {"vector": encoded}).status == 200 for _ in range(4))
    assert router.ask("GET", "/health/ready").status == 200

    twin.process.kill()
    refused = router.ask("POST", PATH, {"vector": encoded, "k": 7})
    assert (refused.status, refused.json["error"]["code"]) == (503, "shard_unavailable")
    assert "shard 1 of 3" in refused.json["error"]["message"]
    part = router.ask("POST", PATH, {"vector": encoded, "k": 300, "partial": True})
    assert part.status == 200 and part.json["partial"] == {"missing_shards": [1]}
    with Index.open(shards[1]) as lost:
        found = {hit["id"] for hit in part.json["results"][0]}
        assert found == {f"r{n}" for n in range(300)} - set(lost.ids)
    assert router.ask("GET", "/health/ready").status == 503
    metrics = router.ask("GET", "/metrics").body.decode()
    assert 'refused_total{index="docs"}' in metrics and "shard_failures_total" in metrics


def test_changes_through_a_router_keep_the_order_of_one_index(serve, folders):
    one, shards = folders
    servers = [[serve("--index", folder, "--writable", "--quiet")] for folder in shards]
    router = route(serve, servers, "--writable")
    new = np.random.default_rng(2).integers(1, 4, (40, 8)).astype(np.float32)
    ids = [f"r{n}" for n in range(280, 320)]   # half of them replace rows
    body = {"ids": ids, "vectors": new.tolist(), "payload": [{"n": -n} for n in range(40)]}
    answer = router.ask("POST", "/v1/indexes/docs/upsert", body)
    assert answer.status == 200 and answer.json["count"] == 320, answer.body
    assert router.ask("POST", "/v1/indexes/docs/delete", {"ids": ["r3", "r4"]}).json["count"] == 318
    missing = router.ask("POST", "/v1/indexes/docs/delete", {"ids": ["r5", "none"]})
    assert missing.status == 404 and "none" in missing.json["error"]["message"]
    with Index.open(one, writable=True) as index:
        index.upsert(new, ids, body["payload"])
        index.delete(["r3", "r4"])
        wanted = index.search(new[:6], 20, payload=True).to_dicts()
        answer = router.ask("POST", PATH, {"vector": new[:6].tolist(), "k": 20, "payload": True})
        assert answer.json["results"] == wanted
    if isa() != NUMPY:   # numpy takes longer to plan than a client waits
        planned = router.ask("POST", "/v1/indexes/docs/plan", {"recall": 0.8, "queries": new.repeat(4, 0).tolist()})
        assert planned.status == 200 and planned.json["plan"], planned.body
    stale = servers[0][0].ask("POST", "/v1/indexes/shard-0000/put",
                              {"ids": ["z"], "vectors": [[1] * 8], "numbers": [2]})   # fmt: skip
    assert stale.status == 400 and "numbers must increase" in stale.json["error"]["message"]
    with pytest.raises(InputError, match="in the order of their numbers"):
        RoutedIndex("docs", [servers[n][0].url for n in (1, 0, 2)], Limits(), Metrics())


def test_a_folder_of_shards_is_served_like_an_index(folders):
    one, shards = folders
    service = app(index={"docs": shards[0].parent}, writable=True)
    try:
        query = np.arange(8.0).tolist()
        with Index.open(one) as index:
            for more in ({}, {"where": {"n": {"$gt": 200}}, "payload": True}, {"dim": 4}):
                answer = call(service, "POST", PATH, {"vector": query, "k": 4, **more})
                plan = Plan.single(4) if "dim" in more else None
                wanted = index.search(query, 4, plan, where=more.get("where"), payload="payload" in more)
                assert answer.json["results"] == wanted.to_dicts(), answer.body
        upserted = call(service, "POST", "/v1/indexes/docs/upsert", {"ids": ["new"], "vectors": [query]})
        assert upserted.json["count"] == 301
        assert call(service, "POST", PATH, {"vector": query, "k": 1}).json["results"][0][0]["id"] == "new"
        assert call(service, "GET", "/v1/indexes/docs").json["shards"] == 3
        refused = call(service, "POST", "/v1/indexes/docs/nearest", {"vector": query, "k": 1})
        assert refused.status == 400 and refused.json["error"]["code"] == "not_a_shard"
    finally:
        service.close()


def test_urls_and_times_are_checked():
    for url in ("localhost:8080", "ftp://host", "http://", "http://user@host", "http://host:port"):
        with pytest.raises(InputError, match="must be the URL"):
            Server(url)
    with pytest.raises(InputError, match="timeout"):
        Routing(timeout=0)
    assert Replicas([Server("https://host/prefix/v1/indexes/mine")]).servers[0].port == 443
