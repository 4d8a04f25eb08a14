"""Certified search: provably the exact best k rows, though most rows are never read.

A sketch bounds every score from a few bytes a row. The rows that look best in it are read in full; the k-th best of
their scores is a bar. A row whose bound is below the bar cannot be among the best k, whatever its unread columns
hold. Those that are left are read in full, and ranked by scores summed in float64.

Bounds err upwards: what rounding the codes, the query and float32 sums may have taken is added to them. So the
answer is the one of a scan of every row in float64, :func:`scan_exactly`, ties by smaller row included.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MissingExtra
from matryo.retrieve.guides.sketch.sketch import FEW, Sketch, scaled, unit
from matryo.retrieve.vectors.blocks import Blocks, checked_norms
from matryo.retrieve.vectors.metric import METRICS, Metric, check_metric
from matryo.retrieve.vectors.queries import as_mask, as_queries, check_not_zero

if TYPE_CHECKING:

    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Certified", "as_doubles", "scan_exactly"]

_SPARE = 16   # rows read in full beside the k that look best, for a higher bar
_LARGEST = 2.0**124   # the square of the longest query, as of the longest row
_TILE = 4 << 20   # numbers scored at a time by the plain scan


@dataclass(frozen=True, eq=False)
class Certified:
    """Exact search of blocks with their sketch. Any number of threads may search at a time."""

    blocks: Blocks
    sketch: Sketch
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    def search(self, queries: Any, k: int, allowed: Bools | None = None) -> tuple[Indices, Floats]:
        """The best ``k`` rows of each of the ``queries`` [n, d] among the ``allowed``, and their scores; both [n, k].

        Where there are fewer than ``k``, the rest has row −1 and score −∞.
        """
        rows, scores, _ = self.find(queries, k, allowed)
        return rows, scores

    def find(self, queries: Any, k: int, allowed: Bools | None = None) -> tuple[Indices, Floats, Indices]:
        """The same, and how many rows were left after each level, [n, levels]; 0 at levels that were not needed."""
        sketch = self.sketch
        given = as_doubles(queries, self.blocks, k, sketch.metric)
        mask = as_mask(allowed, self.blocks.count)
        vectors, exponents = scaled(given, sketch.metric, sketch.exponent)
        rows, scores = np.full((len(given), k), -1, np.int64), np.full((len(given), k), -np.inf)
        left = np.zeros((len(given), len(sketch.levels)), np.int64)
        some = self._all if mask is None else np.ascontiguousarray(mask)
        about = *self._tables, sketch.offsets, some, given, vectors, k, _SPARE, FEW, self._buffers()
        _kernels().certify(*about, rows, scores, left)
        return rows, _outward(scores, sketch.metric, sketch.exponent + exponents), left

    @cached_property
    def _all(self) -> Bools:
        return np.ones(self.blocks.count, np.bool_)

    @cached_property
    def _tables(self) -> tuple[Array, ...]:
        # Numbers, and addresses of arrays that the sketch and the blocks hold.
        blocks, sketch = self.blocks, self.sketch
        half, count, width = int(blocks.dtype == "float16"), blocks.count, sketch.axes.shape[1]
        fixed = METRICS.index(sketch.metric), sketch.exponent, half, count, width, _place(sketch.axes)
        levels = [(_place(level.codes), _place(level.tails), low, level.dim)
                  for low, level in zip((0, *sketch.dims), sketch.levels, strict=False)]  # fmt: skip
        stored = [(_place(block), *columns, count)
                  for block, columns in zip(blocks.picked, blocks.nesting.blocks, strict=True)]  # fmt: skip
        bounds = [(level.error, level.length) for level in sketch.levels]
        numbers = (np.array(one, np.int64) for one in ((*fixed, _place(sketch.steps)), levels, stored))
        about, table, places = numbers
        return about, table, np.array(bounds), places

    def _buffers(self) -> tuple[Array, ...]:
        # Fresh memory costs more than the scan that fills it. Each thread has its own.
        held: tuple[Array, ...] | None = getattr(self._scratch, "held", None)
        if held is None:
            count = self.blocks.count
            dots = np.empty(len(self.sketch.levels[0].tails), np.int32)
            held = self._scratch.held = dots, np.empty(count, np.int64), np.empty(count, np.float64)
        return held


def scan_exactly(
    blocks: Blocks, queries: Any, k: int, metric: Metric = "cosine", allowed: Bools | None = None
) -> tuple[Indices, Floats]:
    """What certified search finds, by reading every row: plain numpy in float64."""
    check_metric(metric)
    given = as_doubles(queries, blocks, k, metric)
    allowed = as_mask(allowed, blocks.count)
    rows, scores = np.full((len(given), k), -1, np.int64), np.full((len(given), k), -np.inf)
    there = np.arange(blocks.count) if allowed is None else np.flatnonzero(allowed)
    exponent = unit(blocks, metric)
    vectors, exponents = scaled(given, metric, exponent)
    found = np.empty((len(given), len(there)))
    step = max(1, _TILE // blocks.nesting.dim)
    for start in range(0, len(there), step):
        part = blocks.rows(there[start : start + step], blocks.nesting.dim).astype(np.float64)
        squares = np.square(part).sum(1)
        for i, (query, vector) in enumerate(zip(given, vectors, strict=True)):
            # No product of BLAS: there the sum of a row depends on where it lies, and equal rows must tie.
            sums = squares if metric == "l2" else (part * vector).sum(1)
            apart = np.square(part - query).sum(1) if metric == "l2" else squares
            found[i, start : start + step] = _scores(metric, exponent, sums, apart)
    for i in range(len(given)):
        best = np.lexsort((there, -found[i]))[:k]
        rows[i, : len(best)], scores[i, : len(best)] = there[best], found[i, best]
    return rows, _outward(scores, metric, exponent + exponents)


def as_doubles(queries: Any, blocks: Blocks, k: int, metric: Metric) -> Doubles:
    """Queries [n, d] as float64; raises where there is none, or one that has no score."""
    if k < 1:
        raise InputError("k must be at least 1", got=k, cure="ask for one neighbour or more")
    array = as_queries(queries, blocks.nesting.dim)
    with np.errstate(over="ignore"):   # told by the norms, with the row
        given = array.astype(np.float32).astype(np.float64)
        squares = np.square(given).sum(1)
    if not (squares <= _LARGEST).all():
        checked_norms(given.astype(np.float32), blocks.nesting, "queries")
    if metric == "cosine":
        check_not_zero(squares)
    return given


def _scores(metric: Metric, unit: int, sums: Doubles, squares: Doubles) -> Doubles:
    # In the unit of a sketch. For L2 the squares are of the distances: made of norms, those of near rows would drown.
    if metric == "l2":
        return np.asarray(-np.ldexp(squares, -2 * unit))
    if metric == "ip":
        return np.asarray(np.ldexp(sums, -unit))
    return np.asarray(sums / np.maximum(np.sqrt(squares), np.finfo(np.float64).tiny))


def _outward(scores: Doubles, metric: Metric, exponents: Indices) -> Floats:
    # In the unit of the vectors again; the cosine has none.
    return np.asarray(scores if metric == "cosine" else np.ldexp(scores, exponents[:, None]), np.float32)


def _place(array: Array) -> int:
    return int(np.asarray(array).ctypes.data)


def _kernels() -> Any:
    with MissingExtra.unless_installed("numba", "retrieve"):
        from matryo.retrieve.guides.sketch import certify
    return certify
