"""The server as a plain ASGI app: routes, keys, limits, errors, metrics and the log around the endpoints.

It can be run by any ASGI server, or mounted in another app; `matryo serve` runs it with uvicorn.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.arguments import checked
from matryo.serve.embeddings import EMBEDDINGS, Embeddings
from matryo.serve.explorer.endpoints import Explorer
from matryo.serve.explorer.show import Show
from matryo.serve.http.errors import ApiError, as_api_error
from matryo.serve.http.hosts import check_host
from matryo.serve.http.keys import Key, Keys
from matryo.serve.http.log import Log
from matryo.serve.http.metrics import Metrics, merged
from matryo.serve.http.openapi import Route, describe
from matryo.serve.http.request import Memory, Request, Response, Stream
from matryo.serve.indexes import Indexes
from matryo.serve.limits import Limits
from matryo.serve.models import Models
from matryo.serve.names import Sources, named
from matryo.serve.search import GET, PLAN, SEARCH, Search
from matryo.serve.shards import RoutedIndex
from matryo.serve.shards.answer import ShardAnswers
from matryo.serve.writes import DELETE, ROW, UPSERT, Writes

if TYPE_CHECKING:
    from matryo.serve.http.request import Headers, Receive, Scope, Send

__all__ = ["Service", "app"]

Answer = Response | Stream


class Service:
    """The ASGI app; make one with :func:`app`."""

    def __init__(self, models: Models, indexes: Indexes, keys: Keys, limits: Limits, log: Log, metrics: Metrics,
                 origins: Iterable[str] = (), show: Show | None = None) -> None:  # fmt: skip
        self.models, self.indexes, self.keys, self.limits = models, indexes, keys, limits
        self.log, self.metrics, self.origins = log, metrics, frozenset(origins)
        self.show = show or Show()
        self.hosts: frozenset[str] | None = None
        """The names by which this server may be addressed; None for any. See :mod:`matryo.serve.http.hosts`."""
        self.draining = False
        """Set before the server stops: /health/ready is then 503, so that load balancers look elsewhere."""
        self.forward: Callable[[Request], Awaitable[Answer]] | None = None
        """Sends a change to the process that writes, in the other processes of a server."""
        self.peers: Callable[[bytes | None], Awaitable[list[str]]] | None = None
        """The metrics of the other processes of a server, for a client with this Authorization."""
        self._memory = Memory(limits.memory)
        self._prefix, self._numbers = os.urandom(4).hex(), itertools.count()   # of request ids
        self._starting: asyncio.Task[None] | None = None
        self._routes = self._make_routes()
        self._table = {(route.method, *_pattern(route.path)): route for route in self._routes}
        self._description = describe(self._routes)
        metrics.gauge("body_bytes", lambda: self._memory.held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope of ASGI."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def start(self) -> None:
        """Warm the models up; the first request does this in an app that is mounted without its lifespan."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._warm())
        if not self._starting.done():
            await asyncio.shield(self._starting)
        self._starting.result()

    async def reload(self) -> None:
        """Load the models again and open indexes that were replaced; on an error, the old ones stay."""
        try:
            await self.models.reload()
            await asyncio.to_thread(self.indexes.reload)
            self.log.event("reloaded")
        except Exception as error:
            self.log.event("reload failed", level="error", error=str(error))

    def close(self) -> None:
        """Finish what is queued, and close all files."""
        self.models.close()
        self.indexes.close()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, identity = time.perf_counter(), self.identity()
        path = _inner_path(scope)
        request = Request(scope, receive, path, self._memory, self.limits.bytes, self.limits.idle)
        route, headers = None, [(b"x-request-id", identity.encode()), *self._cors(request)]
        answer: Answer | None = None
        try:
            if self.hosts is not None:
                check_host(request, self.hosts)
            route = self._find(scope["method"], path)
            request.name = path.split("/")[3] if "{name}" in route.path else ""
            answer = await self._answer(route, request)
        except ConnectionResetError:
            request.facts["gone"] = True   # the client has left; nobody reads an answer
        except Exception as error:
            api = as_api_error(error)
            answer = Response.error(api)
            if api.status == 500:
                self.failed(error, identity)
        finally:
            request.release()
        status = answer.status if answer is not None else 499
        if answer is not None:
            if not request.complete and _has_body(request):
                headers.append((b"connection", b"close"))   # the rest of the body is not read
            try:
                await answer.send(send, headers, head=scope["method"] == "HEAD")
            except (OSError, RuntimeError):   # uvloop raises the latter
                request.facts["gone"] = True
        name = "unknown" if route is None else route.path
        self.record(scope["method"], name, status, time.perf_counter() - start, identity, request.key, request.facts)

    async def _answer(self, route: Route, request: Request) -> Answer:
        if not route.open:
            request.key = self.keys.find(request.header(b"authorization"))
            if request.key is not None:
                request.key.count()
        if route.writes and request.key is not None and not request.key.may_write:
            raise ApiError(403, f"the key {request.key.name} may only read", code="read_only_key")
        await self.start()
        if route.writes and self.forward is not None:
            request.facts["forwarded"] = True
            return await self.forward(request)
        if not route.timed:
            answer: Answer = await route.handler(request)
            return answer
        async with asyncio.timeout(self.limits.timeout):
            answer = await route.handler(request)
            return answer

    def _find(self, method: str, path: str) -> Route:
        if method == "HEAD":
            method = "GET"
        parts, general = _segments(path)
        route = self._table.get((method, *parts)) or self._table.get((method, *general))
        if route is not None:
            return route
        if method == "OPTIONS" and self.origins:
            return Route("OPTIONS", path, self._preflight, "", open=True)
        allowed = sorted(key[0] for key in self._table if key[1:] in (parts, general))
        if allowed:
            raise ApiError(405, f"this path takes {', '.join(allowed)} (got {method:.20})", code="method_not_allowed")
        raise ApiError(404, f"there is no path {path:.100}: see /openapi.json", code="no_such_path")

    def _cors(self, request: Request) -> Headers:
        origin = request.header(b"origin") if self.origins else None
        if origin is None or not {origin.decode("latin-1"), "*"} & self.origins:
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin"),
                (b"access-control-expose-headers", b"x-request-id, retry-after, x-matryo-untrained-dims")]  # fmt: skip

    async def _preflight(self, request: Request) -> Response:   # noqa: ARG002
        headers = [(b"access-control-allow-methods", b"GET, POST"), (b"access-control-max-age", b"600"),
                   (b"access-control-allow-headers", b"authorization, content-type")]  # fmt: skip
        return Response(b"", 204, headers)

    def identity(self) -> str:
        """A new value for x-request-id."""
        return f"{self._prefix}{next(self._numbers):08x}"

    def record(self, method: str, route: str, status: int, seconds: float, identity: str, key: Key | None,
               facts: Mapping[str, Any]) -> None:  # fmt: skip
        """Count an answer and write it to the log."""
        if "forwarded" not in facts:   # the process that writes counts it
            self.metrics.count("requests_total", route=route, status=status)
            self.metrics.observe("request_seconds", seconds, route=route)
        if not (self.log.quiet or route.startswith("/health") or route == "/metrics"):
            named = {} if key is None else {"key": key.name}
            self.log.event("request", id=identity, method=method, route=route, status=status,
                           ms=round(1000 * seconds, 2), **named, **facts)  # fmt: skip

    def failed(self, error: Exception, identity: str) -> None:
        """Count an error of the server itself, and log where it was raised."""
        self.metrics.count("errors_total")
        place = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        self.log.event("error", level="error", id=identity, type=type(error).__name__, at=place[-6:])

    # ── endpoints ─────────────────────────────────────────────────────────────────────────────────────────────

    def _make_routes(self) -> tuple[Route, ...]:
        embeddings, search = Embeddings(self.models, self.limits), Search(self.indexes, self.models, self.limits)
        writes, one, explorer = Writes(search), "/v1/indexes/{name}", Explorer(search, self.show)
        explorer.check()
        return (
            *explorer.routes(),
            *ShardAnswers(search).routes(),
            Route("GET", "/openapi.json", self._openapi, "This description", open=True),
            Route("GET", "/health/live", self._live, "Whether the process runs", answer="Health", open=True),
            Route("GET", "/health/ready", self._ready, "Whether it takes requests", answer="Health", open=True),
            Route("GET", "/metrics", self._metrics, "Measurements for Prometheus", answer="Text"),
            Route("GET", "/v1/models", embeddings.list, "List the models", answer="Models"),
            Route("GET", "/v1/models/{name}", embeddings.get, "Describe a model", answer="Model"),
            Route("POST", "/v1/embeddings", embeddings.create, "Embed texts or images", EMBEDDINGS, "Embedded"),
            Route("GET", "/v1/indexes", search.list, "List the indexes", answer="Indexes"),
            Route("GET", one, search.stats, "Describe an index", answer="Stats"),
            Route("POST", f"{one}/search", search.search, "Search", SEARCH, "Hits"),
            Route("POST", f"{one}/get", search.get, "Return rows by id", GET, "Rows"),
            Route("POST", f"{one}/plan", search.plan, "Choose a plan for a recall", PLAN, "Choice", timed=False),
            Route("POST", f"{one}/upsert", writes.upsert, "Add or replace rows", UPSERT, "Upserted", writes=True,
                  timed=False),
            Route("POST", f"{one}/delete", writes.delete, "Delete rows", DELETE, "Deleted", writes=True, timed=False),
            Route("POST", f"{one}/load", writes.load, "Upsert a stream of rows", answer="Lines", writes=True,
                  timed=False, stream=ROW),
            Route("POST", f"{one}/compact", writes.compact, "Compact in the background", answer="Compacting",
                  status=202, writes=True, timed=False),
        )  # fmt: skip

    async def _openapi(self, request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return Response.json({**self._description, **({"servers": [{"url": root}]} if root else {})})

    async def _live(self, request: Request) -> Response:   # noqa: ARG002
        return Response.json({"status": "live"})

    async def _ready(self, request: Request) -> Response:   # noqa: ARG002
        working = all(one.batcher.alive for one in (*self.models, *self.indexes))
        if self.draining or not working:
            reason = "shutting down" if self.draining else "a thread has ended"
            raise ApiError(503, f"not ready: {reason}", code="not_ready", retry=1)
        return Response.json({"status": "ready"})

    async def _metrics(self, request: Request) -> Response:
        own = self.metrics.text()
        if self.peers is not None and request.header(b"x-matryo-own") is None:
            own = merged([own, *await self.peers(request.header(b"authorization"))])
        return Response(own.encode(), kind=b"text/plain; version=0.0.4")

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _warm(self) -> None:
        for model in self.models:
            await model.warm()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.close)
                await send({"type": "lifespan.shutdown.complete"})
                return


