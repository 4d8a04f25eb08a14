"""uvicorn's protocol with a time limit on heads, and with short answers that need no ASGI call.

A call of an ASGI app costs a task, a scope, and messages: more than some searches take. So the whole of a short request
to some paths is first offered to a function; the app gets what that leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from matryo.errors import MissingExtra

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    Base = HttpToolsProtocol
else:
    Base = object   # the class of uvicorn comes behind it, when a server is started

__all__ = ["Exchange", "protocol_of"]

_HEAD = 64 << 10   # bytes of the head of a request
_STATUS = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_SPECIAL = frozenset((b"expect", b"transfer-encoding", b"upgrade"))


class _Protocol(Base):
    """Closes connections that send no request, or one without an end."""

    idle: float
    """Seconds for a head, and for the body of a short request."""
    most: int
    """Open connections."""
    paths: Container[bytes]
    answer: Callable[[Exchange, bytes, bytes], bool]
    """Answers a request, given its path and its body; or returns False."""
    short: int
    """The most bytes of a body that is offered to :attr:`answer`."""
    waiting: asyncio.TimerHandle | None = None
    head = 0   # bytes of the head so far
    begun = False   # the head, or the body of a short request, is not complete
    held: list[bytes] | None = None
    """The parts of the body of a short request, until it is complete."""
    fields: Mapping[bytes, bytes]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        self.head = self.head + len(data) if self.begun else len(data)
        super().data_received(data)
        if self.begun and (self.cycle is None or self.cycle.response_complete):
            if self.waiting is None:
                self._await_head()
            if self.head > _HEAD and self.held is None:
                self._refuse()

    def on_message_begin(self) -> None:
        self.begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_short():
            self.held = []   # the timer also limits the time for the body
        else:
            self._ended()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.held is None:
            super().on_body(body)
        else:
            self.held.append(body)

    def on_message_complete(self) -> None:
        if self.held is not None:
            exchange = Exchange(self, self.fields, keep_alive=self.parser.should_keep_alive())
            if self.answer(exchange, self.url, b"".join(self.held)):
                self.held = None
                self._ended()
                return
            self._hand_over()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.held = None
        self._ended()
        super().connection_lost(exc)

    def _is_short(self) -> bool:
        """Whether the request may be answered directly, once its body is complete."""
        if self.url not in self.paths or self.parser.get_method() != b"POST" or self.flow.write_paused:
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        fields = self.fields = dict(self.headers)
        length = fields.get(b"content-length", b"")
        return (
            len(fields) == len(self.headers)   # none is there twice
            and length.isdigit() and len(length) < 10 and 0 < int(length) <= self.short
            and fields.keys().isdisjoint(_SPECIAL)
            and self.parser.get_http_version() == "1.1"
        )  # fmt: skip

    def _hand_over(self) -> None:
        """Call the app with what has arrived."""
        held, self.held = self.held or [], None
        self._ended()
        super().on_headers_complete()
        for part in held:
            super().on_body(part)

    def _await_head(self) -> None:
        self.waiting = self.loop.call_later(self.idle, self._refuse)

    def _ended(self) -> None:
        """End the time limit: what it is for has arrived."""
        self.begun = False
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _refuse(self) -> None:
        if self.held is not None:   # the app answers 408 if the rest does not come
            self._hand_over()
            return
        self._ended()
        if not self.transport.is_closing():
            self.transport.close()


def protocol_of(
    answer: Callable[[Exchange, bytes, bytes], bool], paths: Container[bytes], *, idle: float, most: int, short: int
) -> type[HttpToolsProtocol]:
    """The protocol of a server, of which uvicorn makes one per connection; ``answer`` is offered short requests."""
    with MissingExtra.unless_installed("httptools", "serve"):
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    own = {"answer": staticmethod(answer), "paths": paths, "idle": idle, "most": most, "short": short}
    return type("Protocol", (_Protocol, HttpToolsProtocol), own)


class Exchange:
    """A request that is answered without a call of the app; it stands where uvicorn keeps the call."""

    more_body = False
    disconnected = False

    def __init__(self, protocol: HttpToolsProtocol, fields: Mapping[bytes, bytes], *, keep_alive: bool) -> None:
        self.protocol, self.fields, self.keep_alive = protocol, fields, keep_alive
        self.start = time.perf_counter()
        self.response_complete = False
        self.message_event = self   # uvicorn sets it when the client leaves; nobody waits for that here

    def begin(self) -> None:
        """Let the next requests of this connection wait for the answer to this one."""
        self.protocol.cycle = self   # type: ignore[assignment]

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        """Send the answer; ``head`` has the lines of its headers but the length."""
        self.response_complete = True
        protocol = self.protocol
        transport = protocol.transport
        if not transport.is_closing():
            own = [b"%b: %b\r\n" % field for field in protocol.server_state.default_headers]
            close = b"" if self.keep_alive else b"connection: close\r\n"
            length = b"content-length: %d\r\n\r\n" % len(body)
            transport.write(b"".join((_STATUS[status], *own, close, head, length, body)))
            if not self.keep_alive:
                transport.close()
        protocol.on_response_complete()

    def set(self) -> None:
        """Do nothing."""
