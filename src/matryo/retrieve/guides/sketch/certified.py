"""Certified search: provably the exact best k rows, although most rows are never read.

A sketch bounds every score from a few bytes per row. The rows that look best in the sketch are read in full; the k-th
best of their scores is the bar. A row whose bound is below the bar cannot be among the best k, whatever its unread
columns hold. The remaining rows are read in full and ranked by scores summed in float64.

Bounds err upwards: they include the rounding errors of the codes, the query and float32 sums. So the result equals that
of a scan of every row in float64, with ties won by the smaller row. The search is in ``src/core/sketch.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import require_core
from matryo.errors import InputError
from matryo.retrieve.engines.compiled import as_bytes, view_of
from matryo.retrieve.vectors.queries import as_floats, as_mask, check_scores

if TYPE_CHECKING:
    from matryo.retrieve.guides.sketch.sketch import Sketch
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.types import Bools, Doubles, Indices


class Certified:
    """Exact search of blocks with their sketch. Any number of threads may search at a time."""

    def __init__(self, blocks: Blocks, sketch: Sketch) -> None:
        self.sketch, self._nesting, self._count = sketch, blocks.nesting, blocks.count
        levels = [(level.codes, level.tails, level.dim, level.error, level.length) for level in sketch.levels]
        self.compiled = require_core().Sketch(
            view_of(blocks, sketch.metric), sketch.axes, sketch.steps, levels, sketch.offsets, sketch.exponent
        )
        self._search = self.compiled.search

    def search(
        self, queries: Any, k: int, allowed: Bools | None = None, threads: int = 1, bars: Doubles | None = None
    ) -> tuple[Indices, Doubles]:
        """Return the best ``k`` ``allowed`` rows of each of the ``queries`` [n, d], and their scores; both [n, k].

        If there are fewer than ``k``, the remaining places have row −1 and score −∞. Rows that score less than the
        entry of a query in ``bars`` [n] may be left out: the caller knows better ones.
        """
        rows, scores, _ = self.find(queries, k, allowed, threads, bars)
        return rows, scores

    def find(
        self, queries: Any, k: int, allowed: Bools | None = None, threads: int = 1, bars: Doubles | None = None
    ) -> tuple[Indices, Doubles, Indices]:
        """Return rows, scores, and the number of rows left after each level, [n, levels]; 0 for unused levels."""
        if k < 1:
            raise InputError("k must be at least 1", got=k, cure="pass k=10")
        vectors = as_floats(queries, self._nesting.dim)
        rows, left = np.empty((len(vectors), k), np.int64), np.zeros((len(vectors), len(self.sketch.levels)), np.int64)
        scores = np.empty(rows.shape)
        mask = None if allowed is None else as_bytes(as_mask(allowed, self._count))
        known = None if bars is None else np.ascontiguousarray(bars, np.float64)
        if self._search(vectors, mask, known, rows, scores, left, threads) >= 0:
            check_scores(vectors, self._nesting, self.sketch.metric)
        return rows, scores, left
