"""The indexes of a server: a reader that batches searches, and on request the one writer of each index.

Searches use a connection of their own, so they continue while the writer commits or compacts, and see each commit from
the next search on.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matryo.errors import MatryoError
from matryo.retrieve import Plan
from matryo.retrieve.plan.cache import load_choice, plan_key, store_choice
from matryo.retrieve.shards import open_index
from matryo.serve.batching import Batcher
from matryo.serve.http.errors import ApiError
from matryo.serve.http.wire import hits_as_dicts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from pathlib import Path

    from matryo.arrays import Floats
    from matryo.retrieve import Index
    from matryo.retrieve.plan.choice import Choice
    from matryo.serve.http.metrics import Metrics
    from matryo.serve.limits import Limits

    Result = TypeVar("Result")

__all__ = ["How", "Indexes", "ServedIndex"]

_SETTINGS: dict[str, Any] = {"cost": "latency", "budget": None, "confidence": 0.95}   # as of `matryo plan`
_WRITES = 64   # writes that may wait for the writer
_SAMPLE = 64   # rows whose norms are looked at
_AT_ONCE = 0.0005   # seconds; requests that take less are searched in the event loop
_TOGETHER = 0.002   # seconds that the requests of one moment may take there
_KINDS = 256   # kinds of queries whose times are kept
_LOOK = 10.0   # seconds between looks for a plan that another process made


@dataclass(frozen=True, eq=False)
class How:
    """The options of a search; queries with the same options are searched in one call.

    Plans are compared by identity: requests with equal plans share one object, and hashing a plan takes longer than
    some searches.
    """

    k: int
    plan: Plan | None = None
    where: str = ""
    """The filter as JSON; empty for none."""
    payload: bool = False
    partial: bool = False
    """Whether a router may leave out shards that do not answer."""

    @property
    def _key(self) -> tuple[int, int, str, bool]:
        return self.k, id(self.plan), self.where, self.payload

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, How) and self._key == other._key


class ServedIndex:
    """An open index."""

    def __init__(
        self, name: str, path: Path, limits: Limits, metrics: Metrics, *, writable: bool, threads: int = 1
    ) -> None:
        self.name, self.path, self.limits, self.metrics, self.threads = name, path, limits, metrics, threads
        self.writer: Any = open_index(path, writable=True) if writable else None
        self.writable = writable
        """Whether the server changes it: this process, or the one that this process forwards changes to."""
        self.reader: Any = open_index(path)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix=f"matryo-write-{name}")
        self._planning = threading.Lock()
        self._writes = 0
        self._seconds: dict[How, float] = {}   # per query, lately
        self._plans: dict[tuple[float, int], tuple[float, Choice | None]] = {}
        self._arrived: dict[tuple[asyncio.AbstractEventLoop, How], list[tuple[Floats, asyncio.Future[Any]]]] = {}

        def seen(cost: float, seconds: float) -> None:
            metrics.observe("batch_cost", cost, queue=name)
            metrics.observe("batch_seconds", seconds, queue=name)

        self.batcher = Batcher(self._search, step=limits.step, wait=limits.wait, least=1, most=limits.queries,
                               seen=seen, name=name)  # fmt: skip
        metrics.gauge("queue_cost", lambda: self.batcher.waiting, queue=name)

    @property
    def dim(self) -> int:
        """The dims of the vectors."""
        dim: int = self.reader.nesting.dim
        return dim

    @cached_property
    def unit(self) -> bool:
        """Whether the vectors have norm 1, so that encoded queries need it too."""
        if self.reader.metric == "cosine" or not len(self.reader):
            return True
        _, vectors = self.reader.sample(min(_SAMPLE, len(self.reader)), seed=0)
        return bool(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.01))

    async def search(self, vectors: Floats, how: How) -> list[list[dict[str, Any]]]:
        """The hits of each query: dicts with id, score and, on request, payload."""
        if self._seconds.get(how, 1.0) * len(vectors) < _AT_ONCE and not self.batcher.waiting:
            hits = await self._at_once(vectors, how)   # faster than to wake another thread
            if hits is not None:
                return hits
        return await self.batcher.run(vectors, [1.0] * len(vectors), how)

    def _at_once(self, vectors: Floats, how: How) -> asyncio.Future[list[Any] | None]:
        """The hits, found in one call with those of the other requests that the event loop has just read."""
        loop = asyncio.get_running_loop()
        arrived = self._arrived.setdefault((loop, how), [])
        if not arrived:
            loop.call_soon(self._search_arrived, loop, how)
        arrived.append((vectors, loop.create_future()))
        return arrived[-1][1]

    def _search_arrived(self, loop: asyncio.AbstractEventLoop, how: How) -> None:
        """Search for the requests of one moment; None for those that are left to the batcher."""
        most = int(_TOGETHER / self._seconds.get(how, 1.0)) if self.reader.is_current else 0
        several: list[tuple[Floats, asyncio.Future[list[Any] | None]]] = []
        count = 0
        for vectors, future in self._arrived.pop((loop, how)):
            if future.done():   # the client has left
                continue
            if count + len(vectors) > most:
                future.set_result(None)
            else:
                several.append((vectors, future))
                count += len(vectors)
        try:
            hits = self._search(how, np.concatenate([vectors for vectors, _ in several])) if several else []
        except Exception:   # the batcher finds the request at fault
            for _, future in several:
                future.set_result(None)
            return
        start = 0
        for vectors, future in several:
            future.set_result(hits[start : start + len(vectors)])
            start += len(vectors)

    async def nearest(self, vectors: Floats, k: int, plan: Plan | None) -> list[dict[str, Any]]:
        """The hits of one query."""
        (hits,) = await self.search(vectors, How(k, plan))
        return hits

    async def write(self, work: Callable[[Index], Result]) -> Result:
        """Run ``work`` with the writer, after the writes before it; it is not interrupted when the client leaves."""
        writer = self.check_writable()
        if self._writes >= _WRITES:
            raise ApiError(503, "too many writes wait: try again later", code="busy", retry=1)
        self._writes += 1
        future = asyncio.get_running_loop().run_in_executor(self._writing, lambda: work(writer))
        future.add_done_callback(lambda _: self._wrote())
        return await asyncio.shield(future)

    def check_writable(self) -> Index:
        """The writer; raises if the index is open for reading."""
        if self.writer is None:
            message = f"the index {self.name} is open for reading: start the server with --writable"
            raise ApiError(403, message, code="read_only")
        writer: Index = self.writer
        return writer

    def plan(self, recall: float, k: int) -> Choice | None:
        """The plan that was made for this target, here, by another process or by ``matryo plan``; None if none was."""
        looked, choice = self._plans.get((recall, k), (0.0, None))
        if choice is None and time.monotonic() - looked > _LOOK:
            choice = load_choice(self.path, plan_key(self.reader.state, None, recall=recall, k=k, **_SETTINGS))
            self._plans[recall, k] = time.monotonic(), choice
        return choice

    def make_plan(self, recall: float, k: int, queries: Floats | None) -> Choice:
        """Choose a plan for ``queries``, by default rows of the index; later searches for the recall use it."""
        if not self._planning.acquire(blocking=False):
            raise ApiError(409, "another plan is being made: try again later", code="planning", retry=5)
        try:
            state = self.reader.state
            choice: Choice = self.reader.plan(recall=recall, k=k, queries=queries, progress=False, **_SETTINGS)
            self._plans[recall, k] = time.monotonic(), choice
            if self.reader.state == state and queries is None:
                store_choice(self.path, plan_key(state, None, recall=recall, k=k, **_SETTINGS), choice)
            return choice
        finally:
            self._planning.release()

    def reload(self) -> None:
        """Open the folder again, for an index that was replaced by another one at the same path."""
        if self.writer is None:
            self.reader, self._plans = open_index(self.path), {}   # searches in progress keep the old one

    def close(self) -> None:
        """Finish what is queued, and close the files."""
        self.batcher.close()
        self._writing.shutdown()
        self.reader.close()
        if self.writer is not None:
            self.writer.close()

    def _wrote(self) -> None:
        self._writes -= 1

    def _search(self, kind: Hashable, items: Any) -> list[Any]:
        assert isinstance(kind, How)
        where = json.loads(kind.where) if kind.where else None
        threads = min(self.threads, len(items))
        start = time.perf_counter()
        queries = items if isinstance(items, np.ndarray) else np.stack(items)
        hits = self.reader.search(queries, kind.k, kind.plan, where=where, threads=threads, payload=kind.payload)
        if not where and not kind.payload:   # these read the database, which may take long
            if len(self._seconds) >= _KINDS:
                self._seconds.clear()
            latest = (time.perf_counter() - start) / len(items)
            self._seconds[kind] = max(latest, (self._seconds.get(kind, latest) + latest) / 2)
        return hits_as_dicts(hits)


class Indexes:
    """The indexes by name."""

    def __init__(
        self, paths: Mapping[str, Path], limits: Limits, metrics: Metrics, *, writable: bool, threads: int = 1
    ) -> None:
        self.served: dict[str, Any] = {}
        try:
            for name, path in paths.items():
                self.served[name] = ServedIndex(name, path, limits, metrics, writable=writable, threads=threads)
        except MatryoError:
            self.close()
            raise

    def __iter__(self) -> Any:
        return iter(self.served.values())

    def find(self, name: str) -> ServedIndex:
        """The index ``name``: only names that the server was started with exist, so no name reaches the disk."""
        if name not in self.served:
            known = ", ".join(self.served) or "none"
            message = f"the index {name:.60} is not served: the indexes are {known}"
            raise ApiError(404, message, param="name", code="index_not_found")
        found: ServedIndex = self.served[name]
        return found

    def reload(self) -> None:
        """Open every index again that is not open for writing."""
        for index in self.served.values():
            index.reload()

    def close(self) -> None:
        """Close all of them."""
        for index in self.served.values():
            index.close()
