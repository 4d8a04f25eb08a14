"""The stages of a plan after the first, compiled: what is known of a few candidates grows by columns, and few stay.

Candidates lie far apart in memory, so each is fetched some time before it is read.
"""

# mypy: ignore-errors
# The types here are numba's.

from __future__ import annotations

import numpy as np
from numba import carray

from matryo.retrieve.kernels import LANES, add_long_dot, compiled, key_of, total, wide, zeros
from matryo.retrieve.partition.tables import COSINE, L2, LINE, TINY, look_with, lowest_kept, place_of, score_of
from matryo.retrieve.partition.vectors import (
    add_product,
    add_square,
    fetch,
    no_products,
    pointer,
    total_product,
)

__all__ = ["begin", "full_stage", "int8_stage", "sift"]

_CODES_AHEAD, _ROWS_AHEAD = 6, 2   # candidates on their way


@compiled
def begin(tables, keys, places, sums, length):
    # The candidates of the first stage, with the sums that their scores were made of.
    for i in range(len(keys)):
        places[i], sums[i] = place_of(keys[i]), score_of(keys[i])
        other = tables.adjust[places[i]]
        if tables.metric == L2:
            sums[i] = np.float32(0.5) * (sums[i] - other)
        elif tables.metric == COSINE:
            sums[i] = sums[i] * np.float32(length) / other if other > 0 else np.float32(0)


@compiled
def _fetch_codes(tables, place, first, width):
    for j in range(first, first + width, LINE):
        fetch(tables.codes + place * tables.stride + j)


@compiled
def _add_codes(tables, look, first, places, sums):
    # Add the products over some codes of each candidate, from column ``first`` of these on, to its sum.
    width, count = len(look.coarse), len(places)
    for i in range(min(_CODES_AHEAD, count)):
        _fetch_codes(tables, places[i], first, width)
    for i in range(count):
        if i + _CODES_AHEAD < count:
            _fetch_codes(tables, places[i + _CODES_AHEAD], first, width)
        codes = carray(pointer(tables.codes + places[i] * tables.stride + first), (width,), np.int8)
        high = low = zeros()
        for j in range(0, width, LINE):
            high = add_long_dot(codes, j, look.coarse, j, high)
            low = add_long_dot(codes, j, look.fine, j, low)
        dot = 128.0 * total(high) + total(low)
        sums[i] += np.float32(dot * look.scale + look.shift)


@compiled
def int8_stage(tables, dim, done, level, vector, length, places, sums, keys, coarse, fine):
    # Add the codes of the columns done … dim, and make keys of the scores.
    if dim > done:
        first = (done - tables.dim) // LINE * LINE
        width = (dim - tables.dim + LINE - 1) // LINE * LINE - first
        start = done - tables.dim - first
        look = look_with(vector, tables.columns, done, dim, start, coarse[:width], fine[:width], 1.0)
        _add_codes(tables, look, first, places, sums)
    inverse, last = np.float32(1 / length) if length > 0 else np.float32(0), tables.levels - 1
    for i in range(len(places)):
        score = sums[i]
        if tables.metric == L2:
            norm = tables.norms[tables.rows[places[i]], level]
            score = np.float32(2) * score - norm * norm
        elif tables.metric == COSINE:
            score *= inverse
            if level < last:
                norms = tables.norms[tables.rows[places[i]]]
                score *= norms[last] / max(norms[level], TINY)
                score = min(max(score, np.float32(-1)), np.float32(1))
        keys[i] = key_of(score, places[i])


@compiled
def _fetch_row(tables, place, done, dim):
    row = np.int64(tables.rows[place])
    fetch(tables.norms.ctypes.data + 4 * row * tables.levels)
    for number in range(tables.block_count):
        if done <= tables.blocks[number, 1] < dim:
            width = (tables.blocks[number, 2] - tables.blocks[number, 1]) * (2 if tables.half else 4)
            start = tables.blocks[number, 0] + row * width
            for at in range(start & -LINE, start + width, LINE):
                fetch(at)


@compiled
def _row_product(tables, row, coming, done, dim, vector, like):
    # Of the columns done … dim of a row with those of the query; for L2, the square of how far they are apart. Rows
    # hold numbers as ``like`` does. Lines of the row ``coming`` are asked for one by one, as those of this are read:
    # all at once, they would keep the processor from what it has.
    apart, size, sum_ = tables.metric == L2, like.itemsize, np.float32(0)
    even = odd = no_products()
    for number in range(tables.block_count):
        start, first = tables.blocks[number, 0], tables.blocks[number, 1]
        width = tables.blocks[number, 2] - first
        if done <= first < dim:
            numbers = carray(pointer(start + size * row * width), (width,), like.dtype)
            ahead, whole, pairs = start + size * coming * width, width & -LANES, width & -(2 * LANES)
            for j in range(0, pairs, 2 * LANES):
                fetch(ahead + size * j)
                if size == 4:
                    fetch(ahead + size * (j + LANES))
                if apart:
                    even = add_square(numbers, j, vector, first + j, even)
                    odd = add_square(numbers, j + LANES, vector, first + j + LANES, odd)
                else:
                    even = add_product(numbers, j, vector, first + j, even)
                    odd = add_product(numbers, j + LANES, vector, first + j + LANES, odd)
            if pairs < width:
                fetch(ahead + size * pairs)
            if pairs < whole:
                if apart:
                    even = add_square(numbers, pairs, vector, first + pairs, even)
                else:
                    even = add_product(numbers, pairs, vector, first + pairs, even)
            for j in range(whole, width):
                one, other = wide(numbers[j]), vector[first + j]
                sum_ += (one - other) * (one - other) if apart else one * other
    return total_product(even, odd) + sum_


@compiled
def full_stage(tables, dim, done, level, vector, length, places, sums, keys, final):
    # Add columns in full precision, and make keys of the scores; in the end of rows, no more of places.
    unit, count = np.float32(1) / max(np.float32(length), TINY), len(places)
    for i in range(min(_ROWS_AHEAD, count)):
        _fetch_row(tables, places[i], done, dim)
    for i in range(count):
        row, coming = np.int64(tables.rows[places[i]]), np.int64(tables.rows[places[min(i + _ROWS_AHEAD, count - 1)]])
        fetch(tables.norms.ctypes.data + 4 * coming * tables.levels)
        if tables.half:
            halves = carray(pointer(tables.blocks[0, 0]), (0,), np.uint16)
            score = _row_product(tables, row, coming, done, dim, vector, halves)
        else:
            score = _row_product(tables, row, coming, done, dim, vector, vector)
        sums[i] = score = score + sums[i] if done else score
        if tables.metric == L2:
            score = -score
        elif tables.metric == COSINE:
            score = score * (np.float32(1) / max(tables.norms[row, level], TINY)) * unit
        keys[i] = key_of(score, row if final else places[i])


@compiled
def sift(places, sums, keys, spare, keep, k, margin):
    # Those candidates that stay come to the front; gives how many.
    spare[: len(keys)] = keys
    lowest, left = lowest_kept(spare[: len(keys)], keep, k, margin), 0
    for i in range(len(keys)):
        if keys[i] >= lowest:
            places[left], sums[left], keys[left] = places[i], sums[i], keys[i]
            left += 1
    return left
