"""Open connections to a server that no honest client opens."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from attacks.outcome import Outcome
from attacks.served import VECTOR, Server, make_index, post, require

__all__ = ["require"]

PROMISE = "Slow, broken, huge and forged connections are refused, and others are served meanwhile."
BOUNDED, SOAK = 40, 2000
_SEARCH = "/v1/indexes/idx/search"
_OPEN = 24   # hostile connections that are held open at a time
_GROWTH = 64 << 20   # bytes that the server may grow by


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make ``count`` attempts; after each, a search must be answered, and in the end the memory must be as before."""
    chance, outcome = random.Random(seed), Outcome(0)
    server = Server("--index", make_index(folder), "--writable", "--idle", "2", "--connections", "64")
    open_: list[socket.socket] = []
    try:
        honest = server.connect()
        post(honest, _SEARCH, {"vector": VECTOR})
        before = server.memory()
        for attempt in range(count):
            kind = chance.choice(ATTEMPTS)
            failure = ""
            try:
                held, answer = kind(server.port, chance)
                if answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 500")):
                    failure = f"was answered {answer[:60]!r}"
                open_.append(held)
                while len(open_) > _OPEN:
                    open_.pop(0).close()
                if (status := post(honest, _SEARCH, {"vector": VECTOR})[0]) != 200:
                    failure = f"then a search got {status}"
            except OSError as error:
                failure = f"then {error!r}"
                honest = server.connect()
            if server.process.poll() is not None:
                outcome.failures.append(f"attempt {attempt}, seed {seed}, {kind.__name__}: the server ended")
                return outcome
            outcome.attempts += 1
            if failure:
                outcome.failures.append(f"attempt {attempt}, seed {seed}, {kind.__name__}: {failure}")
        if server.memory() > before + _GROWTH:
            outcome.failures.append(f"the server grew from {before:,} to {server.memory():,} bytes")
    finally:
        for one in open_:
            one.close()
        server.kill()
    return outcome


def slow_head(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A head that never ends."""
    return exchange(port, b"GET /v1/indexes HTTP/1.1\r\nx: " + b"y" * chance.randint(0, 200), wait=0.01)


def long_head(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A head of hundreds of kilobytes."""
    return exchange(port, b"GET /v1/indexes HTTP/1.1\r\n" + b"x: y\r\n" * chance.randint(20_000, 60_000))


def slow_body(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A body that stops, with the connection open."""
    return exchange(port, head(_SEARCH, chance.randint(50, 10_000)) + b'{"vec', wait=0.01)


def half_closed(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A body that stops, with the sending side closed."""
    return exchange(port, head(_SEARCH, chance.randint(50, 10_000)) + b'{"vec', wait=0.05, close=True)


def huge(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A body of a gigabyte or more, stated or in chunks."""
    if chance.random() < 0.7:
        return exchange(port, head(_SEARCH, chance.choice([10**9, 2**31, 2**63, 10**30])) + b"0" * 1000)
    part = b"%x\r\n" % (4 << 20) + b"0" * (4 << 20) + b"\r\n"
    return exchange(port, head(_SEARCH, None) + part * 10)


def forged_length(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """Two lengths, or one that is no number."""
    length = chance.choice(["-1", "1e3", "0x10", "12, 13", " ", "9" * 400])
    more = chance.choice(["", "content-length: 3\r\n", "transfer-encoding: chunked\r\n"])
    content = f"POST {_SEARCH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}content-length: {length}"
    return exchange(port, content.encode() + b"\r\n\r\n{}", wait=0.05, close=True)


def not_text(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A body that is not UTF-8."""
    return whole(port, _SEARCH, b'{"vector": "' + os.urandom(chance.randint(1, 400)).replace(b'"', b"\xff") + b'\xff"}')


def deep(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """JSON within JSON, up to a million levels."""
    opening = chance.choice([b"[", b'{"a":', b'{"where":{"$not":'])
    return whole(port, _SEARCH, opening * chance.choice([2000, 100_000, 1_000_000]))


def deep_filter(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A filter that is valid JSON, with hundreds of levels."""
    levels = chance.randint(200, 1000)
    where = '{"$not":' * levels + '{"n":1}' + "}" * levels
    return whole(port, _SEARCH, f'{{"vector": {json.dumps(VECTOR)}, "where": {where}}}'.encode())


def path_trick(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A name of an index that is a path."""
    name = chance.choice(["..", "../..", "..%2f..%2fetc", "%2e%2e", "idx%00", "idx/../idx", "/etc/passwd", "idx%2f..",
                          "\\..\\", "%c0%ae%c0%ae", "idx;", "~root", "." * 3000])  # fmt: skip
    return whole(port, f"/v1/indexes/{name}/search", json.dumps({"vector": VECTOR}).encode())


def noise(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """Bytes that are not HTTP."""
    first = chance.choice([b"\x16\x03\x01", b"", b"PRI * HTTP/2.0\r\n\r\n"])
    return exchange(port, first + os.urandom(300) + b"\r\n\r\n", wait=0.05, close=True)


def gone(port: int, chance: random.Random) -> tuple[socket.socket, bytes]:
    """A client that leaves in the middle of many requests without reading an answer."""
    body = json.dumps({"vector": VECTOR}).encode()
    held, _ = exchange(port, (head(_SEARCH, len(body)) + body) * chance.randint(1, 50), wait=0)
    held.close()
    return held, b""


ATTEMPTS: list[Callable[[int, random.Random], tuple[socket.socket, bytes]]] = [
    slow_head, long_head, slow_body, half_closed, huge, forged_length, not_text, deep, deep_filter, path_trick, noise,
    gone,
]  # fmt: skip


def head(path: str, length: int | None) -> bytes:
    """The head of a request with a body of this length, or in chunks."""
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{size}\r\n\r\n".encode()


def whole(port: int, path: str, body: bytes) -> tuple[socket.socket, bytes]:
    """A whole request."""
    return exchange(port, head(path, len(body)) + body)


def exchange(port: int, data: bytes, *, wait: float = 5, close: bool = False) -> tuple[socket.socket, bytes]:
    """Send bytes, and read the beginning of an answer for at most ``wait`` seconds."""
    held, answer = socket.create_connection(("127.0.0.1", port), timeout=10), b""
    with suppress(OSError):
        held.sendall(data)
        if close:
            held.shutdown(socket.SHUT_WR)
    with suppress(OSError):
        held.settimeout(wait or 0.001)
        answer = held.recv(200)
    return held, answer
