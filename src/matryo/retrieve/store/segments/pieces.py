"""Pieces: rows that become a segment. They have equal sizes, and segments of similar size are merged.

Every search reads all segments, so there must be few. Each row is rewritten once per eightfold growth of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matryo.retrieve.vectors.types import Array, Indices

_TOGETHER = 8   # the fewest segments that are merged into one
_LARGEST = 4   # none of them may hold more than a quarter of all their rows


class Piece(NamedTuple):
    """Vectors [n, d], row numbers, and ids (all integers or all strings)."""

    vectors: Array
    rows: Indices
    ids: list[Any]

    def cut(self, at: int) -> tuple[Piece, Piece]:
        """Split into the first ``at`` rows and the rest."""
        vectors, rows, ids = self
        return Piece(vectors[:at], rows[:at], ids[:at]), Piece(vectors[at:], rows[at:], ids[at:])


def regroup(pieces: Iterable[Piece], most: int) -> Iterator[Piece]:
    """Regroup ``pieces`` into pieces of ``most`` rows, the last one smaller. Only one is in memory at a time.

    >>> small = [Piece(np.ones((n, 2)), np.arange(n), list(range(n))) for n in (3, 1, 2)]
    >>> [len(piece.rows) for piece in regroup(small, 4)]
    [4, 2]
    """
    held: list[Piece] = []
    count = 0
    for piece in pieces:
        rest = piece
        while len(rest.rows):
            first, rest = rest.cut(most - count)
            held.append(first)
            count += len(first.rows)
            if count == most:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    vectors, rows, ids = zip(*pieces, strict=True)
    return Piece(np.concatenate(vectors), np.concatenate(rows), [id for part in ids for id in part])


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
