"""A source: vectors that are read in batches, with ids and payloads if the file has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.store import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from matryo.nesting import Nesting
    from matryo.retrieve.vectors.types import Array


_BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Columns:
    """The names of the id, vector and payload columns (or keys).

    None means the defaults: "id", "vector" or "embedding", and all other columns as payload.
    """

    id: str | None = None
    vector: str | None = None
    payload: tuple[str, ...] | None = None

    def payload_of(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of ``fields`` that belong to the payload."""
        return {name: value for name, value in fields.items() if self.payload is None or name in self.payload}


@dataclass(frozen=True, eq=False)
class Source:
    """Vectors that can be read in batches."""

    name: str
    """The path as the user gave it, for messages."""
    dim: int
    count: int | None
    """The number of vectors; None if it is unknown before the end."""
    read: Callable[[int, int], Iterator[Batch]]
    """``read(rows, skip)`` yields batches of ``rows`` rows after the first ``skip``."""
    nesting: Nesting | None = None
    """The nesting of the vectors, if the source has one."""
    model: str | Mapping[str, Any] = ""
    """The model that made the vectors, as an embeddings folder records it; "" if unknown."""
    without_ids: Path | None = None
    """The file, if its rows have no ids, so that the index numbers them; None for standard input."""

    def batches(self, rows: int | None = None, skip: int = 0) -> Iterator[Batch]:
        """Yield the vectors after the first ``skip`` in batches of ``rows`` (64 MB by default).

        The rows before a bad row are yielded first; then the error names the bad row.
        """
        if rows is not None and rows < 1:
            raise InputError("a batch must have at least one row", got=rows, cure="omit it for batches of 64 MB")
        if skip < 0:
            raise InputError("skip must be 0 or more", got=skip, cure="0 reads all rows")
        done = skip
        for batch in self.read(rows or max(1, _BATCH_BYTES // (4 * self.dim)), skip):
            finite = np.isfinite(batch.vectors).all(axis=1)
            good = len(finite) if finite.all() else int(np.argmin(finite))
            if good:
                yield Batch(*(None if part is None else part[:good] for part in batch))
            if good < len(finite):
                raise InputError(
                    f"{self.name}, row {done + good}: a vector must have finite numbers",
                    got=first_bad(batch.vectors[good]),
                    cure="drop that row, or encode it again",
                )
            done += good


def first_bad(vector: Array) -> str:
    """The first number of ``vector`` that is not finite, and its position."""
    at = int(np.argmin(np.isfinite(vector)))
    return f"{vector[at]} at {at}"


def unreadable(name: object, kind: str, error: object) -> InputError:
    """The error for a file that cannot be read as ``kind``."""
    message = " ".join(str(error).split())   # on one line
    return InputError(f"{name} must be a readable {kind} file", got=message, cure="check the path, or write it again")


def is_integer(text: str) -> bool:
    """Whether ``text`` is an integer in its usual form; 007 is a name.

    >>> is_integer("-7"), is_integer("007"), is_integer("7.0")
    (True, False, False)
    """
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(text)) == text
