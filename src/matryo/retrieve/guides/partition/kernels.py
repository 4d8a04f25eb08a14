"""Search of partitions as one compiled call: the nearest partitions, their tiles, and every later stage of a plan.

A query takes a few tens of microseconds, so control never returns to Python in between. What is constant over queries
is prepared once as an array of numbers and addresses, ``machine``.

numba caches compiled code and checks only this file for changes: after a change in a module that it imports, touch it.
"""

# mypy: ignore-errors
# The types are numba's.

from __future__ import annotations

import numpy as np

from matryo.retrieve.engines.compiled.exact import COSINE, IP, L2, score_at
from matryo.retrieve.engines.compiled.kernels import (
    LANES,
    add_dot,
    compiled,
    cut,
    key_of,
    lowest_bit,
    same_bits,
    zeros,
)
from matryo.retrieve.guides.partition.bounded import last_stage, middle_stage
from matryo.retrieve.guides.partition.stages import begin, blocks_of, full_stage, int8_stage, sift
from matryo.retrieve.guides.partition.steps import BOUNDED, FULL
from matryo.retrieve.guides.partition.tables import (
    FIELDS,  # noqa: F401, read by the search
    look_with,
    lowest_kept,
    measure,
    opened,
    ordered,
    place_of,
    score_of,
)
from matryo.retrieve.guides.partition.vectors import fetch, graded, reaching

_AHEAD = 4   # tiles to prefetch


@compiled
def _nearest(tables, look, times, gap, keep, looks, keys):
    # Collects keys of the partitions whose means score at most ``gap`` below the best, sorted, the best last.
    # Adds further partitions while they hold fewer than ``keep`` rows. Returns their number.
    for tile in range(tables.mean_tiles - 1):
        high = low = zeros()
        for j in range(tables.fours):
            at = (tile * tables.fours + j) * 4 * LANES
            high = add_dot(tables.means, at, look.coarse, 4 * j, high)
            low = add_dot(tables.means, at, look.fine, 4 * j, low)
        place = tile * LANES
        graded(high, low, look.scale, look.shift, tables.means_adjust, place, times, looks, place, np.float32(np.inf))
    most = np.int32(-0x80000000)
    for one in range(tables.list_count):   # many at a time, by bits
        most = max(most, ordered(same_bits(looks[one])))
    best = same_bits(ordered(most))
    while True:
        found, held = 0, np.int64(0)
        for place in range(0, (tables.mean_tiles - 1) * LANES, LANES):
            lanes = reaching(looks, place, best - gap)
            while lanes:
                one = place + lowest_bit(lanes)
                lanes &= lanes - np.uint64(1)
                if one < tables.list_count:   # always, unless the file is damaged
                    keys[found] = key_of(looks[one], one)
                    held += tables.lists[one, 1]
                    found += 1
        if held >= keep or gap == np.inf:
            break
        gap = np.float32(np.inf)
    if found > tables.most:
        cut(keys[:found], tables.most)
        found = tables.most
    keys[:found].sort()
    return found


@compiled
def _scan(tiles, fours, first, last, after, look, adjust, times, scores, rows, count, allowed, keys, found, keep, k,
          margin, bar):
    # Scans the tiles first … last, two at a time; ``after`` is the next tile. Keys of rows above the bar are added to
    # ``found``. Returns their number and the bar.
    everyone, size, base = len(allowed) == 0, fours * 4 * LANES, tiles.ctypes.data
    for tile in range(first, last, 2):
        high = low = high2 = low2 = zeros()
        coming = tile + _AHEAD
        if coming >= last:
            coming += after - last
        for j in range(fours):
            at = tile * size + j * 4 * LANES
            fetch(base + coming * size + j * 4 * LANES)
            fetch(base + coming * size + size + j * 4 * LANES)
            high = add_dot(tiles, at, look.coarse, 4 * j, high)
            low = add_dot(tiles, at, look.fine, 4 * j, low)
            high2 = add_dot(tiles, at + size, look.coarse, 4 * j, high2)
            low2 = add_dot(tiles, at + size, look.fine, 4 * j, low2)
        lanes = graded(high, low, look.scale, look.shift, adjust, tile * LANES, times, scores, 0, bar)
        lanes2 = graded(high2, low2, look.scale, look.shift, adjust, tile * LANES + LANES, times, scores, LANES, bar)
        if tile + 1 < last:
            lanes |= lanes2 << np.uint64(LANES)
        while lanes:
            lane = lowest_bit(lanes)
            lanes &= lanes - np.uint64(1)
            place = tile * LANES + lane
            row = rows[place]
            if row < count and (everyone or allowed[row]):   # the first always holds, unless the file is damaged
                keys[found] = key_of(scores[lane], place)
                found += 1
                if found == len(keys):
                    # One step lower: rows that tie with the last one kept may have smaller numbers.
                    bar = score_of(lowest_kept(keys, keep, k, margin) - (np.int64(1) << 32))
                    found = keep
    return found, bar


