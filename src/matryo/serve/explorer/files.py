"""The files of the page, and the headers that keep it to itself: no script, style or request from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from matryo.serve.http.errors import ApiError
from matryo.serve.http.request import Headers, Response

__all__ = ["file", "page"]

_FOLDER = Path(__file__).parent / "page"
_KINDS = {".js": b"text/javascript; charset=utf-8", ".css": b"text/css; charset=utf-8", ".svg": b"image/svg+xml"}
_SAFE: Headers = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"),
                  (b"cache-control", b"no-cache"), (b"cross-origin-opener-policy", b"same-origin")]  # fmt: skip


def page(*, urls: bool) -> Response:
    """The page; with ``urls``, pictures may come from elsewhere."""
    images = "'self' data: blob:" + (" http: https:" if urls else "")
    policy = (f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src {images}; "
              "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
              "require-trusted-types-for 'script'")  # fmt: skip
    headers = [(b"content-security-policy", policy.encode()), *_SAFE]
    return Response(_read("index.html"), headers=headers, kind=b"text/html; charset=utf-8")


def file(name: str) -> Response:
    """A script or a style of the page, by its name."""
    if name not in _names() or name == "index.html":
        raise ApiError(404, f"the page has no file {name:.60}", code="no_such_path")
    return Response(_read(name), headers=list(_SAFE), kind=_KINDS[Path(name).suffix])


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in _FOLDER.iterdir() if path.suffix in (*_KINDS, ".html"))


@cache
def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
