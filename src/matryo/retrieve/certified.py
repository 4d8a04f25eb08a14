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
from matryo.retrieve.blocks import Blocks, checked_norms
from matryo.retrieve.metric import Metric, check_metric
from matryo.retrieve.queries import as_mask, as_queries, check_not_zero
from matryo.retrieve.sketch import FEW, Sketch, SketchedQuery, unit

if TYPE_CHECKING:

    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Certified", "Start", "as_doubles", "best_rows", "scan_exactly"]

_SPARE = 16   # rows read in full beside the k that look best, for a higher bar
_LARGEST = 2.0**124   # the square of the longest query, as of the longest row
_TILE = 4 << 20   # numbers scored at a time by the plain scan


@dataclass(frozen=True, eq=False)
class Start:
    """The first look at all rows: what is known of them, and the bar that the best of them set."""

    query: SketchedQuery
    dots: Array
    """The product of codes of each row at the first level."""
    rows: Indices
    """Those read in full."""
    scores: Doubles
    bar: float
    """What a bound must reach: the k-th best of their scores; −∞ where there are fewer."""


@dataclass(frozen=True, eq=False)
class Certified:
    """Exact search of blocks with their sketch. Any number of threads may search at a time."""

    blocks: Blocks
    sketch: Sketch
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    @cached_property
    def _all(self) -> Bools:
        return np.ones(self.blocks.count, np.bool_)

    def search(self, queries: Any, k: int, allowed: Bools | None = None) -> tuple[Indices, Floats]:
        """The best ``k`` rows of each of the ``queries`` [n, d] among the ``allowed``, and their scores; both [n, k].

        Where there are fewer than ``k``, the rest has row −1 and score −∞.
        """
        given = as_doubles(queries, self.blocks, k, self.sketch.metric)
        allowed = as_mask(allowed, self.blocks.count)
        rows, scores = np.full((len(given), k), -1, np.int64), np.full((len(given), k), -np.inf, np.float32)
        for i, query in enumerate(given):
            found, exact, _ = self.find(query, k, allowed)
            rows[i, : len(found)], scores[i, : len(found)] = found, exact
        return rows, scores

    def find(
        self, query: Doubles, k: int, allowed: Bools | None = None
    ) -> tuple[Indices, Doubles, tuple[int, ...]]:
        """The best rows of one query, their scores, and how many rows were left after each level."""
        start = self.start(query, k, allowed)
        rows, left = self._sift(start, allowed)
        scores = self._exact(start.query, rows)
        best = best_rows(rows, scores, k)
        return rows[best], _outward(start.query, scores[best]), left

    def start(self, query: Doubles, k: int, allowed: Bools | None = None) -> Start:
        """Scan the first level, and read in full what looks best in it."""
        kernels, first = _kernels(), self.sketch.levels[0]
        asked = SketchedQuery(self.sketch, query)
        level = asked.at(0)
        dots = self._buffer("dots", len(first.tails), np.int32)
        codes = first.codes, level.high, level.low, np.float32(level.scale)
        some = self._all if allowed is None else allowed
        rows = kernels.scan_sketch(*codes, self.sketch.offsets, some, dots, self.sketch.count, k + _SPARE)
        scores = self._exact(asked, rows)
        bar = float(np.partition(scores, -k)[-k]) if len(scores) >= k else -np.inf
        if self.sketch.metric == "l2":
            bar += asked.square   # bounds are of 2·q·x − ‖x‖²
        return Start(asked, dots, rows, scores, bar)

    def _sift(self, start: Start, allowed: Bools | None) -> tuple[Indices, tuple[int, ...]]:
        kernels, sketch = _kernels(), self.sketch
        rows = self._buffer("rows", sketch.count, np.int64)
        sums = self._buffer("sums", sketch.count, np.float64)
        some = self._all if allowed is None else allowed
        left: list[int] = []
        for number, level in enumerate(sketch.levels):
            query = start.query.at(number)
            bar = start.bar - query.slack
            if number == 0:
                moved = np.float32(bar + query.scale * query.shift)
                bounds = sketch.offsets, level.tails, np.float32(query.reach), np.nextafter(moved, np.float32(-np.inf))
                scale = np.float32(query.scale)
                count = kernels.sift_sketch(start.dots, scale, *bounds, some, rows, sums, sketch.count)
                sums[:count] -= query.scale * query.shift
            else:
                codes = level.codes, query.high, query.low, query.scale
                held = rows[: left[-1]], sums[: left[-1]]
                count = kernels.sift_more(*codes, sketch.offsets, level.tails, query.reach, bar, *held)
            left.append(int(count))
            if count <= FEW:
                break
        return rows[: left[-1]].copy(), tuple(left)

    def _exact(self, query: SketchedQuery, rows: Indices) -> Doubles:
        """The scores of some rows, in the unit of the sketch."""
        kernels, unit = _kernels(), self.sketch.exponent
        sums, squares = np.zeros(len(rows)), np.zeros(len(rows))
        for (low, high), block in zip(self.blocks.nesting.blocks, self.blocks.full, strict=True):
            held = block if block.dtype == np.float32 else block.view(np.uint16)
            if self.sketch.metric == "l2":
                kernels.add_distances_at(held, query.given[low:high], rows, squares)
            else:
                kernels.add_exactly_at(held, query.vector[low:high], rows, sums, squares)
        return _scores(self.sketch.metric, unit, sums, squares)

    def _buffer(self, name: str, count: int, dtype: Any) -> Array:
        # Fresh memory costs more than the scan that fills it. Each thread has its own.
        held: Array | None = getattr(self._scratch, name, None)
        if held is None:
            held = np.empty(count, dtype)
            setattr(self._scratch, name, held)
        return held


