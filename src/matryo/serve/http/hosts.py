"""The Host header: a server that trusts its own machine must not answer to other names.

A page of any site may point its own name at 127.0.0.1 (DNS rebinding), and then reads the answers of a server there as
its own. Its requests still name that site in the Host header.

>>> names = frozenset({"search.example.org"})
>>> [is_allowed(host, names) for host in ("localhost:8080", "127.0.0.1", "[::1]:8080", "search.example.org")]
[True, True, True, True]
>>> [is_allowed(host, names) for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "")]
[False, False, False, False]
"""

from __future__ import annotations

import re

from matryo.serve.http.errors import ApiError
from matryo.serve.http.request import Request

__all__ = ["check_host", "is_allowed"]

_HERE = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])")


def check_host(request: Request, names: frozenset[str]) -> None:
    """Raise unless the request names this machine, or one of ``names``. Private sockets of workers are trusted."""
    server = request.scope.get("server")
    if server is not None and server[1] is None:   # a Unix socket has no port
        return
    host = (request.header(b"host") or b"").decode("latin-1")
    if not is_allowed(host, names):
        message = f"this server is not {host[:100]!r}: use http://localhost, or start it with --allow-host NAME"
        raise ApiError(421, message, code="wrong_host")


def is_allowed(host: str, names: frozenset[str]) -> bool:
    """Whether ``host``, with or without a port, is this machine or one of ``names``."""
    name = re.sub(r":\d+$", "", host).lower()
    return _HERE.fullmatch(name) is not None or name in names
