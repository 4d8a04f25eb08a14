"""A client of HTTP/1.1 on asyncio: connections stay open per server and event loop, and each call has a deadline."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from matryo.errors import InputError

__all__ = ["Answer", "Server"]

_IDLE = 64   # connections kept open
_LONGEST = 1 << 30   # bytes of an answer
_LINE = 64 << 10


class Answer(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: bytes


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(eq=False)
class Server:
    """A server at ``http://host:port`` or ``https://host:port``, with an optional path in front of all paths."""

    url: str
    key: str = ""
    """An API key for it."""
    _idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Connection]] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            port, sound = parts.port, parts.scheme in ("http", "https") and parts.hostname
        except ValueError:
            port, sound = None, False
        if not sound or parts.query or parts.username:
            cure = "for example http://10.0.0.5:8080"
            raise InputError("a shard must be the URL of a server", got=repr(self.url), cure=cure)
        self.host, self.secure = parts.hostname or "", parts.scheme == "https"
        self.port = port or (443 if self.secure else 80)
        self.path = parts.path.rstrip("/")
        self.name = parts.netloc
        """Host and port, for logs."""

    async def request(self, method: str, path: str, body: bytes = b"", *, timeout: float) -> Answer:
        """Send a request; raises OSError, EOFError, ValueError or TimeoutError if there is no whole answer."""
        async with asyncio.timeout(timeout):
            idle = self._idle.setdefault(asyncio.get_running_loop(), [])
            while idle:   # a kept connection may have been closed by the server meanwhile: then try the next
                connection = idle.pop()
                if connection.writer.is_closing() or connection.reader.at_eof():
                    connection.writer.close()
                    continue
                with suppress(ConnectionError, EOFError):
                    return await self._ask(connection, idle, method, path, body)
            context = ssl.create_default_context() if self.secure else None
            made = await asyncio.open_connection(self.host, self.port, ssl=context, limit=_LINE)
            return await self._ask(_Connection(*made), idle, method, path, body)

    def forget(self) -> None:
        """Close the kept connections of the running event loop, which is about to end."""
        for connection in self._idle.pop(asyncio.get_running_loop(), []):
            connection.writer.close()

    async def _ask(
        self, connection: _Connection, idle: list[_Connection], method: str, path: str, body: bytes
    ) -> Answer:
        reader, writer = connection
        try:
            head = [f"{method} {self.path}{path} HTTP/1.1", f"host: {self.name}", f"content-length: {len(body)}"]
            head += ["content-type: application/json"] if body else []
            head += [f"authorization: Bearer {self.key}"] if self.key else []
            writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
            await writer.drain()
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).strip().split(b"\r\n")
            pairs = (line.partition(b":") for line in lines)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            length = int(headers[b"content-length"]) if b"content-length" in headers else -1
            if not 0 <= length <= _LONGEST:
                raise ValueError("an answer needs a length")
            answer = Answer(int(first.split()[1]), await reader.readexactly(length))
        except BaseException:   # also a deadline or a hedged request that is no longer needed
            writer.close()
            raise
        if headers.get(b"connection", b"").lower() == b"close" or len(idle) >= _IDLE:
            writer.close()
        else:
            idle.append(connection)
        return answer
