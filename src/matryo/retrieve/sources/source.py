"""A source: vectors that are read a batch at a time, with ids and payloads where they have any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.store import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from matryo.nesting import Nesting

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Columns", "Source", "first_bad", "unreadable"]

_BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Columns:
    """Which column, or key, has what: None is "id", "vector" or "embedding", and all others for the payload."""

    id: str | None = None
    vector: str | None = None
    payload: tuple[str, ...] | None = None

    def payload_of(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``fields`` that are asked for."""
        return {name: value for name, value in fields.items() if self.payload is None or name in self.payload}


@dataclass(frozen=True, eq=False)
class Source:
    """Vectors that can be read a batch at a time."""

    name: str
    """The path as it was given, for messages."""
    dim: int
    count: int | None
    """How many vectors there are, where that is known before the end."""
    has_ids: bool
    read: Callable[[int, int], Iterator[Batch]]
    """Batches of so many rows, after those that are skipped."""
    nesting: Nesting | None = None
    """The dims at which the vectors are meant to be read, where the source says so."""

    def batches(self, rows: int | None = None, skip: int = 0) -> Iterator[Batch]:
        """The vectors, ``rows`` at a time (64 MB by default), but for the first ``skip``, which are not looked at.

        What comes before a row that cannot be used is given first, and then the error that names it.
        """
        _check_counts(rows, skip)
        done = skip
        for batch in self.read(rows or max(1, _BATCH_BYTES // (4 * self.dim)), skip):
            finite = np.isfinite(batch.vectors).all(axis=1)
            good = len(finite) if finite.all() else int(np.argmin(finite))
            if good:
                yield Batch(*(None if part is None else part[:good] for part in batch))
            if good < len(finite):
                raise InputError(
                    f"{self.name}, row {done + good}: a vector must be of finite numbers",
                    got=first_bad(batch.vectors[good]),
                    cure="drop that row, or encode it again",
                )
            done += good


def first_bad(vector: Array) -> str:
    """The first number of ``vector`` that is not finite, and where it is."""
    at = int(np.argmin(np.isfinite(vector)))
    return f"{vector[at]} at {at}"


def unreadable(name: object, kind: str, error: object) -> InputError:
    """The error for a file that is not what it is taken for."""
    told = " ".join(str(error).split())   # one line, whatever a library says
    return InputError(f"{name} must be a readable {kind} file", got=told, cure="check the path, or write it again")


def _check_counts(rows: int | None, skip: int) -> None:
    if rows is not None and rows < 1:
        raise InputError("a batch must have a row or more", got=rows, cure="leave it out for 64 MB of them")
    if skip < 0:
        raise InputError("the rows to skip must be 0 or more", got=skip, cure="0 reads all")