def best_rows(rows: Indices, scores: Doubles, k: int) -> Indices:
    """The places of the best ``k``, best first; of equal scores the smaller row."""
    if len(rows) > 4 * k:   # sorting is what takes long: only those that may be among the best
        places = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        return np.asarray(places[np.lexsort((rows[places], -scores[places]))[:k]])
    return np.asarray(np.lexsort((rows, -scores))[:k])


def scan_exactly(
    blocks: Blocks, queries: Any, k: int, metric: Metric = "cosine", allowed: Bools | None = None
) -> tuple[Indices, Floats]:
    """What certified search finds, by reading every row: plain numpy in float64."""
    check_metric(metric)
    given = as_doubles(queries, blocks, k, metric)
    allowed = as_mask(allowed, blocks.count)
    rows, scores = np.full((len(given), k), -1, np.int64), np.full((len(given), k), -np.inf, np.float32)
    there = np.arange(blocks.count) if allowed is None else np.flatnonzero(allowed)
    empty = Sketch(metric, np.zeros((0, 0)), np.zeros(0), (), None, unit(blocks, metric), blocks.count)
    asked = [SketchedQuery(empty, query) for query in given]
    found = np.empty((len(given), len(there)))
    step = max(1, _TILE // blocks.nesting.dim)
    for start in range(0, len(there), step):
        part = blocks.rows(there[start : start + step], blocks.nesting.dim).astype(np.float64)
        squares = np.square(part).sum(1)
        for i, query in enumerate(asked):
            # No product of BLAS: there the sum of a row depends on where it lies, and equal rows must tie.
            sums = squares if metric == "l2" else (part * query.vector).sum(1)
            apart = np.square(part - query.given).sum(1) if metric == "l2" else squares
            found[i, start : start + step] = _scores(metric, empty.exponent, sums, apart)
    for i, query in enumerate(asked):
        best = best_rows(there, found[i], k)
        rows[i, : len(best)], scores[i, : len(best)] = there[best], _outward(query, found[i, best])
    return rows, scores


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


def _outward(query: SketchedQuery, scores: Doubles) -> Doubles:
    # In the unit of the vectors again; the cosine has none.
    if query.sketch.metric == "cosine":
        return scores
    return np.asarray(np.ldexp(scores, query.sketch.exponent + query.exponent))


def _kernels() -> Any:
    try:
        from matryo.retrieve import kernels
    except ImportError as error:
        raise MissingExtra("numba", "retrieve") from error
    return kernels
