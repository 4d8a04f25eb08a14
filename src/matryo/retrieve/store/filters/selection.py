"""A selection: some of the rows 0 … count − 1, as sorted positions where they are few, else as a mask.

>>> few = Selection.of_rows([np.array([700, 3])], 1000)
>>> many = Selection.of_mask(np.arange(1000) < 500)
>>> (few & many).positions.tolist(), (few | many).size, (~few).size, few.is_small, many.is_small
([3], 501, 998, True, False)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve.vectors.types import Bools, Indices

_SMALL = 32  # positions are kept, without a mask, for at most one row in so many: sorting them takes less time


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of a segment, or of a part of it. Positions and mask are computed from each other on demand."""

    count: int
    """The number of all rows, selected or not."""
    _mask: Bools | None = None
    _positions: Indices | None = None

    @classmethod
    def of_mask(cls, mask: Bools) -> Selection:
        """The rows where ``mask`` is True."""
        return cls(len(mask), _mask=mask)

    @classmethod
    def of_rows(cls, parts: Sequence[Indices], count: int) -> Selection:
        """The rows in any of ``parts``, each in any order."""
        if sum(map(len, parts)) * _SMALL <= count:
            rows = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
            rows = np.sort(rows)
            # A row may be in several parts, and several times in one that holds the elements of lists.
            kept = np.append(rows[:-1] != rows[1:], True) if len(rows) else slice(0)
            return cls(count, _positions=rows[kept].astype(np.int64))
        mask = np.zeros(count, np.bool_)
        for rows in parts:
            mask[rows] = True
        return cls(count, _mask=mask)

    @classmethod
    def joined(cls, selections: Sequence[Selection]) -> Selection:
        """The selections of consecutive parts, as one."""
        if len(selections) == 1:
            return selections[0]
        count = sum(each.count for each in selections)
        if any(not each.is_small for each in selections):
            return cls.of_mask(np.concatenate([each.mask for each in selections]))
        starts = np.cumsum([0, *(each.count for each in selections[:-1])])
        moved = [each.positions + start for each, start in zip(selections, starts, strict=True)]
        return cls(count, _positions=np.concatenate(moved))

    @property
    def is_small(self) -> bool:
        """Whether it holds positions, and no mask."""
        return self._mask is None

    @cached_property
    def mask(self) -> Bools:
        """[count]: True for selected rows."""
        if self._mask is not None:
            return self._mask
        mask = np.zeros(self.count, np.bool_)
        mask[self.positions] = True
        return mask

    @cached_property
    def positions(self) -> Indices:
        """The selected rows, sorted."""
        return self._positions if self._positions is not None else np.flatnonzero(self.mask)

    @cached_property
    def size(self) -> int:
        """The number of selected rows."""
        return len(self._positions) if self._positions is not None else int(np.count_nonzero(self.mask))

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return sum(array.nbytes for array in (self._mask, self._positions) if array is not None)

    def __and__(self, other: Selection) -> Selection:
        if self.is_small or other.is_small:
            small, large = (self, other) if self.is_small else (other, self)
            if large.is_small:
                kept = np.intersect1d(small.positions, large.positions, assume_unique=True)
            else:
                kept = small.positions[large.mask[small.positions]]
            return Selection(self.count, _positions=kept)
        return Selection.of_mask(self.mask & other.mask)

    def __or__(self, other: Selection) -> Selection:
        if self.is_small and other.is_small:
            return Selection.of_rows([self.positions, other.positions], self.count)
        return Selection.of_mask(self.mask | other.mask)

    def __invert__(self) -> Selection:
        return Selection.of_mask(~self.mask)
