"""Tail: rows that joined partitions after these were built, in memory, and searched together with them.

The tail grows as the index grows. Its rows are ordered by their row numbers, which never change, so every commit sees
the first rows of the tail: threads may search an earlier commit while the rows of a later one are added.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.arrays import appended
from matryo.compiled import require_core
from matryo.retrieve.engines.compiled import view_of
from matryo.retrieve.guides.partition.joined import Joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve.guides.partition.partition import Partition
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Codes, Floats, Indices


class TailPart(NamedTuple):
    """Some rows of a tail: their vectors, their row numbers, and their places if these are stored."""

    blocks: Blocks
    numbers: Indices
    joined: Joined | None = None


@dataclass(frozen=True, eq=False)
class TailView:
    """The rows of a tail that one search may find."""

    compiled: Any
    """A ``matryo._core.TailView``."""
    count: int


class Tail:
    """The rows that joined a partition. Threads may share it."""

    def __init__(self, partition: Partition) -> None:
        self._partition, self._guard = partition, threading.Lock()
        self._start = 0   # the rows of the tail before the recent ones
        self._codes: Codes = np.empty((0, 0), np.int8)
        self._errors: Floats = np.empty(0, np.float32)
        self._clear()

    def view(self, parts: Sequence[TailPart]) -> TailView:
        """Return the rows of ``parts``, which are in the order of their numbers; new ones are added first.

        Only the last part may have no stored places.
        """
        with self._guard:
            if not self._add(parts):   # rows are gone: their segments were merged without them
                self._clear()
                self._add(parts)
            seen, count = [], 0
            for part in parts:
                stored = part.joined
                coded = self._recent_codes(part, count) if stored is None else (stored.codes, stored.errors)
                seen.append((view_of(part.blocks, self._partition.metric), *coded))
                count += len(part.numbers)
            return TailView(require_core().TailView(self._compiled, seen), count)

    def _recent_codes(self, part: TailPart, start: int) -> tuple[Codes, Floats]:
        """The 8-bit codes of recent rows, and their errors, kept from search to search."""
        count = len(part.numbers)
        if start != self._start or count > len(self._errors):   # others were recent before
            made = Joined.of(part.blocks, self._partition)
            self._start, self._codes, self._errors = start, made.codes, made.errors
        return self._codes[:count], self._errors[:count]

    def _clear(self) -> None:
        self._compiled = require_core().Tail(self._partition.compiled)
        self._numbers = np.empty(0, np.int64)
        self._start, self._errors = 0, self._errors[:0]

    def _add(self, parts: Sequence[TailPart]) -> bool:
        """Add the rows that are not in the tail yet; False if ``parts`` lack rows that are."""
        start = 0
        for part in parts:
            end, known = start + len(part.numbers), max(0, min(len(part.numbers), len(self._numbers) - start))
            # Both are increasing, and all numbers up to the last were added: so equal ends mean equal numbers.
            if known and tuple(self._numbers[[start, start + known - 1]]) != tuple(part.numbers[[0, known - 1]]):
                return False
            if known < len(part.numbers):
                if len(self._numbers) and self._numbers[-1] >= part.numbers[known]:
                    return False
                self._append(part, start, known)
            start = end
        return True

    def _append(self, part: TailPart, start: int, known: int) -> None:
        places, first = part.joined, known
        if places is None:
            places, first = Joined.of(part.blocks, self._partition, start=known), 0
            if known == 0:
                self._start, self._codes, self._errors = start, places.codes, places.errors
            elif start == self._start and known == len(self._errors):
                self._codes, self._errors = appended(self._codes, places.codes), appended(self._errors, places.errors)
        else:
            places.check_fits(self._partition, len(part.numbers))
        arrays = places.nibbles, places.adjust, places.lists
        self._compiled.add(*(np.ascontiguousarray(array[first:]) for array in arrays))
        self._numbers = appended(self._numbers, part.numbers[known:])
