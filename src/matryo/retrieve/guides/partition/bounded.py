"""Stages in full precision that read few rows in full, because the codes bound the scores of the others.

A row is within ``errors`` of its codes, so its score is within ``errors`` times the query's norm of the score of its
codes (Cauchy–Schwarz). A stage before the last must determine which candidates stay, not their scores: only those that
the bounds leave open are read in full. The last stage reads the ``keep`` candidates that look best; the lowest of their
scores is the bar, and candidates that cannot reach it are never read. Either way the result equals that of reading all:
one loop scores every row, and its sums depend on the row alone.

The bounds include all rounding errors, so that they hold for float32 scores: those of the query's codes, of the sums in
8 bits, and of the sums in full precision.
"""

# mypy: ignore-errors
# The types are numba's.

from __future__ import annotations

import numpy as np

from matryo.retrieve.engines.compiled.exact import COSINE, L2
from matryo.retrieve.engines.compiled.kernels import compiled, cut, key_of
from matryo.retrieve.guides.partition.stages import add_codes_to, blocks_of, fetch_row, full_stage
from matryo.retrieve.guides.partition.tables import FINE, TINY, lowest_kept, peak_of, score_of
from matryo.retrieve.guides.partition.vectors import fetch

_TIMES = 3   # from this many candidates per row kept, scoring all codes costs less than it saves
_AHEAD = 8   # candidates whose norms are prefetched
_LARGEST = 1e38   # about the largest float32
_STEP = 2.0**-24   # half the value of the last bit of the float32 number 1
_SUMS = 64 * _STEP   # relative error of the float32 sums of all int8 stages


@compiled
def _lost(unit):
    # The largest error of one code of a query; the whole value where codes would underflow float32.
    return 0.51 * unit if unit >= TINY else 16400.0 * TINY


@compiled
def _slack(tables, dim, known, vector):
    # The error of sums of products with a query's codes, beside the errors of the rows' codes: a query's code is off
    # by half a unit, a row's code is at most 127, and float32 sums are rounded. The columns from ``known`` on were
    # encoded together, so that the error of each is known.
    unit = peak_of(vector, tables.columns, 0, known) / np.float32(FINE)
    off = known * _lost(unit)
    unit = peak_of(vector, tables.columns, known, dim) / np.float32(FINE)
    if unit >= TINY:
        inverse, sum_ = np.float32(1) / unit, np.float32(0)
        for j in range(known, dim):
            code = vector[j] * tables.columns[0, j] * inverse
            sum_ += abs(code - np.rint(code))
        off += unit * (1.001 * sum_ + 0.01 * (dim - known))
    else:
        off += (dim - known) * _lost(unit)
    added = np.float32(0)
    for j in range(dim):
        added += abs(vector[j]) * (abs(tables.columns[1, j]) + np.float32(130) * tables.columns[0, j])
    return 127.0 * off + 1.01 * _SUMS * added


@compiled
def _bound(tables, dim, known, level, vector, length, places, sums, keys, reach):
    # The score of each candidate by its codes, as a key, and its largest distance from the full-precision score.
    slack, rounding, last = _slack(tables, dim, known, vector), (dim + 64) * _STEP, tables.levels - 1
    metric, rows, norms, errors, count = tables.metric, tables.rows, tables.norms, tables.errors, len(places)
    for i in range(count):
        place, score = places[i], np.float64(sums[i])
        far = length * errors[place] + slack + _SUMS * abs(score)
        if metric == COSINE:
            unit = 1 / max(length, TINY)
            far += rounding * length
            if level < last:
                fetch(norms.ctypes.data + 4 * tables.levels * rows[places[min(i + _AHEAD, count - 1)]])
                row = rows[place]
                unit *= np.float64(max(norms[row, last], TINY)) / max(norms[row, level], TINY)
            score, far = unit * score, unit * far
        else:
            fetch(norms.ctypes.data + 4 * tables.levels * rows[places[min(i + _AHEAD, count - 1)]])
            norm = np.float64(norms[rows[place], level])
            if metric == L2:
                score = 2 * score - norm * norm - length * length
                far = 2 * far + rounding * (norm + length) * (norm + length)
            else:
                far += rounding * length * norm
        far = 1.001 * far + 8 * _STEP * abs(score)   # float32 rounding of both, and of their sums
        if not far + abs(score) < _LARGEST:
            score, far = 0.0, np.inf
        reach[i], keys[i] = far, key_of(np.float32(score), place)


