"""When segments become one: each search looks into every segment, so many small additions must not leave many.

Segments are merged when enough of about one size have come together, so that a row is written anew once for each
factor of eight by which the store grows after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["to_merge"]

_TOGETHER = 8   # segments that become one
_LARGEST = 4   # none of which has more than this part of all their rows


def to_merge(counts: Sequence[int], most: int) -> int:
    """How many of the last segments are to become one, given the rows of each; 0 for none, ``most`` rows at most.

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
