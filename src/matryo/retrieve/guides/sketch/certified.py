"""Certified search: provably the exact best k rows, although most rows are never read.

A sketch bounds every score from a few bytes per row. The rows that look best in the sketch are read in full; the k-th
best of their scores is the bar. A row whose bound is below the bar cannot be among the best k, whatever its unread
columns hold. The remaining rows are read in full and ranked by scores summed in float64.

Bounds err upwards: they include the rounding errors of the codes, the query and float32 sums. So the result equals that
of a scan of every row in float64, with ties won by the smaller row.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MissingExtra
from matryo.retrieve.engines.compiled.engine import addresses
from matryo.retrieve.guides.sketch.sketch import FEW, Sketch, scaled
from matryo.retrieve.vectors.blocks import Blocks, checked_norms
from matryo.retrieve.vectors.metric import METRICS, Metric
from matryo.retrieve.vectors.queries import as_mask, as_queries, check_not_zero

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Array, Bools, Doubles, Indices

_SPARE = 16   # rows read in full beyond the k that look best, for a higher bar
_LARGEST = 2.0**124   # the largest squared norm of a query, as of a row


@dataclass(frozen=True, eq=False)
class Certified:
    """Exact search of blocks with their sketch. Any number of threads may search at a time."""

    blocks: Blocks
    sketch: Sketch
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    def search(self, queries: Any, k: int, allowed: Bools | None = None) -> tuple[Indices, Doubles]:
        """Return the best ``k`` ``allowed`` rows of each of the ``queries`` [n, d], and their scores; both [n, k].

        If there are fewer than ``k``, the remaining places have row −1 and score −∞.
        """
        rows, scores, _ = self.find(queries, k, allowed)
        return rows, scores

    def find(self, queries: Any, k: int, allowed: Bools | None = None) -> tuple[Indices, Doubles, Indices]:
        """Return rows, scores, and the number of rows left after each level, [n, levels]; 0 for unused levels."""
        sketch = self.sketch
        given = as_doubles(queries, self.blocks, k, sketch.metric)
        mask = as_mask(allowed, self.blocks.count)
        vectors, exponents = scaled(given, sketch.metric, sketch.exponent)
        rows, scores = np.full((len(given), k), -1, np.int64), np.full((len(given), k), -np.inf)
        left = np.zeros((len(given), len(sketch.levels)), np.int64)
        mask = self._all if mask is None else np.ascontiguousarray(mask)
        # The cosine has no unit.
        units = np.ldexp(1.0, -(exponents + sketch.exponent)) if sketch.metric != "cosine" else np.ones(len(given))
        about = *self._tables, sketch.offsets, mask, given, vectors, units, k, _SPARE, FEW, self._buffers()
        _kernels().certify(*about, rows, scores, left)
        return rows, scores, left

    @cached_property
    def _all(self) -> Bools:
        return np.ones(self.blocks.count, np.bool_)

    @cached_property
    def _tables(self) -> tuple[Array, ...]:
        # Numbers, and addresses of arrays that the sketch and the blocks keep alive.
        blocks, sketch = self.blocks, self.sketch
        half, count, width = int(blocks.dtype == "float16"), blocks.count, sketch.axes.shape[1]
        fixed = METRICS.index(sketch.metric), half, count, width, _address(sketch.axes)
        levels = [(_address(level.codes), _address(level.tails), low, level.dim)
                  for low, level in zip((0, *sketch.dims), sketch.levels, strict=False)]  # fmt: skip
        bounds = [(level.error, level.length) for level in sketch.levels]
        about, table = (np.array(values, np.int64) for values in ((*fixed, _address(sketch.steps)), levels))
        return about, table, np.array(bounds), addresses(blocks, blocks.nesting.dim)

    def _buffers(self) -> tuple[Array, ...]:
        # Allocating memory costs more than the scan that fills it, so each thread keeps its buffers.
        held: tuple[Array, ...] | None = getattr(self._scratch, "held", None)
        if held is None:
            count = self.blocks.count
            dots = np.empty(len(self.sketch.levels[0].tails), np.int32)
            held = self._scratch.held = dots, np.empty(count, np.int64), *np.empty((3, count))
        return held


def as_doubles(queries: Any, blocks: Blocks, k: int, metric: Metric) -> Doubles:
    """Return queries [n, d] as float64; raise if k is below 1 or a query has no score."""
    if k < 1:
        raise InputError("k must be at least 1", got=k, cure="pass k=10")
    array = as_queries(queries, blocks.nesting.dim)
    with np.errstate(over="ignore"):   # checked_norms reports overflows, with the row
        given = array.astype(np.float32).astype(np.float64)
        squares = np.square(given).sum(1)
    if not (squares <= _LARGEST).all():
        checked_norms(given.astype(np.float32), blocks.nesting, "queries")
    if metric == "cosine":
        check_not_zero(squares)
    return given


def _address(array: Array) -> int:
    return int(np.asarray(array).ctypes.data)


def _kernels() -> Any:
    with MissingExtra.unless_installed("numba", "retrieve"):
        from matryo.retrieve.guides.sketch import certify
    return certify
