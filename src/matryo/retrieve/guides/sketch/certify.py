"""Certified search as one compiled call: encode the query, scan, sift by the bounds, and rank the remaining rows.

Control never returns to Python in between, so threads share queries without waiting for each other. What is constant
over queries is prepared once as arrays of numbers and addresses: of the sketch, of its levels, and of the blocks.

numba caches compiled code and checks only this file for changes: after a change in a module that it imports, touch it.
"""

# mypy: ignore-errors
# The types are numba's.

from __future__ import annotations

import numpy as np
from numba import carray

from matryo.retrieve.engines.compiled.exact import L2, score_at
from matryo.retrieve.engines.compiled.kernels import (
    LANES,
    compiled,
    pointer,
    scan_sketch,
    sift_more,
    sift_sketch,
)

_FINE = 127 * 128 + 63   # the largest code of a query: 128 · high + low


@compiled
def _turned(axes, vector, low, dim):
    # The coordinates ``low`` … ``dim``. Rows are sliced, because possibly negative indices hinder the compiler, and
    # processed four at a time, so that sums are loaded and stored less often.
    turned, whole = np.zeros(dim - low), len(vector) // 4 * 4
    for i in range(0, whole, 4):
        one, two, three, four = vector[i], vector[i + 1], vector[i + 2], vector[i + 3]
        a, b, c, d = axes[i, low:dim], axes[i + 1, low:dim], axes[i + 2, low:dim], axes[i + 3, low:dim]
        for j in range(len(turned)):
            turned[j] += one * a[j] + two * b[j] + three * c[j] + four * d[j]
    for i in range(whole, len(vector)):
        last, rest = vector[i], axes[i, low:dim]
        for j in range(len(turned)):
            turned[j] += last * rest[j]
    return turned


@compiled
def look_at(axes, steps, vector, low, dim, error, length, before, factor, high, fine):
    """Encode the coordinates ``low`` … ``dim`` of a query for one level: codes 128 · ``high`` + ``fine``.

    A row's score is at most scale · (product of codes) + offset + reach · tail + slack. Returns scale, reach, slack,
    the sum of the codes, and ``before`` for the next level: the squared norm of the coordinates so far, and the
    largest effect of rounding the query so far.
    """
    known, rounded = before
    turned, square = _turned(axes, vector, low, dim), 0.0
    for i in range(len(vector)):
        square += vector[i] * vector[i]
    largest, added = 0.0, 0.0
    for j in range(dim - low):
        known += turned[j] * turned[j]
        turned[j] *= steps[low + j]
        largest = max(largest, abs(turned[j]))
        added += abs(turned[j])
    scale = largest / _FINE if largest / _FINE > 0 else 1.0
    sum_, rest = np.int64(0), 0.0
    for j in range(dim - low):
        code = np.int32(np.rint(turned[j] / scale))
        rest += (turned[j] - code * scale) ** 2
        upper = (code + np.int32(64)) >> np.int32(7)
        high[j], fine[j] = upper, code - (upper << np.int32(7))
        sum_ += code
    rounded += np.sqrt(rest) * length
    # A few steps in float32, each exact to 2⁻²⁴ of its largest operand; rows have norms of at most 1.
    norm = np.sqrt(square)
    rounding = 2.0**-21 * (factor * (255 * added + norm) + 1) + 2.0**-48 * square
    reach = factor * (np.sqrt(max(0.0, square - known)) + 1e-6 * norm)
    slack = factor * (np.sqrt(known) * error + rounded) + rounding
    return factor * scale, reach, slack, sum_, (known, rounded)


@compiled
def _write(rows, scores, k, found, best):
    # The best k, best first; of equal scores the smaller row first. Rows are given in order.
    if len(rows) > 4 * k:   # sorting dominates, so only rows that may be among the best are sorted
        places = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        rows, scores = rows[places], scores[places]
    order = np.argsort(-scores, kind="mergesort")
    for i in range(min(k, len(order))):
        found[i], best[i] = rows[order[i]], scores[order[i]]


@compiled
def certify(
    about, levels, bounds, blocks, offsets, allowed, given, vectors, units, k, spare, few, scratch, found, best, left
):
    """Write the best ``k`` rows of each query to ``found``, and their exact scores to ``best``.

    ``left`` gets the number of rows left after each level. ``vectors`` has the scaled queries, ``given`` the original
    ones; a score times the query's unit is in the unit of the sketch. ``spare`` rows beyond the k that look best are
    read for a higher bar; once ``few`` are left, all are read.
    """
    metric, half, count, width = about[0], about[1], about[2], about[3]
    axes = carray(pointer(about[4]), (vectors.shape[1], width), np.float64)
    steps = carray(pointer(about[5]), (width,), np.float64)
    dots, held, sums, scores, squares = scratch
    tiles = carray(pointer(levels[0, 0]), (len(dots) // LANES, levels[0, 3] // 4, LANES, 4), np.uint8)
    high, fine = np.empty(width, np.int8), np.empty(width, np.int8)
    factor = 2.0 if metric == L2 else 1.0
    for one in range(len(vectors)):
        vector, before, rows = vectors[one], (0.0, 0.0), held[:0]
        bar = -np.inf
        for number in range(len(levels)):
            low, dim = levels[number, 2], levels[number, 3]
            tails = carray(pointer(levels[number, 1]), (len(dots),), np.float32)
            coded = high[: dim - low], fine[: dim - low]
            scale, reach, slack, sum_, before = look_at(
                axes, steps, vector, low, dim, bounds[number, 0], bounds[number, 1], before, factor, *coded
            )
            if number == 0:
                near = scan_sketch(tiles, *coded, np.float32(scale), offsets, allowed, dots, count, k + spare)
                seen = scores[: len(near)]
                score_at(blocks, half, count, metric, given[one], near, seen, squares[: len(near)])
                if len(near) >= k:
                    bar = np.partition(seen, len(near) - k)[len(near) - k] * units[one]
                if metric == L2:   # bounds refer to 2·q·x − ‖x‖²
                    bar += vector @ vector
                moved = np.float32(bar - slack + scale * 128 * sum_)
                moved -= np.float32(2.0**-22) * abs(moved)
                kept = sift_sketch(dots, np.float32(scale), offsets, tails, np.float32(reach), moved, allowed, held,
                                   sums, count)
                sums[:kept] -= scale * 128 * sum_
            else:
                codes = carray(pointer(levels[number, 0]), (count, dim - low), np.int8)
                kept = sift_more(codes, *coded, scale, offsets, tails, reach, bar - slack, rows, sums[: len(rows)])
            rows = held[:kept]
            left[one, number] = kept
            if kept <= few:
                break
        score_at(blocks, half, count, metric, given[one], rows, scores[: len(rows)], squares[: len(rows)])
        _write(rows, scores[: len(rows)], k, found[one], best[one])
