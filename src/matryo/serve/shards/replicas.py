"""The replicas of one shard: failover, hedged requests, and which of them are up.

A request goes to the replica that should answer first, by its requests in progress and the time of its latest answers.
If it fails, the next one gets the request at once. If it takes longer than most, the next one gets it too, and the
first answer counts (a hedged request); at most one request in ten is hedged, so that an overloaded shard does not get
more work. A replica that hangs is given up after its share of the time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from matryo.arguments import as_number
from matryo.errors import InputError
from matryo.serve.http.errors import ApiError
from matryo.serve.http.wire import loads
from matryo.serve.shards.client import Answer, Server

__all__ = ["Replicas", "Routing", "Unavailable"]

_PROBE = 1.0   # seconds between probes of a replica that is down
_KEPT = 512   # latencies
_FEWEST = 20   # latencies before requests are hedged
_SHARE, _SAVED = 0.1, 10.0   # hedged requests per request, and the most that quiet times allow at once
_LEAST = 0.001   # seconds before a request is hedged
_FADE, _TINY = 0.1, 1e-6   # the weight of the latest answer in the time of answers; seconds


@dataclass(frozen=True)
class Routing:
    """How a router asks its shards."""

    timeout: float = 5.0
    """Seconds for the answer of a shard, with all its replicas."""
    hedge: float | None = None
    """Seconds after which another replica gets the request, too; None for the 95th percentile of recent answers, 0 for
    never."""

    def __post_init__(self) -> None:
        as_number(self.timeout, "timeout", 0.001, 3600, cure="pass --shard-timeout 5")
        if self.hedge is not None:
            as_number(self.hedge, "hedge", 0, 3600, cure="pass --hedge 0.05, or 0 for no hedged requests")


class Unavailable(Exception):
    """No replica of a shard has answered."""


@dataclass(eq=False)
class _Replica:
    server: Server
    index: str = ""
    """The name of the index there, once it is known."""
    up: bool = True
    probed: float = 0.0
    running: int = 0
    """Requests in progress."""
    seconds: float = 0.0
    """The time of an answer, lately; of a request that another replica answered first, the time until then."""

    @property
    def wait(self) -> float:
        """How long another request would take."""
        return (self.running + 1) * (self.seconds + _TINY)

    def fail(self) -> None:
        """Note that the replica does not answer: others come first until a probe succeeds."""
        self.up, self.probed = False, asyncio.get_running_loop().time()


@dataclass(eq=False)
class Replicas:
    """The servers of one shard, which all hold the same rows."""

    servers: list[Server]
    routing: Routing = field(default_factory=Routing)
    count: Callable[..., None] = lambda *_, **__: None
    """Counts an event of the metrics."""
    _turn: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._replicas = [_Replica(server) for server in self.servers]
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._delay, self._saved, self._noted = float("inf"), 1.0, 0
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> list[bool]:
        """Which replicas have answered their latest request."""
        return [replica.up for replica in self._replicas]

    async def ask(self, method: str, path: str, body: bytes = b"", *, hedge: bool = True) -> Any:
        """The JSON of the first answer; raises the error of the shard, or :class:`Unavailable`."""
        try:
            async with asyncio.timeout(self.routing.timeout):
                answer = await self._first(method, path, body, hedge=hedge)
        except TimeoutError:
            raise Unavailable(f"no answer within {self.routing.timeout:g} seconds") from None
        content = loads(answer.body)
        if answer.status < 400:
            return content
        error = content.get("error", {}) if isinstance(content, dict) else {}
        raise ApiError(answer.status, str(error.get("message", "a shard failed")), param=error.get("param"),
                       code=error.get("code"))  # fmt: skip

    async def ask_one(self, number: int, method: str, path: str, body: bytes = b"") -> Any:
        """The JSON of the answer of one replica: for changes, which each replica needs."""
        replica = self._replicas[number]
        answer = await self._send(replica, method, path, body)
        content = loads(answer.body)
        if answer.status >= 400:
            error = content.get("error", {})
            raise ApiError(answer.status, error.get("message", "a shard failed"), param=error.get("param"),
                           code=error.get("code"))  # fmt: skip
        return content

    async def _first(self, method: str, path: str, body: bytes, *, hedge: bool) -> Answer:
        """The first answer that is not a failure of its server."""
        self.probe()
        waiting = self._order()
        tasks: dict[asyncio.Task[Answer], _Replica] = {}
        busy = False
        delay = self._hedge_after() if hedge else None
        self._saved = min(_SAVED, self._saved + _SHARE)
        share = self.routing.timeout / len(waiting)   # of the time, for a replica that hangs
        try:
            while waiting or tasks:
                if not tasks:
                    self._start(tasks, waiting, method, path, body)
                hedging = delay is not None and delay < share and len(tasks) == 1 and self._saved >= 1
                patience = (delay if hedging else share) if waiting else None
                done, _ = await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    if hedging:
                        self._saved -= 1
                        self.count("hedged_total")
                    else:
                        for replica in tasks.values():
                            replica.fail()
                    self._start(tasks, waiting, method, path, body)
                for task in done:
                    tasks.pop(task)
                    with suppress(OSError, EOFError, ValueError, TimeoutError):
                        answer = task.result()
                        if answer.status < 500 and answer.status != 429:
                            return answer
                        busy = busy or answer.status == 429
        finally:
            for task in tasks:
                task.cancel()
        raise Unavailable("all its replicas are busy" if busy else "no replica answers")

    def _start(
        self, tasks: dict[asyncio.Task[Answer], _Replica], waiting: list[_Replica], method: str, path: str, body: bytes
    ) -> None:
        replica = waiting.pop(0)
        tasks[asyncio.ensure_future(self._send(replica, method, path, body))] = replica

    async def _send(self, replica: _Replica, method: str, path: str, body: bytes) -> Answer:
        clock = asyncio.get_running_loop().time
        start = clock()
        replica.running += 1
        try:
            replica.index = replica.index or await self._only_index(replica.server)
            path = path.replace("{index}", replica.index)
            answer = await replica.server.request(method, path, body, timeout=self.routing.timeout)
        except (OSError, EOFError, ValueError, TimeoutError):
            replica.fail()
            self.count("shard_failures_total")
            raise
        finally:
            replica.running -= 1
            replica.seconds += _FADE * (clock() - start - replica.seconds)
        replica.up = answer.status != 503
        self._note(clock() - start)
        return answer

    async def _only_index(self, server: Server) -> str:
        """The name of the one index of a server whose URL does not name it."""
        if "/v1/indexes/" in server.path:
            server.path, _, name = server.path.partition("/v1/indexes/")
            return name
        answer = await server.request("GET", "/v1/indexes", timeout=self.routing.timeout)
        if answer.status >= 400:
            raise OSError(f"status {answer.status}")
        names = [index["name"] for index in loads(answer.body)["indexes"]]
        if len(names) != 1:
            cure = f"name one: {server.url}/v1/indexes/{names[0] if names else 'NAME'}"
            raise InputError("the server of a shard must have one index", got=f"{server.name}: {names}", cure=cure)
        return str(names[0])

    def _note(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._noted += 1
        if self._noted == _FEWEST or self._noted % 32 == 0:
            self._delay = max(_LEAST, float(np.quantile(np.array(self._seconds), 0.95)))

    def _hedge_after(self) -> float | None:
        given = self.routing.hedge
        if given is not None:
            return given or None
        return None if self._delay == float("inf") else self._delay

    def _order(self) -> list[_Replica]:
        """Those that are up, the one that will answer first before the others. The others are the last."""
        first = next(self._turn) % len(self._replicas)
        turned = self._replicas[first:] + self._replicas[:first]
        return sorted(turned, key=lambda replica: (not replica.up, replica.wait))

    def probe(self) -> None:
        """Ask replicas that are down for their health, from time to time."""
        now = asyncio.get_running_loop().time()
        for replica in self._replicas:
            if not replica.up and now - replica.probed > _PROBE:
                replica.probed = now
                task = asyncio.ensure_future(self._look(replica))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)

    async def _look(self, replica: _Replica) -> None:
        with suppress(OSError, EOFError, ValueError, TimeoutError):
            answer = await replica.server.request("GET", "/health/ready", timeout=self.routing.timeout)
            replica.up = answer.status == 200


def parsed(words: list[str], key: str, routing: Routing, count: Callable[..., None]) -> list[Replicas]:
    """The shards of a command line, in the order of their numbers: ``URL``, or ``URL|URL`` for replicas."""
    shards = [Replicas([Server(url, key) for url in word.split("|")], routing, count) for word in words]
    if not shards:
        raise InputError("a router needs shards", got="none", cure="--shards http://HOST:PORT …")
    return shards
