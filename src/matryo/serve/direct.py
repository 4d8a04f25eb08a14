"""Answers without an ASGI call: searches by vectors, which take microseconds, and refusals by a server that is busy.

Only plain requests are answered here. The app answers all others, and says what is wrong with a request: both ways give
equal answers, with the same limits, keys, metrics and log.
"""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from matryo.serve.http.errors import ApiError, as_api_error
from matryo.serve.http.hosts import is_allowed
from matryo.serve.http.request import Response
from matryo.serve.http.wire import as_matrix, dumps, loads
from matryo.serve.indexes import ServedIndex
from matryo.serve.search import SEARCH, how_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matryo.arrays import Floats
    from matryo.serve.batching import Batcher
    from matryo.serve.http.keys import Key
    from matryo.serve.http.protocol import Exchange
    from matryo.serve.indexes import How
    from matryo.serve.service import Service

__all__ = ["Direct"]

_SEARCH, _EMBED = "/v1/indexes/{name}/search", "/v1/embeddings"
_KEPT, _LONG = 256, 4096   # options of searches that are kept, and the bytes of one
_PLAIN = b"content-type: application/json\r\nx-request-id: "


class _ForTheApp(Exception):
    """The request is left to the app."""


class Direct:
    """The short way to the endpoints of ``service``."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.paths: dict[bytes, Callable[[Exchange, Key | None, bytes], bool]] = {b"/v1/embeddings": self._embed}
        """By the path of a request: the function that answers it, or returns False to leave it to the app."""
        for index in service.indexes:
            if isinstance(index, ServedIndex):
                self.paths[f"/v1/indexes/{index.name}/search".encode()] = partial(self._search, index)
        self._hosts = set[bytes]()   # that may be used
        self._options: dict[tuple[str, bytes], tuple[Any, How, str]] = {}
        self._tasks = set[asyncio.Task[None]]()

    def answer(self, exchange: Exchange, path: bytes, body: bytes) -> bool:
        """Answer a request now or later; False leaves it to the app."""
        fields, service = exchange.fields, self.service
        if fields.get(b"content-type") != b"application/json" or (service.origins and b"origin" in fields):
            return False
        if service.hosts is not None and not self._is_known(fields.get(b"host", b"")):
            return False
        try:
            key = service.keys.find(fields.get(b"authorization"))
            return self.paths[path](exchange, key, body)
        except (ApiError, TypeError, _ForTheApp):   # nothing was sent or counted yet; orjson raises the second
            return False

    def _search(self, index: ServedIndex, exchange: Exchange, key: Key | None, body: bytes) -> bool:
        if self._refuses([index.batcher], exchange, _SEARCH, key):
            return True
        fields = loads(body)
        if not isinstance(fields, dict) or "vector" not in fields:
            return False
        vectors, how, plan = self._query(index, fields)
        _begin(exchange, key)
        facts = {"index": index.name, "items": len(vectors)}

        def done(hits: Sequence[bytes]) -> None:
            self._reply(exchange, _SEARCH, 200, _body(index.name, plan, hits), key, facts)

        def later() -> None:
            task = asyncio.get_running_loop().create_task(self._later(index, vectors, how, exchange, key, done))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if not index.at_once(vectors, how, lambda hits: later() if hits is None else done(hits)):
            later()
        return True

    async def _later(self, index: ServedIndex, vectors: Floats, how: How, exchange: Exchange, key: Key | None,
                     done: Callable[[Sequence[bytes]], None]) -> None:  # fmt: skip
        """Search in the batcher, which may refuse."""
        try:
            async with asyncio.timeout(self.service.limits.timeout):
                hits = await index.batcher.run(vectors, [1.0] * len(vectors), how)
        except Exception as error:
            self._fail(exchange, _SEARCH, error, key)
        else:
            done(hits)

    def _embed(self, exchange: Exchange, key: Key | None, body: bytes) -> bool:   # noqa: ARG002 - it is not read
        """Refuse the request before it is parsed, if every model would refuse it."""
        return self._refuses([model.batcher for model in self.service.models], exchange, _EMBED, key)

    def _refuses(self, batchers: Sequence[Batcher], exchange: Exchange, route: str, key: Key | None) -> bool:
        """Refuse a request that each of ``batchers`` would refuse."""
        refusal = None
        for batcher in batchers:
            try:
                batcher.admit()
                return False
            except ApiError as error:
                refusal = error
        if refusal is None:
            return False
        _begin(exchange, key)
        self._fail(exchange, route, refusal, key)
        return True

    def _query(self, index: ServedIndex, fields: dict[str, Any]) -> tuple[Floats, How, str]:
        """The vectors of a request, how to search, and the plan in words; raises if the app has to answer."""
        limits, vector = self.service.limits, fields["vector"]
        if not isinstance(vector, str):
            SEARCH.check(fields)
        how, plan = self._how(index, {name: value for name, value in fields.items() if name != "vector"})
        vectors = as_matrix(vector, index.dim, "vector", limits.queries)
        if len(vectors) * how.k > limits.hits:
            raise _ForTheApp
        return vectors, how, plan

    def _how(self, index: ServedIndex, fields: dict[str, Any]) -> tuple[How, str]:
        """The options of a search; most clients send the same ones again and again."""
        options = dumps(fields)
        reader, how, plan = self._options.get((index.name, options), (None, None, ""))
        if how is None or reader is not index.reader:
            given = SEARCH.check(fields)
            if not given.keys().isdisjoint(("text", "image", "model")):
                raise _ForTheApp
            how, plan = how_of(index, given, given.get("k", 10))
            if "recall" not in given and len(options) <= _LONG:   # another plan may be made for a recall
                if len(self._options) >= _KEPT:
                    self._options.clear()
                self._options[index.name, options] = index.reader, how, plan
        return how, plan

    def _is_known(self, host: bytes) -> bool:
        if host in self._hosts:
            return True
        assert self.service.hosts is not None
        if not is_allowed(host.decode("latin-1"), self.service.hosts):
            return False
        if len(self._hosts) < _KEPT:
            self._hosts.add(host)
        return True

    def _fail(self, exchange: Exchange, route: str, error: Exception, key: Key | None) -> None:
        answer = Response.error(as_api_error(error))
        more = b"".join(b"%b: %b\r\n" % field for field in answer.headers)
        identity = self._reply(exchange, route, answer.status, answer.body, key, {}, more)
        if answer.status == 500:
            self.service.failed(error, identity)

    def _reply(self, exchange: Exchange, route: str, status: int, body: bytes, key: Key | None, facts: dict[str, Any],
               more: bytes = b"") -> str:  # fmt: skip
        """Send and record the answer; returns its x-request-id."""
        identity = self.service.identity()
        exchange.reply(status, b"%b%b\r\n%b" % (_PLAIN, identity.encode(), more), body)
        seconds = time.perf_counter() - exchange.start
        self.service.record("POST", route, status, seconds, identity, key, facts)
        return identity


def _begin(exchange: Exchange, key: Key | None) -> None:
    """Take the request: from here on, it is not left to the app."""
    if key is not None:
        key.count()
    exchange.begin()


def _body(name: str, plan: str, hits: Sequence[bytes]) -> bytes:
    """The answer to a search of the index ``name``, from the hits of each query as JSON."""
    return b"%b%b]}" % (_opening(name, plan), b",".join(hits))


@lru_cache(maxsize=256)
def _opening(name: str, plan: str) -> bytes:
    return dumps({"index": name, "plan": plan})[:-1] + b',"results":['
