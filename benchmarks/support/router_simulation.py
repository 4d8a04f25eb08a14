"""A router of many shards, simulated in virtual time: the router's own code, with answers that take measured times.

Each replica does one request at a time. Requests arrive at random times, at a rate that keeps a replica busy for 30 %
of the time. The times of answers are drawn from those of a real shard over HTTP. The cases add disturbances, which are
assumptions: pauses of 50 ms that begin once in 5 seconds in each replica, or one replica that is 10 times slower.
"""

from __future__ import annotations

import asyncio
import base64
import json
import selectors
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from matryo.arrays import Doubles
from matryo.retrieve import Index
from matryo.serve.shards.client import Answer, Server
from matryo.serve.shards.replicas import Replicas, Routing
from support.http_load import free_port, server

_ROWS, _DIM, _ASKED = 100_000, 256, 2000
_BUSY, _REPLICAS = 0.3, 2
_PAUSE, _EVERY, _SLOW = 0.05, 5.0, 10.0
CASES = ("as measured", "with pauses", "one slow replica")


def measure(folder: Path, shards: int, requests: int, seed: int) -> dict[str, dict[str, Any]]:
    """The quantiles of a shard's answers, and those of a router with and without hedged requests."""
    seconds = _measured(folder, seed)
    shard = {f"p{q:g}, ms": round(1000 * float(np.percentile(seconds, q)), 3) for q in (50, 90, 99, 99.9)}
    found: dict[str, dict[str, Any]] = {f"a shard of {_ROWS:,} × {_DIM} over HTTP": {"requests": len(seconds), **shard}}
    for case in CASES:
        figures: dict[str, Any] = {}
        for name, hedge in (("without hedging", 0.0), ("with hedging", None)):
            total, extra = simulate(seconds, case, shards, requests, hedge, seed)
            figures |= {f"{name}, p{q:g}, ms": round(1000 * float(np.percentile(total, q)), 2) for q in (50, 90, 99)}
            figures[f"{name}, requests per shard and search"] = round(extra, 3)
        found[f"router, {shards} shards × {_REPLICAS} replicas, {case}"] = figures
    return found


def simulate(
    seconds: Doubles, case: str, shards: int, requests: int, hedge: float | None, seed: int
) -> tuple[Doubles, float]:
    """The times of searches, and the requests that a shard gets per search."""
    loop = _VirtualLoop()
    rng = np.random.default_rng(seed)
    servers = [[_Shard(seconds, np.random.default_rng((seed, shard, twin)), loop, pauses=case == CASES[1],
                       factor=_SLOW if case == CASES[2] and shard == twin == 0 else 1.0)
                for twin in range(_REPLICAS)] for shard in range(shards)]  # fmt: skip
    routing = Routing(timeout=5.0, hedge=hedge)
    groups = [Replicas(list(own), routing) for own in servers]
    gaps = rng.exponential(float(seconds.mean()) / (_BUSY * _REPLICAS), requests)

    async def ask() -> float:
        begin = loop.time()
        await asyncio.gather(*(group.ask("POST", "/", b"") for group in groups))
        return loop.time() - begin

    async def run() -> list[float]:
        tasks = []
        for gap in gaps:
            await asyncio.sleep(float(gap))
            tasks.append(asyncio.ensure_future(ask()))
        return list(await asyncio.gather(*tasks))

    try:
        times = loop.run_until_complete(run())
    finally:
        loop.close()
    asked = sum(one.asked for own in servers for one in own)
    return np.array(times), asked / (requests * shards)


class _Shard(Server):
    """A replica whose answers take times that were measured."""

    def __init__(
        self, seconds: Doubles, rng: np.random.Generator, loop: _VirtualLoop, *, pauses: bool, factor: float
    ) -> None:
        super().__init__("http://simulated/v1/indexes/x")
        self.seconds, self.rng, self.loop, self.factor = seconds, rng, loop, factor
        self.free, self.asked = 0.0, 0
        self.pause = rng.uniform(0, _EVERY) if pauses else float("inf")

    async def request(self, method: str, path: str, body: bytes = b"", *, timeout: float) -> Answer:   # noqa: ARG002
        """Answer when those before are done, even if nobody waits for it any more."""
        self.asked += 1
        now = self.loop.time()
        while self.pause < now:   # pauses begin at random times
            self.free = max(self.free, self.pause + _PAUSE)
            self.pause += float(self.rng.exponential(_EVERY))
        self.free = max(self.free, now) + self.factor * float(self.rng.choice(self.seconds))
        await asyncio.sleep(self.free - now)
        return Answer(200, b"{}")


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next event."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                loop.now += timeout or 0.0
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        """Seconds since the start of the simulation."""
        return self.now


def _measured(folder: Path, seed: int) -> Doubles:
    """Seconds of answers of a shard, from one client that keeps its connection."""
    rng = np.random.default_rng(seed)
    spread = np.linspace(2, 0.1, _DIM, dtype=np.float32)
    with Index.create(folder / "shard", [32, 64, 128, 256]) as index:
        index.add(rng.normal(size=(_ROWS, _DIM)).astype(np.float32) * spread)
        index.compact()
        index.build(sketch=True)
    queries = rng.normal(size=(_ASKED, _DIM)).astype(np.float32) * spread
    port = free_port()
    words = ["serve", "--quiet", "--index", str(folder / "shard"), "--port", str(port)]
    command = [sys.executable, "-m", "matryo", *words]
    with server(command, port, "/health/ready"):
        return asyncio.run(_ask_all(f"http://127.0.0.1:{port}", queries))


async def _ask_all(url: str, queries: Any) -> Doubles:
    shard, seconds = Server(url), []
    for number, query in enumerate(queries):
        body = {"vector": base64.b64encode(query.tobytes()).decode(), "k": 10}
        begin = time.perf_counter()
        answer = await shard.request("POST", "/v1/indexes/shard/nearest", json.dumps(body).encode(), timeout=30)
        assert answer.status == 200, answer.body
        if number >= 100:   # the first ones warm it up
            seconds.append(time.perf_counter() - begin)
    return np.array(seconds)
