"""The limits of a server: sizes, counts and times. Each has a flag of ``matryo serve`` with the same name."""

from __future__ import annotations

from dataclasses import dataclass, fields

from matryo.arguments import as_integer, as_number

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """The most that one request may hold, and the longest it may take."""

    items: int = 2048
    """Inputs per embeddings request."""
    tokens: int = 300_000
    """Tokens per embeddings request, before truncation."""
    images: int = 64
    """Images per request."""
    bytes: int = 32 << 20
    """Bytes of a request body; longer bodies are refused before they are read."""
    memory: int = 512 << 20
    """Bytes of all request bodies that are held at a time; further requests get 503."""
    queries: int = 1024
    """Queries per search."""
    hits: int = 100_000
    """Hits per search: queries × k."""
    rows: int = 10_000
    """Rows per upsert, delete or get. A bulk load has no limit."""
    wait: float = 2.0
    """Seconds that a request may have to wait for its turn; if it would be more, it gets 429 with Retry-After."""
    step: float = 0.06
    """Seconds that one forward pass or one batch of searches should take: the latency that batching may add."""
    timeout: float = 60.0
    """Seconds for the answer to a request; then 504. Writes and planning have no such limit."""
    idle: float = 15.0
    """Seconds within which the head of a request, and then each part of its body, must arrive."""
    connections: int = 1024
    """Open connections per process; further ones are closed at once."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int):
                as_integer(value, field.name, 1)
            else:
                as_number(value, field.name, 0.001, 86_400, cure=f"pass {field.name}={field.default}")
