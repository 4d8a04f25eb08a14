"""Run the app with uvicorn: sockets, limits on connections, signals, and a shutdown that finishes accepted requests."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matryo.errors import InputError, MissingExtra
from matryo.serve.direct import Direct
from matryo.serve.http.protocol import protocol_of

if TYPE_CHECKING:
    from types import FrameType

    from matryo.serve.service import Service

__all__ = ["Address", "listen", "run_service"]

_BACKLOG = 1024
_SHORT = 64 << 10   # bytes of the body of a request that may be answered directly
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
    if not 0 <= address.port <= 65_535:
        raise InputError("a port is from 1 to 65535, or 0 to choose one", got=address.port, cure="pass --port 8080")
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
    direct, limits = Direct(service), service.limits
    protocol = protocol_of(direct.answer, direct.paths, idle=limits.idle, most=limits.connections,
                           short=min(_SHORT, limits.bytes))  # fmt: skip
    config = uvicorn.Config(
        service, http=protocol, log_config=None, access_log=False, server_header=False, lifespan="on",
        timeout_keep_alive=30, timeout_graceful_shutdown=_FINISH, ws="none", proxy_headers=False,
    )  # fmt: skip
    for which in (signal.SIGTERM, signal.SIGINT):   # uvicorn raises them again after the shutdown
        signal.signal(which, lambda *_: None)
    Server(config).run(sockets)
