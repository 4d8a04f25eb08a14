"""Requests that are answered without a call of the app get the app's answers, on connections of every kind."""

import asyncio
import base64
import json
import socket
import time

import numpy as np
import pytest

from conftest import acall
from matryo import Index, Plan
from matryo.serve import Limits, app
from matryo.serve.batching import Batcher
from matryo.serve.direct import Direct
from matryo.serve.http.errors import ApiError

PATH = "/v1/indexes/idx/search"
LIST = [0.5] * 16
TEXT = base64.b64encode(np.float32(LIST).tobytes()).decode()
SEVERAL = base64.b64encode(np.eye(3, 16, dtype="<f4").tobytes()).decode()
PLAN = Plan.adaptive(4, 16, keep=40, k=10).to_dict()
ANSWERED = [
    {"vector": TEXT},
    {"vector": LIST},
    {"vector": [LIST, LIST]},
    {"vector": SEVERAL, "k": 3},
    {"vector": SEVERAL, "k": 500},   # more than there are rows
    {"vector": TEXT, "dim": 8},
    {"vector": TEXT, "dim": None, "k": None},
    {"vector": TEXT, "plan": PLAN},
    {"vector": TEXT, "recall": 0.9},
    {"vector": TEXT, "payload": True},
    {"vector": TEXT, "where": {"n": {"$lt": 50}}, "payload": True},
    {"vector": TEXT, "text": None},
    {"vector": base64.b64encode(np.full(16, 1e18, "<f4").tobytes()).decode()},
]
LEFT = [
    {},
    [],
    {"vector": None},
    {"vector": TEXT, "k": 0},
    {"vector": TEXT, "k": 10_000},
    {"vector": TEXT, "text": "a"},
    {"vector": LIST, "text": "a"},
    {"vector": TEXT, "model": "a"},
    {"vector": TEXT, "unknown": 1},
    {"vector": TEXT, "dim": 3},
    {"vector": TEXT, "dim": 8, "recall": 0.5},
    {"vector": TEXT[:-8]},
    {"vector": TEXT[:-1] + "é"},
    {"vector": "####"},
    {"vector": [1, 2]},
    {"vector": [True] * 16},
    {"vector": [[*LIST], [1]]},
    {"vector": base64.b64encode(np.full(16, np.nan, "<f4").tobytes()).decode()},
    {"vector": base64.b64encode(np.ones((60, 16), "<f4").tobytes()).decode()},
    {"vector": TEXT, "where": {"a": json.loads("[" * 300 + "]" * 300)}},
    {"text": "a cat"},
]


class Exchange:
    """What a connection gives to Direct, and what it gets."""

    def __init__(self, **fields):
        self.fields = {b"content-type": b"application/json"} | {k.encode(): v.encode() for k, v in fields.items()}
        self.start, self.begun, self.answer = time.perf_counter(), False, asyncio.get_running_loop().create_future()

    def begin(self):
        self.begun = True

    def reply(self, status, head, body):
        self.answer.set_result((status, head, json.loads(body)))


def answers(service, bodies, path=PATH, **fields):
    """For each body: whether it was taken, the direct answer, and the app's answer."""

    async def ask():
        direct, found = Direct(service), []
        for body in bodies:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            exchange = Exchange(**fields)
            taken = direct.answer(exchange, path.encode(), raw)
            assert taken == exchange.begun
            own = await exchange.answer if taken else None
            by_app = await acall(service, "POST", path, raw=raw, headers=list(fields.items()))
            found.append((taken, own, (by_app.status, by_app.json)))
        return found

    return asyncio.run(ask())


@pytest.fixture
def served(index_folder):
    service = app(index=index_folder, limits=Limits(queries=50, hits=5000))
    yield service
    service.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_direct_answers_are_those_of_the_app(served, monkeypatch, at_once):
    monkeypatch.setattr("matryo.serve.indexes._AT_ONCE", 60.0 if at_once else 0.0)
    twice = ANSWERED * 2   # the second time, the options are known
    for body, (taken, own, by_app) in zip(twice, answers(served, twice), strict=True):
        assert taken, body
        assert (own[0], own[2]) == by_app and own[0] == 200, body


def test_the_app_says_what_is_wrong(served):
    twice = LEFT * 2
    for body, (taken, _, by_app) in zip(twice, answers(served, twice), strict=True):
        assert not taken and by_app[0] == 400, body
    for raw in (b" ", b"{", b"\xff\xfe", b"[" * 2000):
        ((taken, _, by_app),) = answers(served, [raw])
        assert not taken and by_app[0] == 400


def test_keys_hosts_and_origins_count_there_too(served, tmp_path, index_folder):
    (tmp_path / "keys").write_text("one aaaaaaaaaaaaaaaaaaaa rate=1\n")
    key = {"authorization": f"Bearer {'a' * 20}"}
    with_keys = app(index=index_folder, keys=tmp_path / "keys", origins=["https://here"])
    assert not answers(with_keys, [ANSWERED[0]])[0][0]
    assert not answers(with_keys, [ANSWERED[0]], **key, origin="https://here")[0][0]   # the app adds headers
    found = answers(with_keys, [ANSWERED[0]] * 3, **key)   # two requests at once, then one per second
    assert found[0][0] and [status for _, _, (status, _) in found][-1] == 429 and not found[-1][0]
    with_keys.close()
    served.hosts = frozenset({"name"})
    assert answers(served, [ANSWERED[0]] * 2, host="name:80")[1][0]
    assert not answers(served, [ANSWERED[0]], host="other")[0][0]
    assert not answers(served, [ANSWERED[0]], **{"content-type": "text/plain"})[0][0]


