"""Masks: which rows of a segment match a filter, computed from columns and kept for later searches.

A segment consists of parts, each with columns of its own. A segment on disk is one part. Recent rows, which become
more from commit to commit, are several parts: only the last ones are read again.

>>> from matryo.retrieve.store.filters.language import Filter
>>> part = Part(0, 3)
>>> part.columns["year"] = Column.of(np.arange(2), [2020, 2021])
>>> part.mask(Filter.of({"year": {"$ne": 2020}}).condition).tolist()
[False, True, True]
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from matryo.retrieve.store.filters.column import Column, mask_of
from matryo.retrieve.store.filters.language import Every, Not, Some

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from matryo.retrieve.store.filters.language import Condition
    from matryo.retrieve.vectors.types import Bools

_BYTES = 64 << 20   # of masks that a part or a snapshot keeps; one byte per row and mask

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """The values of the latest keys: as many as have 64 MiB of masks of ``rows`` rows, and at least 4."""

    def __init__(self, rows: int) -> None:
        self._most = min(max(4, _BYTES // max(rows, 1)), 1024)
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made if it is not there."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make()
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


class Part:
    """Consecutive rows of a segment: their columns by field, and masks by condition."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.columns: dict[str, Column] = {}
        self._masks: Cache[Bools] = Cache(count)

    def mask(self, condition: Condition) -> Bools:
        """The rows that match, [count], whether they are alive or not. The columns of its fields must be there."""
        return self._masks.get(condition, lambda: self._evaluate(condition))

    def _evaluate(self, condition: Condition) -> Bools:
        match condition:
            case Not():
                return ~self.mask(condition.part)
            case Every() | Some():
                join = np.logical_and if isinstance(condition, Every) else np.logical_or
                mask = np.full(self.count, isinstance(condition, Every))
                for part in condition.parts:
                    join(mask, self.mask(part), out=mask)
                return mask
            case _:
                return mask_of(self.columns[condition.field].select(condition), self.count)


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
