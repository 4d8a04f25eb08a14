"""Keys, limits, batching, errors, metrics and the description of the API."""

import asyncio
import json
import random
import threading
import time

import pytest

from conftest import acall, call
from matryo.errors import InputError
from matryo.serve import Limits, app
from matryo.serve.batching import Batcher
from matryo.serve.http.errors import ApiError
from matryo.serve.http.keys import Keys
from matryo.serve.http.metrics import Metrics, merged
from matryo.serve.names import named

ONE = "/v1/indexes/idx"
V = [0.5] * 16


@pytest.fixture
def open_app(index_folder):
    opened = []

    def make(**options):
        opened.append(app(index=index_folder, **options))
        return opened[-1]

    yield make
    for service in opened:
        service.close()


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_keys_guard_everything_but_health_and_the_description(open_app, tmp_path):
    (tmp_path / "keys").write_text("# ours\nalice aaaaaaaaaaaaaaaaaaaa\nbob bbbbbbbbbbbbbbbbbbbb read-only\n")
    service = open_app(keys=tmp_path / "keys", writable=True)
    for path in ("/health/live", "/health/ready", "/openapi.json"):
        assert call(service, "GET", path).status == 200
    for headers in (
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", "Basic aaaaaaaaaaaaaaaaaaaa")],
        [("authorization", "Bearer aaaaaaaaaaaaaaaaaaa")],
        [("authorization", "Bearer é")],
    ):
        for path in ("/v1/indexes", "/metrics", "/v1/models"):
            answer = call(service, "GET", path, headers=headers)
            assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
    alice, bob = ([("authorization", f"Bearer {letter * 20}")] for letter in "ab")
    assert call(service, "GET", "/v1/indexes", headers=bob).status == 200
    delete = {"ids": ["r0"]}
    assert call(service, "POST", f"{ONE}/delete", delete, headers=bob).json["error"]["code"] == "read_only_key"
    assert call(service, "POST", f"{ONE}/delete", delete, headers=alice).status == 200


def test_a_key_has_a_rate(open_app, tmp_path):
    (tmp_path / "keys").write_text("slow ssssssssssssssssssss rate=2\nfast ffffffffffffffffffff\n")
    service = open_app(keys=tmp_path / "keys")
    slow, fast = ([("authorization", f"Bearer {letter * 20}")] for letter in "sf")
    statuses = [call(service, "GET", "/v1/indexes", headers=slow).status for _ in range(8)]
    assert statuses[:4] == [200] * 4 and 429 in statuses[4:]
    refused = call(service, "GET", "/v1/indexes", headers=slow)
    assert refused.json["error"]["type"] == "rate_limit_error" and int(refused.headers["retry-after"]) >= 1
    assert {call(service, "GET", "/v1/indexes", headers=fast).status for _ in range(20)} == {200}


@pytest.mark.parametrize("line", ["alone", "name short", f"name {'k' * 20} rate=0", f"name {'k' * 20} admin"])
def test_wrong_lines_of_keys_are_refused(line):
    with pytest.raises(InputError):
        Keys.parse([line])


def test_keys_come_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("MATRYO_API_KEYS", f"{'x' * 20}, {'y' * 20}")
    keys = Keys.read(None)
    assert [keys.find(b"Bearer " + letter * 20).name for letter in (b"x", b"y")] == ["env-1", "env-2"]


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_body_is_refused_before_it_is_read(open_app):
    service, reads = open_app(limits=Limits(bytes=1000)), []

    async def ask(length, chunked):
        async def receive():
            reads.append(1)
            return {"type": "http.request", "body": b"x" * 600, "more_body": True}

        sent = []

        async def send(message):
            sent.append(message)

        kind = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", length)
        scope = {
            "type": "http",
            "method": "POST",
            "path": f"{ONE}/search",
            "headers": [(b"content-type", b"application/json"), kind],
        }
        await service(scope, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"])

    status, headers = asyncio.run(ask(b"1000000000", False))
    assert status == 413 and not reads and headers[b"connection"] == b"close"
    status, _ = asyncio.run(ask(b"", True))
    assert status == 413 and len(reads) == 2


def test_bodies_together_are_limited(open_app):
    service = open_app(limits=Limits(memory=1000))

    async def two():
        begun, go = asyncio.Event(), asyncio.Event()

        async def receive():
            begun.set()
            await go.wait()
            return {"type": "http.request", "body": b" " * 700, "more_body": False}

        async def send(message):
            pass

        headers = [(b"content-type", b"application/json"), (b"content-length", b"700")]
        scope = {"type": "http", "method": "POST", "path": f"{ONE}/search", "headers": headers}
        first = asyncio.ensure_future(service(scope, receive, send))
        await begun.wait()
        second = await acall(service, "POST", f"{ONE}/search", raw=b" " * 700)
        go.set()
        await first
        return second, await acall(service, "POST", f"{ONE}/search", {"vector": V})

    second, third = asyncio.run(two())
    assert second.status == 503 and second.headers["retry-after"] == "1"
    assert third.status == 200  # the first one was released


def test_a_body_that_does_not_arrive_is_given_up(open_app):
    service = open_app(limits=Limits(idle=0.05))

    async def ask():
        sent = []

        async def send(message):
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (b"content-length", b"700")]
        scope = {"type": "http", "method": "POST", "path": f"{ONE}/search", "headers": headers}
        await service(scope, asyncio.Event().wait, send)
        return sent[0]["status"]

    assert asyncio.run(ask()) == 408