@compiled
def middle_stage(tables, dim, known, level, vector, length, keep, places, sums, keys, spare, reach, coarse, fine):
    # Moves the best ``keep`` of candidates whose columns up to ``known`` were summed in 8 bits to the front, with their
    # sums in 8 bits; returns their number.
    count = len(places)
    add_codes_to(tables, dim, known, vector, places, sums, coarse, fine)
    if count <= keep:
        return count
    _bound(tables, dim, known, level, vector, length, places, sums, keys, reach)
    for i in range(count):
        spare[i] = key_of(score_of(keys[i]) - reach[i], i)
    cut(spare[:count], keep)
    sure_not = score_of(spare[keep - 1])   # at least keep candidates score this or more
    for i in range(count):
        spare[i] = key_of(score_of(keys[i]) + reach[i], i)
    cut(spare[:count], keep + 1)
    sure = score_of(spare[keep])   # at most keep candidates can score more than this
    # Certain candidates first, then open ones; the others are dropped.
    certain = left = 0
    for i in range(count):
        score = score_of(keys[i])
        if score + reach[i] < sure_not:
            continue
        places[left], places[i], sums[left], sums[i] = places[i], places[left], sums[i], sums[left]
        if score - reach[i] > sure:
            places[left], places[certain] = places[certain], places[left]
            sums[left], sums[certain] = sums[certain], sums[left]
            certain += 1
        left += 1
    if left > keep > certain:
        doubt = left - certain
        full_stage(tables, dim, 0, level, vector, length, places[certain:left], reach[:doubt], keys[:doubt], False)
        spare[:doubt] = keys[:doubt]
        lowest, left = lowest_kept(spare[:doubt], keep - certain, keep, np.float32(np.inf)), certain
        for i in range(doubt):
            if keys[i] >= lowest:
                places[left], sums[left] = places[certain + i], sums[certain + i]
                left += 1
    return min(left, keep)


@compiled
def last_stage(tables, dim, known, level, vector, length, keep, places, sums, keys, spare, reach, coarse, fine):
    # Moves the candidates that may be among the best ``keep`` to the front, with keys of their rows; returns their
    # number.
    count, left = len(places), 0
    if count < _TIMES * keep:
        full_stage(tables, dim, 0, level, vector, length, places, sums, keys, True)
        return count
    add_codes_to(tables, dim, known, vector, places, sums, coarse, fine)
    _bound(tables, dim, known, level, vector, length, places, sums, keys, reach)
    spare[:count] = keys
    lowest = lowest_kept(spare[:count], keep, keep, np.float32(np.inf))
    bar, blocks, size = score_of(lowest), blocks_of(tables, 0, dim), 2 if tables.half else 4
    for i in range(count):
        reach[i] += score_of(keys[i])
        if reach[i] >= bar:   # prefetches nearly all candidates that will be read
            fetch_row(blocks, size, np.int64(tables.rows[places[i]]))
        if keys[i] >= lowest:
            places[left], places[i], reach[left], reach[i] = places[i], places[left], reach[i], reach[left]
            left += 1
    full_stage(tables, dim, 0, level, vector, length, places[:keep], sums[:keep], keys[:keep], True)
    bar = np.float32(np.inf)
    for i in range(keep):
        bar = min(bar, score_of(keys[i]))
    for i in range(keep, count):
        if not reach[i] < bar:
            places[left] = places[i]
            left += 1
    more = places[keep:left], sums[keep:left], keys[keep:left]
    full_stage(tables, dim, 0, level, vector, length, *more, True)
    return left
