"""Which rows of a segment match a filter, computed from columns and kept for later searches.

A segment consists of parts, each with columns of its own. A segment on disk is one part. Recent rows, which become
more from commit to commit, are several parts: only the last ones are read again.

>>> from matryo.retrieve.store.filters.language import Filter
>>> part = Part(0, 3)
>>> part.columns["year"] = Column.of(np.arange(2), [2020, 2021])
>>> part.matching(Filter.of({"year": {"$ne": 2020}}).condition).positions.tolist()
[1, 2]
"""

from __future__ import annotations

from collections import OrderedDict
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from matryo.retrieve.store.filters.column import Column
from matryo.retrieve.store.filters.language import Every, Not, Some
from matryo.retrieve.store.filters.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from matryo.retrieve.store.filters.language import Condition

_BYTES = 64 << 20  # that a cache keeps of a part, or of a snapshot
_LEAST, _MOST = 4, 4096  # values that a cache keeps whatever their size, and at most


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=_Sized)


class Cache(Generic[Value]):
    """The values of the latest keys: as many as take 64 MiB, and at least 4."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made if it is not there."""
        known = self._values.get(key)
        if known is not None:
            self._values.move_to_end(key)
            return known
        value = self._values[key] = make()
        self._bytes += value.nbytes
        while len(self._values) > _MOST or (self._bytes > _BYTES and len(self._values) > _LEAST):
            self._bytes -= self._values.popitem(last=False)[1].nbytes
        return value


class Part:
    """Consecutive rows of a segment: their columns by field, and the rows that match by condition."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.columns: dict[str, Column] = {}
        self._known: Cache[Selection] = Cache()

    def matching(self, condition: Condition) -> Selection:
        """The rows that match, whether they are alive or not. The columns of its fields must be there."""
        return self._known.get(condition, lambda: self._evaluate(condition))

    def _evaluate(self, condition: Condition) -> Selection:
        match condition:
            case Not():
                return ~self.matching(condition.part)
            case Every() | Some():
                every = isinstance(condition, Every)
                if not condition.parts:
                    return Selection.of_mask(np.full(self.count, every))
                return reduce(and_ if every else or_, map(self.matching, condition.parts))
            case _:
                return Selection.of_rows(self.columns[condition.field].select(condition), self.count)


def extended(parts: tuple[Part, ...], count: int) -> tuple[Part, ...]:
    """Return ``parts`` and one for ``count`` more rows. Each part has more than twice the rows of the next.

    >>> parts = ()
    >>> for _ in range(7):
    ...     parts = extended(parts, 1)
    >>> [(part.first, part.count) for part in parts]
    [(0, 5), (5, 2)]
    """
    kept, first = list(parts), sum(part.count for part in parts)
    while kept and kept[-1].count <= 2 * count:
        last = kept.pop()
        first, count = last.first, count + last.count
    return (*kept, Part(first, count))