@checked
def app(
    model: Any = None,
    index: Any = None,
    *,
    keys: str | Path | None = None,
    limits: Any = None,
    writable: bool = False,
    origins: Any = (),
    device: str = "auto",
    threads: int = 1,
    quiet: bool = True,
    alone: bool = False,
    show: Any = None,
    shards: Any = None,
    routing: Any = None,
) -> Service:
    """Return an ASGI app that serves models and indexes.

    ``model`` and ``index`` are each a path, a list of paths, or a dict of names and paths. A path is served under the
    name of its folder. ``writable`` opens each index as its only writer. ``keys`` is a file of API keys; those of the
    environment count too. ``origins`` are the web origins whose pages may call the API. ``threads`` share the queries
    of a batch of searches. Unless ``quiet``, each request is logged. ``alone`` says that the process does nothing
    else: forward passes then run side by side, and set PyTorch's number of threads. ``show`` lists the payload fields
    that the explorer page shows, or is a :class:`matryo.serve.Show`. ``shards`` is a dict of names and lists of the
    URLs of shards, which this app then routes to as ``routing``, a :class:`matryo.serve.Routing`, says.

    >>> from starlette.applications import Starlette                     # doctest: +SKIP
    >>> from starlette.routing import Mount                              # doctest: +SKIP
    >>> site = Starlette(routes=[Mount("/search", app(index="idx"))])    # doctest: +SKIP
    """
    limits, metrics = limits if limits is not None else Limits(), Metrics()
    sources = Sources(named(model, "model"), named(index, "index"))
    if not shards:
        sources.check()
    opened = Indexes(sources.indexes, limits, metrics, writable=writable, threads=threads)
    try:
        for name, urls in (shards or {}).items():
            opened.served[name] = RoutedIndex(name, urls, limits, metrics, writable=writable, routing=routing)
        models = Models(sources.models, limits, metrics, device, alone=alone)
        chosen = show if isinstance(show, Show) else Show(tuple(show or ()))
        return Service(models, opened, Keys.read(keys), limits, Log(quiet=quiet), metrics, origins, chosen)
    except BaseException:
        opened.close()
        raise


def _inner_path(scope: Mapping[str, Any]) -> str:
    """The path below the place where the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _pattern(path: str) -> tuple[str, ...]:
    return tuple("*" if part == "{name}" else part for part in path.split("/")[1:])


def _segments(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The segments of a path, also with the name, the third one, replaced by "*"."""
    parts = tuple(path.split("/")[1:])
    return parts, (*parts[:2], "*", *parts[3:]) if len(parts) > 2 and parts[2] else parts


def _has_body(request: Request) -> bool:
    return request.header(b"transfer-encoding") is not None or request.header(b"content-length") not in (None, b"0")
