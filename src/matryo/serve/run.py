"""Run the app with uvicorn: sockets, limits on connections, signals, and a shutdown that finishes accepted requests."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from types import FrameType

    from matryo.serve.service import Service

__all__ = ["Address", "listen", "run_service"]

_HEAD = 64 << 10   # bytes of the head of a request
_BACKLOG = 1024
_SWITCH = 0.0005   # seconds after which a thread gives way: searches and forward passes run beside the event loop
_FINISH = 30   # seconds for accepted requests to end after a signal


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int = 8080

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def listen(address: Address) -> socket.socket:
    """Open the socket; port 0 chooses a free one."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        rule = f"cannot listen on {address.host} port {address.port}"
        raise InputError(
            rule, got=error.strerror or error, cure="choose another --port, or end what uses it"
        ) from error
    made.setblocking(False)
    return made


def run_service(service: Service, sockets: list[socket.socket], started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads. Calls ``started`` when the sockets are served."""
    with MissingExtra.unless_installed("uvicorn", "serve"):
        import uvicorn

    class Server(uvicorn.Server):
        """Says when it takes requests, and when it stops to."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                loop = asyncio.get_running_loop()
                if hasattr(signal, "SIGHUP"):
                    loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(service.reload()))
                started()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            service.draining = True
            super().handle_exit(sig, frame)

    sys.setswitchinterval(_SWITCH)
    config = uvicorn.Config(
        service, http=_protocol(service), log_config=None, access_log=False, server_header=False, lifespan="on",
        timeout_keep_alive=30, timeout_graceful_shutdown=_FINISH, ws="none", proxy_headers=False,
    )  # fmt: skip
    for which in (signal.SIGTERM, signal.SIGINT):   # uvicorn raises them again after the shutdown
        signal.signal(which, lambda *_: None)
    Server(config).run(sockets)


def _protocol(service: Service) -> Any:
    """uvicorn's protocol with a limit on connections, and on the time and the length of the head of a request."""
    with MissingExtra.unless_installed("httptools", "serve"):
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    limits = service.limits

    class Protocol(HttpToolsProtocol):
        """Closes connections that send no request, or one without an end."""

        waiting: asyncio.TimerHandle | None = None
        head = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.close()
            else:
                self._await_head()

        def data_received(self, data: bytes) -> None:
            if self.waiting is not None:
                self.head += len(data)
            elif self.cycle is None or self.cycle.response_complete:   # the next request of this connection
                self.head = len(data)
                self._await_head()
            super().data_received(data)
            if self.waiting is not None and self.head > _HEAD:
                self._refuse()

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._stop_waiting()
            self.waiting = self.loop.call_later(limits.idle, self._refuse)

        def _stop_waiting(self) -> None:
            if self.waiting is not None:
                self.waiting.cancel()
                self.waiting = None

        def _refuse(self) -> None:
            self._stop_waiting()
            if not self.transport.is_closing():
                self.transport.close()

    return Protocol
