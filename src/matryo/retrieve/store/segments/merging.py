"""The rule for merging segments. Every search reads all segments, so there must be few.

Segments of similar size are merged, so each row is rewritten once per eightfold growth of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOGETHER = 8   # the fewest segments that are merged into one
_LARGEST = 4   # none of them may hold more than a quarter of all their rows


def to_merge(counts: Sequence[int], most: int) -> int:
    """The number of last segments to merge, given their row counts; 0 for none. The result has at most ``most`` rows.

    >>> to_merge([64, 1, 1, 1, 1, 1, 1, 1, 1], 1000), to_merge([64, 8, 8, 1], 1000)
    (8, 0)
    """
    total = largest = 0
    for number, count in enumerate(reversed(counts), 1):
        total, largest = total + count, max(largest, count)
        if total > most:
            return 0
        if number >= _TOGETHER and _LARGEST * largest <= total:
            return number
    return 0
