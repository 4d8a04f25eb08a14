"""The view of one index: the fields that are shown, and the texts, the costs and the maps of its rows.

Each part is computed when it is first needed, and again when the index has changed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from matryo.errors import UnknownId
from matryo.serve.explorer.costs import costs
from matryo.serve.explorer.maps import Plane
from matryo.serve.explorer.show import Show, Shown
from matryo.serve.explorer.words import MOST_ROWS, Catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve import Index

    Id = int | str

__all__ = ["View"]

_GUESSED = 100   # rows whose payloads decide which fields are shown
_DRAWN = 2000   # rows of a map
_CLASSES = 10   # that have a colour of their own
_STEP = 2000   # rows that are read at a time


@dataclass
class View:
    """An index at one state; all methods may take seconds for a large index, and are called in a thread."""

    index: Index
    state: str
    show: Show
    unit: bool
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _measuring: threading.Lock = field(default_factory=threading.Lock)
    _planes: dict[int, Plane] = field(default_factory=dict)

    @cached_property
    def shown(self) -> Shown:
        """The fields that are shown."""
        count = min(_GUESSED, len(self.index))
        return Shown.of(self.index.get(self.index.sample(count, 0)[0])[1] if count else [], self.show)

    def items(self, ids: Sequence[Id]) -> list[dict[str, Any]]:
        """Rows as the page shows them; those that were deleted meanwhile are left out."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return []
        try:
            payloads = self.index.get(wanted)[1]
        except UnknownId:
            wanted = [id for id in wanted if id in self.index]
            payloads = self.index.get(wanted)[1] if wanted else []
        return [self.shown.item(id, payload) for id, payload in zip(wanted, payloads, strict=True)]

    def find(self, typed: str, count: int) -> list[Id]:
        """The rows that have the typed words."""
        with self._lock:
            catalogue = self._catalogue
        return catalogue.find(typed, count)

    def costs(self) -> dict[str, Any]:
        """The cost and the recall of each dim."""
        with self._measuring:   # may take long; maps and words do not wait for it
            return self._costs

    def map(self, dim: int, ids: Sequence[Id], *, points: bool = True) -> dict[str, Any]:
        """The places of a sample of rows at ``dim``, unless without ``points``, and of the rows ``ids``."""
        with self._lock:
            plane, (sample, vectors, titles, classes) = self._plane(dim), self._sample
        wanted = [id for id in dict.fromkeys(ids) if id in self.index]
        marked = plane.place(self.index.get(wanted)[0]).round(4).tolist() if wanted else []
        marks = [{"id": id, "x": x, "y": y} for id, (x, y) in zip(wanted, marked, strict=True)]
        if not points:
            sample, vectors, titles, classes = [], vectors[:0], [], []
        names, places = _largest(classes), plane.place(vectors)
        return {
            "dim": dim, "share": plane.share, "classes": names, "ids": sample, "titles": titles,
            "class": [names.index(one) if one in names else -1 for one in classes],
            "x": places[:, 0].round(4).tolist(), "y": places[:, 1].round(4).tolist(), "marks": marks,
        }  # fmt: skip

    @cached_property
    def _catalogue(self) -> Catalogue:
        catalogue, ids = Catalogue(), self.index.ids[:MOST_ROWS].tolist()
        for start in range(0, len(ids), _STEP):
            part = ids[start : start + _STEP]
            for id, payload in zip(part, self.index.get(part)[1], strict=True):
                catalogue.add(id, self.shown.words(payload))
        return catalogue

    @cached_property
    def _costs(self) -> dict[str, Any]:
        return costs(self.index, self.shown)

    @cached_property
    def _sample(self) -> tuple[list[Id], Any, list[str], list[str]]:
        ids, vectors = self.index.sample(min(_DRAWN, len(self.index)), 0)
        payloads = self.index.get(ids)[1]
        titles = [(self.shown.words(payload) or [""])[0] or str(id) for id, payload in zip(ids, payloads, strict=True)]
        return ids.tolist(), vectors, titles, [self.shown.group_of(payload) for payload in payloads]

    def _plane(self, dim: int) -> Plane:
        if dim not in self._planes:
            full = self.index.nesting.dim
            like = None if dim == full else self._plane(full)
            self._planes[dim] = Plane.fit(self._sample[1], dim, like, unit=self.unit)
        return self._planes[dim]


def _largest(classes: Sequence[str]) -> list[str]:
    """The most frequent classes, in the order of the alphabet, so that each keeps its colour."""
    counts = {name: classes.count(name) for name in set(classes) if name}
    return sorted(sorted(counts, key=lambda name: (-counts[name], name))[:_CLASSES])
