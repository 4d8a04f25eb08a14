"""Clients for measuring HTTP servers: plain sockets, so that the clients take as little of the cores as possible."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

_TICK = 0.0005   # seconds: requests that are due within it are sent together
_PATIENCE = 30   # seconds for the last answers
Vectors = np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class Outcome:
    """The answers of one measurement."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    """Of answers with status 200, in seconds."""
    statuses: dict[int, int] = field(default_factory=dict)
    body: bytes = b""
    """The last body with status 200."""

    def figures(self, items: int = 1) -> dict[str, float]:
        """Items per second and quantiles of the latency in milliseconds; ``items`` per request."""
        if not self.latencies:
            return {"per_second": 0.0}
        quantiles = {f"p{part}": round(1000 * float(np.percentile(self.latencies, part)), 2) for part in (50, 99)}
        return {"per_second": round(items * len(self.latencies) / self.seconds, 1), **quantiles}


def request(path: str, body: Any, headers: str = "") -> bytes:
    """The bytes of a POST request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}"
    head += f"content-length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


class _Client(asyncio.Protocol):
    """A connection with one request at a time."""

    transport: asyncio.Transport

    def __init__(self, done: Callable[[_Client, int, bytes], None]) -> None:
        self.done, self.data, self.length, self.since = done, b"", 0, 0.0

    def send(self, message: bytes, since: float) -> None:
        """Send a request that was due at ``since``."""
        self.since = since
        self.transport.write(message)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data = self.data + data if self.data else data
        if not self.length:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return
            found = _LENGTH.search(self.data, 0, end + 2)
            self.length = end + 4 + (int(found[1]) if found else 0)
        if len(self.data) >= self.length:
            answer, self.data, self.length = self.data, b"", 0
            self.done(self, int(answer[9:12]), answer)

    def connection_lost(self, exc: Exception | None) -> None:   # noqa: ARG002
        self.done(self, 0, b"")


_LENGTH = re.compile(rb"content-length: *(\d+)\r\n", re.IGNORECASE)


def _count(outcome: Outcome, client: _Client, status: int, answer: bytes) -> None:
    outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
    if status == 200:
        outcome.latencies.append(time.perf_counter() - client.since)
        outcome.body = answer


def _run(work: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(work())
    outcome.body = outcome.body.partition(b"\r\n\r\n")[2]
    return outcome


def closed_loop(port: int, make: Callable[[], bytes], clients: int, seconds: float) -> Outcome:
    """``clients`` that each send the next request when the answer is there."""

    async def run() -> Outcome:
        outcome, loop, start = Outcome(), asyncio.get_running_loop(), time.perf_counter()
        ended, left = loop.create_future(), clients

        def done(client: _Client, status: int, answer: bytes) -> None:
            nonlocal left
            now = time.perf_counter()
            if status:
                _count(outcome, client, status, answer)
                if now < start + seconds:
                    client.send(make(), now)
                else:
                    client.transport.close()
                return
            left -= 1
            if not left:
                ended.set_result(None)

        for _ in range(clients):
            _, client = await loop.create_connection(lambda: _Client(done), "127.0.0.1", port)
            client.send(make(), time.perf_counter())
        await ended
        outcome.seconds = time.perf_counter() - start
        return outcome

    return _run(run)


def open_loop(port: int, make: Callable[[], bytes], rate: float, seconds: float, seed: int = 0) -> Outcome:
    """Requests at random times, ``rate`` per second on average, however long the answers take."""

    async def run() -> Outcome:
        outcome, free, tasks = Outcome(), list[_Client](), set[asyncio.Task[None]]()
        draw, loop, start, busy = random.Random(seed), asyncio.get_running_loop(), time.perf_counter(), set[_Client]()

        def done(client: _Client, status: int, answer: bytes) -> None:
            if client in busy:
                busy.discard(client)
                _count(outcome, client, status, answer)
            if status:
                free.append(client)
            elif client in free:
                free.remove(client)

        async def connect(since: float) -> None:
            try:
                _, client = await loop.create_connection(lambda: _Client(done), "127.0.0.1", port)
            except OSError:
                outcome.statuses[0] = outcome.statuses.get(0, 0) + 1
                return
            busy.add(client)
            client.send(make(), since)

        due = start + draw.expovariate(rate)
        while due < start + seconds:
            await asyncio.sleep(max(_TICK, due - time.perf_counter()))
            now = time.perf_counter()
            while due < min(now, start + seconds):
                if free:
                    client = free.pop()
                    busy.add(client)
                    client.send(make(), due)
                else:
                    task = asyncio.ensure_future(connect(due))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                due += draw.expovariate(rate)
        end = time.perf_counter() + _PATIENCE
        while (busy or tasks) and time.perf_counter() < end:
            await asyncio.sleep(0.01)
        outcome.seconds = time.perf_counter() - start
        return outcome

    return _run(run)


@contextmanager
def server(command: Sequence[str], port: int, ready: str, cores: set[int] | None = None) -> Iterator[int]:
    """A server process until the end of the block; yields its process id when ``ready`` answers."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    try:
        if cores is not None:
            os.sched_setaffinity(process.pid, cores)
        for _ in range(600):
            if process.poll() is not None:
                assert process.stderr is not None
                sys.exit(f"{command[0]} ended: {process.stderr.read().decode()[-2000:]}")
            if _answers(port, ready):
                break
            time.sleep(0.2)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


def free_port() -> int:
    """A port that nothing uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 4 to 64 consecutive words of the documentation."""
    words = re.findall(
        r"[A-Za-z]+", " ".join(path.read_text(encoding="utf-8") for path in sorted(Path("docs").glob("*.md")))
    )
    draw = random.Random(seed)
    starts = [draw.randrange(len(words) - 64) for _ in range(count)]
    return [" ".join(words[start : start + draw.randint(4, 64)]) for start in starts]


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def encoded(vectors: Vectors) -> str:
    """Vectors as base64 of little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(vectors, "<f4").tobytes()).decode()
