"""Requests and responses of ASGI: bodies with a cap and a time limit, and answers of known length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from matryo.serve.http.errors import ApiError
from matryo.serve.http.wire import dumps, loads

__all__ = ["Memory", "Request", "Response", "Stream"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class Memory:
    """The bytes of request bodies that are held at a time, with a limit."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def take(self, count: int) -> None:
        """Count ``count`` more bytes; raises if that is too many."""
        if self.held + count > self.most:
            raise ApiError(503, "the server holds too many requests: try again later", code="busy", retry=1)
        self.held += count


@dataclass
class Request:
    """One request."""

    scope: Scope
    receive: Receive
    path: str
    memory: Memory
    most: int
    """The most bytes of the body."""
    idle: float
    """Seconds within which each part of the body must arrive."""
    name: str = ""
    """The part of the path that names an index."""
    key: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts about the request, for the log."""
    taken: int = 0
    complete: bool = False
    """Whether the whole body was read."""

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return value   # type: ignore[no-any-return]
        return None

    def length(self) -> int | None:
        """The Content-Length, or None; raises if it is over the limit, before anything is read."""
        stated = self.header(b"content-length")
        length = int(stated) if stated is not None and stated.isdigit() else None
        if length is not None and length > self.most:
            raise self._too_long(length)
        return length

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body as they arrive."""
        more = True
        while more:
            try:
                async with asyncio.timeout(self.idle):
                    message = await self.receive()
            except TimeoutError:
                message_text = f"the next part of the body did not arrive within {self.idle:g} seconds"
                raise ApiError(408, message_text, code="slow_body") from None
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            more = message.get("more_body", False)
            self.complete = not more
            if message.get("body"):
                yield message["body"]

    async def body(self) -> bytes:
        """The whole body, counted in :attr:`memory` until :meth:`release`."""
        stated, read, parts = self.length(), 0, []
        self._take(stated or 0)
        async for part in self.parts():
            read += len(part)
            if read > self.most:
                raise self._too_long(read)
            if stated is None:
                self._take(len(part))
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def json(self) -> Any:
        """The body as JSON, which its content type must say."""
        kind = (self.header(b"content-type") or b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise ApiError(415, "the body must be JSON: send content-type: application/json", code="content_type")
        return loads(await self.body())

    def release(self) -> None:
        """Count the body as no longer held."""
        self.memory.held -= self.taken
        self.taken = 0

    def _take(self, count: int) -> None:
        self.memory.take(count)
        self.taken += count

    def _too_long(self, length: int) -> ApiError:
        message = f"the body must have at most {self.most:,} bytes (got {length:,}): send fewer inputs at a time"
        return ApiError(413, message, code="body_too_long")


@dataclass
class Response:
    """An answer whose body is known."""

    body: bytes
    status: int = 200
    headers: Headers = field(default_factory=list)
    kind: bytes = b"application/json"

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Headers | None = None) -> Response:
        """An answer in JSON."""
        return cls(dumps(value), status, headers or [])

    @classmethod
    def error(cls, error: ApiError) -> Response:
        """The answer for an error."""
        retry: Headers = [(b"retry-after", str(max(1, round(error.retry))).encode())] if error.retry else []
        return cls(dumps(error.body()), error.status, retry)

    async def send(self, send: Send, headers: Headers, *, head: bool) -> None:
        """Send it; without the body for a HEAD request."""
        length = str(len(self.body)).encode()
        all_headers = [(b"content-type", self.kind), (b"content-length", length), *self.headers, *headers]
        await send({"type": "http.response.start", "status": self.status, "headers": all_headers})
        await send({"type": "http.response.body", "body": b"" if head else self.body})


@dataclass
class Stream:
    """An answer whose parts are sent as they are made."""

    parts: AsyncIterator[bytes]
    status: int = 200
    headers: Headers = field(default_factory=list)
    kind: bytes = b"application/x-ndjson"

    async def send(self, send: Send, headers: Headers, *, head: bool) -> None:   # noqa: ARG002 - as Response
        """Send each part at once."""
        all_headers = [(b"content-type", self.kind), *self.headers, *headers]
        await send({"type": "http.response.start", "status": self.status, "headers": all_headers})
        async for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
