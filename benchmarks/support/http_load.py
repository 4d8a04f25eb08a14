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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

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
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {len(content)}"
    )
    return head.encode() + b"\r\n\r\n" + content


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> tuple[int, bytes]:
    """Send a request and read its answer: the status and the body."""
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(found[1])) if found else b""
    return int(head[9:12]), body


async def _client(port: int, make: Callable[[], bytes], end: float, outcome: Outcome) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (start := time.perf_counter()) < end:
        status, body = await exchange(reader, writer, make())
        outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
        if status == 200:
            outcome.latencies.append(time.perf_counter() - start)
            outcome.body = body
    writer.close()


def closed_loop(port: int, make: Callable[[], bytes], clients: int, seconds: float) -> Outcome:
    """``clients`` that each send the next request when the answer is there."""

    async def run() -> Outcome:
        outcome, start = Outcome(), time.perf_counter()
        await asyncio.gather(*(_client(port, make, start + seconds, outcome) for _ in range(clients)))
        outcome.seconds = time.perf_counter() - start
        return outcome

    return asyncio.run(run())


def open_loop(port: int, make: Callable[[], bytes], rate: float, seconds: float, seed: int = 0) -> Outcome:
    """Requests at random times, ``rate`` per second on average, however long the answers take."""

    async def run() -> Outcome:
        outcome, free, tasks = Outcome(), list[tuple[Any, Any]](), set[asyncio.Task[None]]()
        draw, start = random.Random(seed), time.perf_counter()

        async def one(due: float) -> None:
            reader, writer = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
            try:
                status, body = await exchange(reader, writer, make())
            except (OSError, EOFError):
                outcome.statuses[0] = outcome.statuses.get(0, 0) + 1
                return
            outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
            if status == 200:
                outcome.latencies.append(time.perf_counter() - due)
                outcome.body = body
            free.append((reader, writer))

        due = start
        while (due := due + draw.expovariate(rate)) < start + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.ensure_future(one(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        outcome.seconds = time.perf_counter() - start
        return outcome

    return asyncio.run(run())


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
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
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