@compiled
def _first_stage(tables, keep, margins, vector, length, allowed, keys, lists, looks, scores, coarse, fine):
    # Puts keys of about the best ``keep`` places at the dim of the tiles first in ``keys``; returns their number.
    factor = 2.0 if tables.metric == L2 else 1.0
    if tables.metric == COSINE:
        factor = 1 / length if length > 0 else 0.0
    fours, times, low = tables.fours, tables.metric == COSINE, np.float32(-np.inf)
    look = look_with(vector, tables.columns, 0, tables.dim, 0, coarse[: 4 * fours], fine[: 4 * fours], factor)
    if tables.wanted < 0:
        return _scan(tables.tiles, fours, 0, tables.tile_count - 1, 0, look, tables.adjust, times, scores, tables.rows,
                     tables.count, allowed, keys, 0, keep, tables.k, margins[0], low)[0]
    gap = margins[len(margins) - 1] * np.float32(length if tables.metric == IP else 1.0)
    # With a mask, the number of near rows that may be found is unknown.
    near = _nearest(tables, look, times, np.float32(np.inf) if len(allowed) else gap, keep, looks, lists)
    i, found, bar, left, far = near - 1, 0, low, tables.wanted, score_of(lists[near - 1]) - gap
    while i >= 0 and left > 0 and (found < keep or score_of(lists[i]) >= far):
        one = place_of(lists[i])
        first, rows = tables.lists[one, 0], tables.lists[one, 1]
        after = tables.lists[place_of(lists[max(i - 1, 0)]), 0]
        found, bar = _scan(tables.tiles, fours, first, first + (rows + LANES - 1) // LANES, after, look, tables.adjust,
                           times, scores, tables.rows, tables.count, allowed, keys, found, keep, tables.k, margins[0],
                           bar)
        i, left = i - 1, left - rows
    return found


@compiled
def _write(tables, dim, query, keys, k, rows, scores, squares):
    # Writes the best k of the remaining rows with their exact scores, sorted, then empty places.
    left = len(keys)
    if left > k:
        cut(keys, k)
        left = k
    for i in range(left):
        rows[i] = place_of(keys[i])
    rows[left:] = -1
    rows[:left].sort()
    score_at(blocks_of(tables, 0, dim), tables.half, tables.count, tables.metric, query, rows, scores, squares)
    order = np.argsort(-scores, kind="mergesort")   # stable: of equal scores the smaller row first
    rows[:], scores[:] = rows[order], scores[order]


@compiled
def search(machine, stages, margins, queries, allowed, rows, scores):
    """Run a plan for each of the ``queries``; the hits are written to ``rows`` and ``scores`` [queries, k].

    A stage consists of: how it scores (``INT8``, ``FULL``, ``BOUNDED``), its dim, its keep, the columns summed before,
    the level of its dim. The first stage is in int8, the last is not. An empty mask ``allowed`` allows all rows.
    Returns −1, or the number of the first query that has no valid score.
    """
    tables, keep, count = opened(machine), stages[0, 2], len(stages)
    vector, lengths = np.empty(tables.width, np.float32), np.empty(tables.levels)
    lists, looks = np.empty(tables.list_count, np.int64), np.empty(tables.mean_tiles * LANES, np.float32)
    some, exact, squares = np.empty(2 * LANES, np.float32), np.empty(tables.width), np.empty(tables.k)
    keys, spare = np.empty(2 * keep + 64, np.int64), np.empty(2 * keep + 64, np.int64)
    places, sums, reach = np.empty(keep, np.int64), np.empty(keep, np.float32), np.empty(keep, np.float32)
    coarse = np.empty(max(4 * tables.fours, tables.stride), np.int8)
    fine = np.empty(len(coarse), np.int8)
    for one in range(len(queries)):
        if not measure(queries[one], tables, vector, lengths):
            return one
        length = lengths[stages[0, 4]]
        left = _first_stage(tables, keep, margins, vector, length, allowed, keys, lists, looks, some,
                            coarse, fine)
        lowest, kept = lowest_kept(keys[:left], keep, tables.k, margins[0]), 0
        for i in range(min(left, keep)):
            if keys[i] >= lowest:
                keys[kept] = keys[i]
                kept += 1
        left = kept
        begin(tables, keys[:left], places, sums, length)
        for s in range(1, count):
            how, dim, most, known, level = stages[s]
            length, held, final = lengths[level], (places[:left], sums[:left], keys[:left]), s == count - 1
            if how == BOUNDED:
                about = tables, dim, known, level, vector, length, most, *held, spare, reach, coarse, fine
                left = last_stage(*about) if final else middle_stage(*about)
                continue
            if how == FULL:
                full_stage(tables, dim, known, level, vector, length, *held, final)
            else:
                int8_stage(tables, dim, known, level, vector, length, *held, coarse, fine)
            if not final:
                left = sift(*held, spare, most, tables.k, margins[s])
        exact[:] = queries[one]
        _write(tables, stages[count - 1, 1], exact, keys[:left], tables.k, rows[one], scores[one], squares)
    return -1
