"""Hits: the nearest rows of each query, as arrays, as objects, as dicts or as a data frame.

>>> hits = Hits(np.array([["a", "b"], ["b", ""]], object), np.array([[0.9, 0.5], [0.7, -np.inf]], np.float32))
>>> [(hit.id, hit.score) for hit in hits[0]]
[('a', 0.9), ('b', 0.5)]
>>> [len(one) for one in hits]
[2, 1]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from matryo.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.retrieve.vectors.types import Array, Floats

    Payloads = list[list[dict[str, Any] | None]]
    """[queries][k]; None at unused places."""

__all__ = ["Hit", "Hits"]


class Hit(NamedTuple):
    """A row that a query found."""

    id: int | str
    score: float
    """The shortest decimal number that is the float32 score."""
    payload: dict[str, Any] | None = None
    """None unless the search was asked for payloads; {} for a row without one."""


@dataclass(frozen=True, eq=False, init=False)
class Hits:
    """The hits of each query, nearest first. Unused places have score −∞ and id −1 or ""."""

    ids: Array
    """[queries, k]: int64, or str objects, so that one long id does not widen all others."""
    scores: Floats
    """[queries, k]"""
    payloads: Payloads | None = None
    """The payload of each hit, of a search with ``payload=True``; None at unused places."""

    def __init__(self, ids: Array, scores: Floats, payloads: Payloads | None = None) -> None:
        # The generated method of a frozen dataclass takes longer, and every search makes Hits.
        self.__dict__.update(ids=ids, scores=scores, payloads=payloads)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, query: int) -> list[Hit]: ...
    @overload
    def __getitem__(self, query: slice) -> Hits: ...
    def __getitem__(self, query: int | slice) -> list[Hit] | Hits:
        """The hits of one query without the unused places, or ``Hits`` of some of the queries."""
        if isinstance(query, slice):
            return Hits(self.ids[query], self.scores[query], None if self.payloads is None else self.payloads[query])
        used = np.flatnonzero(np.isfinite(self.scores[query])).tolist()
        ids, scores = self.ids[query][used].tolist(), self.scores[query][used].astype(str).astype(np.float64).tolist()
        own = None if self.payloads is None else self.payloads[query]
        payloads = [None if own is None else own[place] for place in used]
        return list(map(Hit, ids, scores, payloads))

    def __iter__(self) -> Iterator[list[Hit]]:
        """Iterate over the queries: the hits of each."""
        return (self[query] for query in range(len(self)))

    def to_dicts(self) -> list[list[dict[str, Any]]]:
        """For each query, its hits as dicts with id, score and, if the search was asked for it, payload.

        They are plain JSON values.
        """
        keys = Hit._fields if self.payloads is not None else Hit._fields[:2]
        return [[dict(zip(keys, hit, strict=False)) for hit in hits] for hits in self]

    def to_frame(self) -> Any:
        """All hits as a pandas DataFrame: query (its row number), rank (from 1), id, score and the payload fields.

        A payload field with one of these names becomes ``payload.NAME``.
        """
        with MissingExtra.unless_installed("pandas", "frames"):
            import pandas
        query, place = np.nonzero(np.isfinite(self.scores))
        columns: dict[str, Any] = {
            "query": query, "rank": place + 1, "id": self.ids[query, place], "score": self.scores[query, place]
        }  # fmt: skip
        if self.payloads is not None:
            places = zip(query.tolist(), place.tolist(), strict=True)
            payloads = [self.payloads[row][column] or {} for row, column in places]
            for field in dict.fromkeys(name for payload in payloads for name in payload):
                name = field
                while name in columns:
                    name = f"payload.{name}"
                columns[name] = [payload.get(field) for payload in payloads]
        return pandas.DataFrame(columns)


def widened(array: Array, width: int, value: Any) -> Array:
    """``array`` [n, ≤ width] with columns of ``value`` up to ``width``."""
    if array.shape[1] == width:
        return array
    wide = np.full((len(array), width), value, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