@pytest.mark.parametrize(
    ("raw", "kind", "status"),
    [
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"", "application/json", 400),
        (b'{"vector": [NaN]}', "application/json", 400),
        (b'{"text": "\\ud800"}', "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"k": 1e400}', "application/json", 400),
        (b"{}", "text/plain", 415),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "application/json; charset=utf-8", 400),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_not_json_is_refused(open_app, raw, kind, status):
    answer = call(open_app(), "POST", f"{ONE}/search", raw=raw, headers=[("content-type", kind)])
    assert answer.status == status and answer.json["error"]["message"]


# ── batching ──────────────────────────────────────────────────────────────────────────────────────────────────────


def batcher(work, **options):
    return Batcher(work, **{"step": 0.05, "wait": 5.0, "least": 1, "most": 64, "seen": lambda *_: None, **options})


def test_requests_share_batches_and_get_their_own_results_in_order():
    sizes = []

    def work(kind, items):
        sizes.append(len(items))
        time.sleep(0.005)
        return [(kind, item) for item in items]

    batches = batcher(work)

    async def run():
        jobs = [(list(range(100 * n, 100 * n + random.Random(n).randint(1, 30))), n % 2) for n in range(20)]
        results = await asyncio.gather(*(batches.run(items, [1] * len(items), kind) for items, kind in jobs))
        assert results == [[(kind, item) for item in items] for items, kind in jobs]

    asyncio.run(run())
    batches.close()
    assert batches.waiting == 0 and len(sizes) < 60


def test_two_lanes_work_side_by_side_and_keep_the_order_of_a_request():
    together = threading.Barrier(2)

    def work(_, items):
        if "first" not in seen:
            together.wait(5)   # breaks unless another lane is here at the same time
            seen.append("first")
        time.sleep(0.002 * random.random())
        return [2 * item for item in items]

    seen, batches = [], batcher(work, lanes=2, step=0.002)

    async def run():
        jobs = [list(range(1000 * n, 1000 * n + 90)) for n in range(4)]   # each in many batches, of both lanes
        results = await asyncio.gather(*(batches.run(items, [1] * len(items)) for items in jobs))
        assert results == [[2 * item for item in items] for items in jobs]

    asyncio.run(run())
    assert batches.beside == 2 and batches.waiting == 0 and batches.alive
    batches.close()


def test_a_short_request_does_not_wait_for_the_whole_of_a_long_one():
    def work(_, items):
        time.sleep(0.002 * len(items))
        return items

    batches, ended = batcher(work, step=0.01), []

    async def run():
        async def one(name, count):
            await batches.run([0] * count, [1] * count)
            ended.append(name)

        long = asyncio.ensure_future(one("long", 200))
        await asyncio.sleep(0.05)
        await asyncio.gather(long, *(one(f"short {n}", 1) for n in range(3)))

    asyncio.run(run())
    batches.close()
    assert ended[-1] == "long"


def test_only_the_request_at_fault_fails():
    held = threading.Event()

    def work(_, items):
        held.wait(1)
        if "bad" in items:
            raise InputError("no bad items", got="bad", cure="send good ones")
        return items

    batches = batcher(work)

    async def run():
        tasks = [asyncio.ensure_future(batches.run([word], [1])) for word in ("a", "b", "bad", "c")]
        await asyncio.sleep(0.05)
        held.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    batches.close()
    assert [results[0], results[1], results[3]] == [["a"], ["b"], ["c"]] and isinstance(results[2], InputError)
    assert batches.waiting == 0


def test_a_queue_that_is_too_long_refuses_with_the_time_to_wait():
    def work(_, items):
        time.sleep(0.02 * len(items))
        return items

    batches = batcher(work, wait=0.1)

    async def run():
        await batches.run([0], [1])  # measures the speed
        return await asyncio.gather(*(batches.run([n], [1]) for n in range(50)), return_exceptions=True)

    results = asyncio.run(run())
    batches.close()
    refused = [error for error in results if isinstance(error, ApiError)]
    assert 3 <= 50 - len(refused) <= 12 and all(error.status == 429 and error.retry > 0 for error in refused)


def test_closing_finishes_what_was_accepted():
    def work(_, items):
        time.sleep(0.01)
        return items

    batches = batcher(work, most=1)

    async def run():
        tasks = [asyncio.ensure_future(batches.run([n], [1])) for n in range(5)]
        await asyncio.sleep(0)
        await asyncio.to_thread(batches.close)
        with pytest.raises(ApiError, match="shutting down"):
            await batches.run([9], [1])
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [[n] for n in range(5)]


# ── the rest ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slow_answer_is_given_up(open_app, monkeypatch):
    service = open_app(limits=Limits(timeout=0.05))
    monkeypatch.setattr(service.indexes.find("idx"), "search", lambda *_: asyncio.sleep(5))
    answer = call(service, "POST", f"{ONE}/search", {"vector": V})
    assert (answer.status, answer.json["error"]["code"]) == (504, "timeout")


def test_a_failure_is_a_500_that_says_nothing_and_a_log_line_without_the_input(open_app, monkeypatch, capsys):
    service = open_app(quiet=False)

    async def fail(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(service.indexes.find("idx"), "search", fail)
    answer = call(service, "POST", f"{ONE}/search", {"vector": V})
    assert answer.status == 500 and b"secret" not in answer.body
    error, request = map(json.loads, capsys.readouterr().err.splitlines())
    assert error["event"] == "error" and error["type"] == "RuntimeError" and "secret" not in json.dumps(error)
    assert request["status"] == 500 and request["id"] == error["id"] == answer.headers["x-request-id"]


def test_readiness_ends_before_the_server_does(open_app):
    service = open_app()
    assert call(service, "GET", "/health/ready").json == {"status": "ready"}
    service.draining = True
    assert call(service, "GET", "/health/ready").status == 503
    assert call(service, "GET", "/health/live").status == 200


def test_cors_is_off_unless_an_origin_is_named(open_app):
    ours, theirs = [("origin", "https://ours.example")], [("origin", "https://theirs.example")]
    assert "access-control-allow-origin" not in call(open_app(), "GET", "/v1/indexes", headers=ours).headers
    service = open_app(origins=["https://ours.example"])
    assert call(service, "GET", "/v1/indexes", headers=ours).headers["access-control-allow-origin"] == ours[0][1]
    assert "access-control-allow-origin" not in call(service, "GET", "/v1/indexes", headers=theirs).headers
    assert call(service, "OPTIONS", f"{ONE}/search", headers=ours).status == 204


def test_it_can_be_mounted_below_a_path(open_app):
    service = open_app()

    async def ask(path):
        return await acall(service, "GET", path, extra={"root_path": "/search"})

    assert asyncio.run(ask("/search/v1/indexes")).json["indexes"][0]["name"] == "idx"
    assert b'src="explorer/files/app.js"' in asyncio.run(ask("/search/")).body   # relative
    assert asyncio.run(ask("/search/explorer/files/app.js")).status == 200


def test_metrics_count_and_merge(open_app):
    service = open_app()
    for _ in range(3):
        call(service, "POST", f"{ONE}/search", {"vector": V})
    text = call(service, "GET", "/metrics").body.decode()
    assert 'matryo_requests_total{route="/v1/indexes/{name}/search",status="200"} 3' in text
    assert 'matryo_request_seconds_bucket{route="/v1/indexes/{name}/search",le="+Inf"} 3' in text
    other = Metrics()
    other.count("requests_total", 4, route="/v1/indexes/{name}/search", status=200)
    other.count("errors_total")
    both = merged([text, other.text()])
    assert 'matryo_requests_total{route="/v1/indexes/{name}/search",status="200"} 7' in both
    for family in {line.split()[2] for line in both.splitlines() if line.startswith("#")}:
        lines = [line for line in both.splitlines() if line.partition("{")[0].split()[-1:] or line.startswith("#")]
        assert sum(line.startswith(f"# TYPE {family} ") for line in lines) == 1


def test_the_description_names_every_route_and_every_status(open_app):
    service = open_app()
    described = call(service, "GET", "/openapi.json").json
    assert {(route.path, route.method.lower()) for route in service._routes} == {
        (path, method) for path, methods in described["paths"].items() for method in methods
    }
    names = set(described["components"]["schemas"])
    used = set(json.dumps(described).replace('"', " ").split())
    assert {f"#/components/schemas/{name}" for name in names - {"Row"}} <= used
    operations = [one["operationId"] for methods in described["paths"].values() for one in methods.values()]
    assert len(operations) == len(set(operations))


def test_names():
    assert named(["a/b", "x=c/d"], "model").keys() == {"b", "x"}
    for wrong in (["a/b", "c/b"], ["../.."], {"a b": "c"}, ["=x"], 7):
        with pytest.raises(InputError):
            named(wrong, "model")


def test_nothing_to_serve_is_an_error():
    with pytest.raises(InputError, match="nothing to serve"):
        app()
