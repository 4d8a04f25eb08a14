"""API keys from a file or the environment, compared in constant time, each with its own rate and rights.

>>> keys = Keys.parse(["# comment", "alice s3cret-s3cret-s3cret rate=2", "bob an0ther-an0ther-an0ther read-only"])
>>> keys.find(b"Bearer s3cret-s3cret-s3cret").name
'alice'
>>> keys.find(b"Bearer wrong")
Traceback (most recent call last):
...
matryo.serve.http.errors.ApiError: the API key is wrong: send a key of this server as Authorization: Bearer KEY
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.serve.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["VARIABLE", "Key", "Keys"]

VARIABLE = "MATRYO_API_KEYS"
"""The environment variable with keys, separated by commas."""
_SHORTEST = 16   # characters
_BURST = 2.0   # seconds of a key's rate that it may use at once


@dataclass
class Key:
    """A key and how much it was used lately."""

    name: str
    digest: bytes
    rate: float | None = None
    """Requests per second; None for no limit."""
    may_write: bool = True
    left: float = 0.0
    seen: float = 0.0

    def count(self) -> None:
        """Count one request; raises if the key has used up its rate."""
        if self.rate is None:
            return
        now, most = time.monotonic(), max(1.0, _BURST * self.rate)
        self.left = min(most, self.left + (now - self.seen) * self.rate) if self.seen else most
        self.seen = now
        if self.left < 1:
            message = f"the key {self.name} may send {self.rate:g} requests per second: slow down"
            raise ApiError(429, message, code="rate_limit_exceeded", retry=(1 - self.left) / self.rate)
        self.left -= 1


class Keys:
    """The keys of a server; without keys, every request is allowed."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    @classmethod
    def parse(cls, lines: Iterable[str], share: float = 1.0) -> Keys:
        """Read lines ``NAME KEY [rate=REQUESTS_PER_SECOND] [read-only]``; this process gets ``share`` of each rate."""
        keys = []
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            rule = "a line of keys is NAME KEY [rate=N] [read-only]"
            if len(words) < 2:
                raise InputError(
                    rule, got=f"line {number} with {len(words)} word", cure="for example: alice KEY rate=50"
                )
            if len(words[1]) < _SHORTEST:
                cure = "make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
                raise InputError(f"a key has at least {_SHORTEST} characters", got=f"line {number}", cure=cure)
            rate, may_write = None, True
            for option in words[2:]:
                if option == "read-only":
                    may_write = False
                elif option.startswith("rate=") and _is_rate(option[5:]):
                    rate = float(option[5:]) * share
                else:
                    raise InputError(rule, got=f"{option!r} on line {number}", cure="write rate=50 or read-only")
            keys.append(Key(words[0], _digest(words[1].encode()), rate, may_write))
        return cls(keys)

    @classmethod
    def read(cls, path: str | Path | None, share: float = 1.0) -> Keys:
        """The keys of a file, and those of the environment variable."""
        given = [key.strip() for key in os.environ.get(VARIABLE, "").split(",")]
        lines = [f"env-{number} {key}" for number, key in enumerate(filter(None, given), 1)]
        if path is not None:
            try:
                lines = [*Path(path).read_text(encoding="utf-8").splitlines(), *lines]
            except (OSError, ValueError) as error:
                raise InputError("cannot read the keys", got=f"{path}: {error}", cure="check --keys") from error
        keys = cls.parse(lines, share)
        if path is not None and not keys:
            raise InputError("a file of keys must have a key", got=path, cure="write a line: alice KEY")
        return keys

    def find(self, authorization: bytes | None) -> Key | None:
        """The key of a request, or None if the server has no keys; raises if it is missing or wrong."""
        if not self._keys:
            return None
        scheme, _, given = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not given:
            raise ApiError(401, "an API key is missing: send Authorization: Bearer KEY", code="invalid_api_key")
        digest, match = _digest(given.strip()), None
        for key in self._keys:   # all of them: the time must not depend on which one matches
            if hmac.compare_digest(key.digest, digest):
                match = key
        if match is None:
            message = "the API key is wrong: send a key of this server as Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")
        return match


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_rate(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
