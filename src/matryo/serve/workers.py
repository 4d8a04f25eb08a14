"""Several processes behind one socket: they map the same index files, and the first one writes for all.

The parent opens the socket, forks the processes, starts a dead one again, and passes signals on. Each process also
listens on a socket in a private folder, on which the others send it changes and ask it for its metrics.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.serve.http.errors import ApiError
from matryo.serve.http.request import Response, Stream

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import FrameType

    from matryo.serve.http.request import Request
    from matryo.serve.service import Service

__all__ = ["connect", "run_workers"]

_PAUSE = 1.0   # seconds before a process that died is started again
_PASSED = (b"content-type", b"content-length", b"authorization")


def run_workers(count: int, shared: socket.socket, work: Callable[[int, list[socket.socket], Path], None]) -> None:
    """Run ``work(number, sockets, folder)`` in ``count`` processes until a signal ends them."""
    with tempfile.TemporaryDirectory(prefix="matryo-") as name:   # mode 0700
        folder, alive, ending = Path(name), dict[int, int](), False

        def start(number: int) -> None:
            private = _listen(_place(folder, number))
            pid = os.fork()
            if pid == 0:
                for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(which, signal.SIG_DFL)
                code = 1
                try:
                    work(number, [shared, private], folder)
                    code = 0
                finally:
                    os._exit(code)
            private.close()
            alive[pid] = number

        def pass_on(which: int, frame: FrameType | None) -> None:   # noqa: ARG001
            nonlocal ending
            ending = ending or which != signal.SIGHUP
            for pid in alive:
                os.kill(pid, which)

        for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(which, pass_on)
        for number in range(count):
            start(number)
        while alive:
            pid, _ = os.wait()
            if pid in alive:
                number = alive.pop(pid)
                if not ending:
                    time.sleep(_PAUSE)
                    start(number)


def connect(service: Service, number: int, count: int, folder: Path, *, writable: bool) -> None:
    """Let the service of process ``number`` send changes to the first process, and collect everyone's metrics."""
    if number:
        service.forward = _forwarding(_place(folder, 0))
        for index in service.indexes:
            index.writable = writable

    async def peers(authorization: bytes | None) -> list[str]:
        others = [_place(folder, other) for other in range(count) if other != number]
        return [text for text in await asyncio.gather(*(_metrics(place, authorization) for place in others)) if text]

    service.peers = peers


def _forwarding(place: Path) -> Callable[[Request], Awaitable[Response | Stream]]:
    async def forward(request: Request) -> Response | Stream:
        request.length()   # refused here if it is too long
        try:
            reader, writer = await asyncio.open_unix_connection(place)
        except OSError:
            raise ApiError(503, "the process that writes is starting: try again", code="busy", retry=1) from None
        sending = asyncio.ensure_future(_send(request, writer))
        try:
            status, headers = await _head(reader)
            length = int(headers[b"content-length"]) if b"content-length" in headers else None
            parts = _body(reader, writer, sending, length)
            if headers.get(b"content-type") == b"application/x-ndjson":
                return Stream(parts, status)
            answer = Response(b"".join([part async for part in parts]), status)
        except (OSError, EOFError, ValueError):
            raise ApiError(503, "the process that writes has ended: try again", code="busy", retry=1) from None
        if b"retry-after" in headers:
            answer.headers.append((b"retry-after", headers[b"retry-after"]))
        return answer

    return forward


async def _send(request: Request, writer: asyncio.StreamWriter) -> None:
    kept = [(name, value) for name, value in request.scope["headers"] if name in _PASSED]
    if not any(name == b"content-length" for name, _ in kept):
        kept.append((b"transfer-encoding", b"chunked"))
    lines = [name + b": " + value for name, value in [(b"host", b"writer"), (b"connection", b"close"), *kept]]
    head = [f"{request.scope['method']} {request.path} HTTP/1.1".encode(), *lines]
    chunked = kept[-1][0] == b"transfer-encoding"
    writer.write(b"\r\n".join(head) + b"\r\n\r\n")
    async for part in request.parts():
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n" if chunked else part)
        await writer.drain()
    if chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).strip().split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    return int(first.split()[1]), headers


async def _body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sending: asyncio.Future[None], length: int | None
) -> AsyncIterator[bytes]:
    """The body of an answer of this length, or else in chunks."""
    try:
        if length is not None:
            yield await reader.readexactly(length)
            return
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readline()
    finally:
        sending.cancel()
        writer.close()


async def _metrics(place: Path, authorization: bytes | None) -> str:
    key = b"" if authorization is None else b"authorization: " + authorization + b"\r\n"
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_unix_connection(place)
            head = b"GET /metrics HTTP/1.1\r\nhost: peer\r\nx-matryo-own: 1\r\nconnection: close\r\n"
            writer.write(head + key + b"\r\n")
            status, headers = await _head(reader)
            body = await reader.readexactly(int(headers[b"content-length"]))
            writer.close()
            return body.decode() if status == 200 else ""
    except (OSError, EOFError, ValueError, KeyError, TimeoutError):
        return ""


def _place(folder: Path, number: int) -> Path:
    return folder / f"{number}.socket"


def _listen(place: Path) -> socket.socket:
    place.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(place))
    made.listen(128)
    made.setblocking(False)
    return made