def test_a_busy_server_refuses_before_it_parses(served):
    index = served.indexes.find("idx")
    index.batcher.speed, index.batcher.waiting = 1.0, 100.0
    ((taken, own, by_app),) = answers(served, [b"no JSON"])
    assert taken and own[0] == by_app[0] == 429 and own[2] == by_app[1]
    assert b"retry-after: 99\r\n" in own[1]
    index.batcher.waiting = 0.0
    text = served.metrics.text()
    assert 'route="/v1/indexes/{name}/search",status="429"} 2' in text
    ((taken, _, by_app),) = answers(served, [b"{}"], path="/v1/embeddings")   # no model: the app says it
    assert not taken and by_app[0] == 400


def test_what_a_batch_has_done_is_not_waited_for():
    batcher = Batcher(lambda _, items: items, step=1.0, wait=0.6, least=1, most=4, seen=lambda *_: None)
    batcher.speed, batcher.waiting = 10.0, 10.0
    batcher._running[0] = time.perf_counter() - 0.5, 10.0   # half of the second that it should take is over
    batcher.admit()
    batcher._running[0] = time.perf_counter(), 10.0
    with pytest.raises(ApiError, match=r"would take 1\.0 seconds"):
        batcher.admit()
    batcher._running.clear()
    batcher.close()


def test_a_request_whose_turn_comes_too_late_is_refused():
    held = []

    def work(_, items):
        time.sleep(0.2)
        held.extend(items)
        return items

    batcher = Batcher(work, step=0.01, wait=0.05, least=1, most=4, seen=lambda *_: None)

    async def ask():
        first = asyncio.ensure_future(batcher.run([1], [1.0]))
        await asyncio.sleep(0.05)   # its speed is not known yet, so the next ones are admitted
        later = [asyncio.ensure_future(batcher.run([n], [1.0], kind=n)) for n in (2, 3)]
        return await asyncio.gather(first, *later, return_exceptions=True)

    first, *others = asyncio.run(ask())
    batcher.close()
    assert first == [1] and held == [1] and batcher.waiting == 0
    assert all(isinstance(error, ApiError) and error.status == 429 for error in others)


# ── a real server ─────────────────────────────────────────────────────────────────────────────────────────────────


def post(body, *lines, path=PATH):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *lines]
    return "\r\n".join([*head, f"content-length: {len(raw)}", "", ""]).encode() + raw


def read(connection, count):
    """The statuses and bodies of ``count`` answers."""
    stream, found = connection.makefile("rb"), []
    for _ in range(count):
        status = int(stream.readline().split()[1])
        headers = dict(line.lower().split(b": ", 1) for line in iter(lambda: stream.readline().strip(), b""))
        found.append((status, headers, stream.read(int(headers[b"content-length"]))))
    return found


def test_connections_of_every_kind(serve, index_folder, rows):
    server = serve("--index", index_folder, "--idle", "0.5")
    with Index.open(index_folder) as index:
        wanted = [index.search(row, k=3).to_dicts() for row in rows[:40]]
    asked = [{"vector": base64.b64encode(row.tobytes()).decode(), "k": 3} for row in rows[:40]]

    def connect():
        return socket.create_connection(("127.0.0.1", server.port), timeout=10)

    with connect() as line:   # all at once, with requests between them that only the app answers
        mixed = [post(body, *(["x-more: 1", "x-more: 2"] if n % 3 == 1 else [])) for n, body in enumerate(asked)]
        line.sendall(b"".join(mixed) + b"GET /v1/indexes HTTP/1.1\r\nhost: localhost\r\n\r\n" + post({"k": 1}))
        found = read(line, 42)
        assert [json.loads(body)["results"] for _, _, body in found[:40]] == wanted
        assert [status for status, _, _ in found[40:]] == [200, 400]
        assert len({headers[b"x-request-id"] for _, headers, _ in found}) == 42 and b"date" in found[0][1]
    with connect() as line:   # in pieces
        for data in (post(asked[0]), post(asked[1])):
            for at in range(0, len(data), 40):
                line.sendall(data[at : at + 40])
                time.sleep(0.002)
        assert [json.loads(body)["results"] for _, _, body in read(line, 2)] == wanted[:2]
        line.sendall(post(asked[2], "connection: close"))
        ((status, headers, _),) = read(line, 1)
        assert status == 200 and headers[b"connection"] == b"close" and line.recv(1) == b""
    with connect() as line:   # a body that stops
        line.sendall(post(asked[0])[:-20])
        ((status, headers, _),) = read(line, 1)
        assert status == 408 and line.recv(1) == b""
    with connect() as line:   # a client that leaves
        line.sendall(post(asked[0]) * 3)
    with connect() as line:   # a client that waits for 100 Continue
        line.sendall(post(asked[3], "expect: 100-continue"))
        stream = line.makefile("rb")
        assert stream.readline().split()[1] == b"100"
    assert server.ask("POST", PATH, asked[5]).json["results"] == wanted[5]
    log = [line for line in server.stop() if line["event"] == "request"]
    assert not any(line["status"] == 500 for line in log)
    assert sum(line.get("index") == "idx" and line["route"].endswith("/search") for line in log) >= 43
