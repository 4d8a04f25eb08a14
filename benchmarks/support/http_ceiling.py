"""Servers that read a request and answer with constant bytes: no server on the same framework can be faster.

    python -m uvicorn --app-dir benchmarks support.http_ceiling:bare
"""

from __future__ import annotations

from typing import Any

_ANSWER = b'{"results":[[%s]]}' % b",".join(b'{"id":%d,"score":0.73214567}' % row for row in range(10))


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app without a framework."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _ANSWER})


def starlette() -> Any:
    """The same in Starlette: a route, a parsed body and a response."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        await request.json()
        return Response(_ANSWER, media_type="application/json")

    async def ready(request: Request) -> Response:   # noqa: ARG001
        return Response()

    return Starlette(routes=[Route("/", ready), Route("/v1/indexes/{name}/search", answer, methods=["POST"])])
