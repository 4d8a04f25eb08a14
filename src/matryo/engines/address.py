"""The address of a table: a URL whose query names table and columns, with the credentials kept out of every text.

>>> address = Address.of("postgresql://ann:s3cret@db.example/shop?table=docs&column=embedding&sslmode=require")
>>> address
Address('postgresql://ann@db.example/shop?sslmode=require')
>>> address.scheme, address.options, address.url
('postgresql', {'table': 'docs', 'column': 'embedding'}, 'postgresql://ann:s3cret@db.example/shop?sslmode=require')
>>> address.redacted("no password s3cret for ann")
'no password *** for ann'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from matryo.errors import InputError

OPTIONS = ("table", "schema", "column", "id", "payload", "metric")
"""The parts of the query that are ours; the others belong to the driver."""
_SECRETS = ("password", "passwd", "passfile", "sslpassword", "api_key", "apikey", "token", "key", "secret")


@dataclass(frozen=True, repr=False)
class Address:
    """Where a table is."""

    url: str
    """For the driver: with credentials, without our options."""
    safe: str
    """For messages, rows and reprs: without credentials."""
    options: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, url: str, **options: Any) -> Address:
        """Split ``url``; ``options`` that are not None replace those of its query."""
        try:
            parts = urlsplit(url)
            password, port = parts.password, parts.port
        except ValueError as error:
            cure = "write it as postgresql://user@host:5432/database?table=docs"
            raise InputError("the URL of an engine cannot be read", got=type(error).__name__, cure=cure) from None
        if not parts.scheme:
            raise InputError("an engine needs a URL with a scheme", got="none",
                             cure="for example postgresql://user@host/database?table=docs")
        query = parse_qsl(parts.query, keep_blank_values=True)
        own = {name: value for name, value in query if name in OPTIONS}
        own |= {name: str(value) for name, value in options.items() if value is not None}
        rest = [(name, value) for name, value in query if name not in OPTIONS]
        hidden = [value for name, value in rest if name.lower() in _SECRETS and value]
        passwords = [password, unquote(password)] if password else []
        secrets = tuple(dict.fromkeys([*passwords, *hidden, *(quote(value) for value in hidden)]))
        shown = [(name, "***" if name.lower() in _SECRETS else value) for name, value in rest]
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        place = f"{parts.username}@" * bool(parts.username) + host + f":{port}" * bool(port)
        return cls(_joined(parts, parts.netloc, rest), _joined(parts, place, shown), own, secrets)

    @property
    def scheme(self) -> str:
        """The name of the engine."""
        return urlsplit(self.url).scheme

    @property
    def path(self) -> str:
        """The path of a local engine: everything after the scheme and its two slashes."""
        return unquote(urlsplit(self.url).netloc + urlsplit(self.url).path)

    def redacted(self, text: object) -> str:
        """``text`` without the credentials of this address."""
        shown = str(text).replace(self.url, self.safe)
        for secret in sorted(self.secrets, key=len, reverse=True):
            shown = shown.replace(secret, "***")
        return shown

    def __repr__(self) -> str:
        return f"Address({self.safe!r})"


def _joined(parts: Any, place: str, query: list[tuple[str, str]]) -> str:
    joined: str = urlunsplit((parts.scheme, place, parts.path, urlencode(query, safe="/*"), ""))
    # urlunsplit drops the slashes of an empty host, which libpq needs.
    return joined if joined.startswith(f"{parts.scheme}://") else joined.replace(":", "://", 1)
