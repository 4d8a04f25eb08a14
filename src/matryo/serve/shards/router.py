"""RoutedIndex: an index whose shards are other servers. It takes the place of a folder in the server's endpoints.

A search goes to all shards at a time, and their best hits are merged by exact score and row number, as one index would
merge its segments. If a shard does not answer, the search fails with status 503, or, if the request allows it, the
hits of the others are returned and marked as partial.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matryo.errors import InputError
from matryo.retrieve import Plan
from matryo.retrieve.hits import Hits, widened
from matryo.retrieve.nearest import Nearest, merged
from matryo.serve.http.errors import ApiError
from matryo.serve.http.wire import dumps, hits_as_dicts
from matryo.serve.shards.replicas import Routing, Unavailable, parsed
from matryo.serve.shards.rows import RemoteRows

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from matryo.arrays import Floats
    from matryo.retrieve.plan.choice import Choice
    from matryo.serve.http.metrics import Metrics
    from matryo.serve.indexes import How
    from matryo.serve.limits import Limits

    Result = TypeVar("Result")

__all__ = ["KEY", "Found", "RoutedIndex"]

KEY = "MATRYO_SHARD_KEY"
"""The environment variable of the API key that a router sends to its shards."""
_SETTINGS: dict[str, Any] = {"cost": "latency", "budget": None, "confidence": 0.95}   # as of `matryo plan`


class Found(list[list[dict[str, Any]]]):
    """The hits of each query, and the shards that did not answer."""

    missing: tuple[int, ...] = ()


class _Alive:
    """Stands for the queue of an index, which a router does not have."""

    waiting = 0.0

    def __init__(self, index: RoutedIndex) -> None:
        self._index = index

    @property
    def alive(self) -> bool:
        """Whether each shard has a replica that is up; asking this also probes those that are not."""
        for shard in self._index.shards:
            shard.probe()
        return all(any(shard.up) for shard in self._index.shards)

    def admit(self) -> None:
        """Refuse a search while too many are in progress."""
        if self._index.running >= self._index.limits.connections:
            raise ApiError(429, "too many searches are in progress", code="busy", retry=1)


class RoutedIndex:
    """An index in shards behind URLs, in the order of their numbers; ``URL|URL`` names the replicas of one."""

    def __init__(
        self, name: str, urls: Sequence[str], limits: Limits, metrics: Metrics, *, writable: bool = False,
        routing: Routing | None = None,
    ) -> None:  # fmt: skip
        self.name, self.limits, self.metrics, self.writable = name, limits, metrics, writable
        self.shards = parsed(list(urls), os.environ.get(KEY, ""), routing or Routing(), metrics.count)
        self.running = 0
        self.batcher = _Alive(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._plans: dict[tuple[float, int], Choice] = {}
        self._planning = threading.Lock()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix=f"matryo-write-{name}")
        self.reader = RemoteRows(self)
        metrics.gauge("shards_up", lambda: sum(any(shard.up) for shard in self.shards),
                      index=name)  # fmt: skip

    @property
    def dim(self) -> int:
        """The dims of the vectors."""
        return self.reader.nesting.dim

    @property
    def unit(self) -> bool:
        """Whether the vectors have norm 1, so that encoded queries need it too."""
        return self.reader.unit

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for ``work`` in a thread that is not the event loop's."""
        if self._loop is not None and self._loop.is_running():
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()

        async def alone() -> Result:
            try:
                return await work
            finally:
                for shard in self.shards:
                    for server in shard.servers:
                        server.forget()

        return asyncio.run(alone())

    async def search(self, vectors: Floats, how: How) -> Found:
        """The hits of each query: dicts with id, score and, on request, payload."""
        self._loop = asyncio.get_running_loop()
        self.running += 1
        try:
            hits, missing = await self.nearest_of_all(vectors, how.k, how.plan, how.where, how.payload, how.partial)
        finally:
            self.running -= 1
        found = Found(hits_as_dicts(hits))
        found.missing = missing
        return found

    async def nearest(self, vectors: Floats, k: int, plan: Plan | None) -> list[dict[str, Any]]:
        """The hits of one query."""
        hits, _ = await self.nearest_of_all(vectors, k, plan)
        return hits_as_dicts(hits)[0]

    async def nearest_of_all(
        self, vectors: Floats, k: int, plan: Plan | None = None, where: str = "", payload: bool = False,
        partial: bool = False,
    ) -> tuple[Hits, tuple[int, ...]]:  # fmt: skip
        """The hits of all shards, and the numbers of those that did not answer."""
        body: dict[str, Any] = {"vector": _base64(vectors), "k": k, "payload": payload}
        body |= {} if plan is None else {"plan": plan.to_dict()}
        body |= {"where": json.loads(where)} if where else {}
        answers = await self.ask_all("POST", "/v1/indexes/{index}/nearest", dumps(body))
        missing = self._missing(answers, partial)
        results = [None if isinstance(answer, BaseException) else answer["results"] for answer in answers]
        found = [_as_nearest(result, len(vectors)) for result in results]
        best, source = merged(found, k)
        nothing: Any = "" if best.ids.dtype == np.object_ else -1
        payloads = None
        if payload:
            payloads = [[None] * k for _ in range(len(vectors))]
            for query, place in zip(*np.nonzero(source >= 0), strict=True):
                entry = results[source[query, place]][query]
                assert best.numbers is not None
                at = entry["rows"].index(int(best.numbers[query, place]))
                payloads[query][place] = entry["payloads"][at]
        return best.to_hits(k, nothing, payloads), missing

    async def ask_all(self, method: str, path: str, body: bytes = b"") -> list[Any]:
        """The answers of all shards: JSON, or the exception of a shard that did not answer."""
        answers = await asyncio.gather(*(shard.ask(method, path, body) for shard in self.shards),
                                       return_exceptions=True)  # fmt: skip
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Unavailable):
                raise answer   # an error of the request, which another shard would repeat
        return answers

    def _missing(self, answers: Sequence[Any], partial: bool) -> tuple[int, ...]:
        """The shards without an answer; raises if the request does not allow that, or no shard answered."""
        missing = tuple(number for number, answer in enumerate(answers) if isinstance(answer, Unavailable))
        if missing:
            self.metrics.count("partial_total" if partial else "refused_total", index=self.name)
        if missing and (not partial or len(missing) == len(answers)):
            cure = "try again" if partial else "try again, or send partial: true for the hits of the others"
            message = f"shard {', '.join(map(str, missing))} of {len(answers)} has not answered: {cure}"
            raise ApiError(503, message, code="shard_unavailable", retry=1)
        return missing

    # ── changes and plans ─────────────────────────────────────────────────────────────────────────────────────

    def check_writable(self) -> RemoteRows:
        """The rows of the shards; raises if the router may not change them."""
        if not self.writable:
            message = f"the index {self.name} is open for reading: start the router with --writable"
            raise ApiError(403, message, code="read_only")
        return self.reader

    async def write(self, work: Callable[[Any], Result]) -> Result:
        """Run ``work`` with the rows of the shards, after the changes before it."""
        rows = self.check_writable()
        self._loop = loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._writing, lambda: work(rows)))

    def plan(self, recall: float, k: int) -> Choice | None:
        """The plan that this router made for a target; None if it made none."""
        return self._plans.get((recall, k))

    def make_plan(self, recall: float, k: int, queries: Floats | None) -> Choice:
        """Choose one plan for all shards, measured through this router."""
        from matryo.retrieve.plan.planner import choose

        if not self._planning.acquire(blocking=False):
            raise ApiError(409, "another plan is being made: try again later", code="planning", retry=5)
        try:
            self.reader.refresh()
            choice = choose(self.reader, queries, recall=recall, k=k, progress=False, **_SETTINGS)
            self._plans[recall, k] = choice
            return choice
        finally:
            self._planning.release()

    def reload(self) -> None:
        """Ask the shards for their settings again."""
        self.reader.refresh()

    def close(self) -> None:
        """Finish the changes that are queued."""
        self._writing.shutdown()


def _base64(vectors: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(vectors, "<f4").tobytes()).decode()


def _as_nearest(result: Any, queries: int) -> Nearest:
    """The answer of a shard as arrays; nothing for a shard without one."""
    width = max((len(entry["ids"]) for entry in result), default=0) if result is not None else 0
    if not width:
        return Nearest(np.empty((queries, 0), np.int64), np.empty((queries, 0)), np.empty((queries, 0), np.int64))
    text = any(isinstance(id, str) for entry in result for id in entry["ids"][:1])
    try:
        ids = [widened(np.array([entry["ids"]], object if text else np.int64), width, "" if text else -1)
               for entry in result]  # fmt: skip
        scores = [widened(np.array([entry["scores"]], np.float64), width, -np.inf) for entry in result]
        rows = [widened(np.array([entry["rows"]], np.int64), width, -1) for entry in result]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("a shard must answer with ids, scores and rows", got=error, cure="update its server") from None
    return Nearest(np.concatenate(ids), np.concatenate(scores), np.concatenate(rows))
