"""The later stages of a plan on partitions, compiled: sums of a few candidates grow by columns, and the best stay.

Candidates lie far apart in memory, so each is prefetched before it is read.
"""

# mypy: ignore-errors
# The types are numba's.

from __future__ import annotations

import numpy as np
from numba import carray

from matryo.retrieve.engines.compiled.exact import COSINE, L2
from matryo.retrieve.engines.compiled.kernels import LANES, add_long_dot, compiled, key_of, pointer, total, wide, zeros
from matryo.retrieve.guides.partition.tables import LINE, TINY, look_with, lowest_kept, place_of, score_of
from matryo.retrieve.guides.partition.vectors import (
    add_product,
    add_square,
    fetch,
    no_products,
    total_product,
)

_CODES_AHEAD, _ROWS_AHEAD = 12, 16   # candidates to prefetch


@compiled
def begin(tables, keys, places, sums, length):
    # Recovers the candidates of the first stage, with the sums behind their scores.
    for i in range(len(keys)):
        places[i], sums[i] = place_of(keys[i]), score_of(keys[i])
        fetch(tables.rows.ctypes.data + 4 * places[i])
        other = tables.adjust[places[i]]
        if tables.metric == L2:
            sums[i] = np.float32(0.5) * (sums[i] - other)
        elif tables.metric == COSINE:
            sums[i] = sums[i] * np.float32(length) / other if other > 0 else np.float32(0)


@compiled
def _fetch_codes(tables, place, first, width):
    fetch(tables.errors.ctypes.data + 4 * place)
    for j in range(first, first + width, LINE):
        fetch(tables.codes + place * tables.stride + j)


@compiled
def _add_codes(tables, look, first, places, sums):
    # Adds the products over some codes of each candidate, starting at column ``first`` of them, to its sum.
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
def add_codes_to(tables, dim, done, vector, places, sums, coarse, fine):
    # Adds the codes of the columns done … dim to the sums.
    if dim > done:
        first = (done - tables.dim) // LINE * LINE
        width = (dim - tables.dim + LINE - 1) // LINE * LINE - first
        start = done - tables.dim - first
        look = look_with(vector, tables.columns, done, dim, start, coarse[:width], fine[:width], 1.0)
        _add_codes(tables, look, first, places, sums)


@compiled
def int8_stage(tables, dim, done, level, vector, length, places, sums, keys, coarse, fine):
    # Adds the codes of the columns done … dim, and computes keys from the scores.
    add_codes_to(tables, dim, done, vector, places, sums, coarse, fine)
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
def blocks_of(tables, done, dim):
    # The blocks with the columns done … dim in full precision: address, first column, end.
    first = last = 0
    for number in range(tables.block_count):
        first += tables.blocks[number, 1] < done
        last += tables.blocks[number, 1] < dim
    return tables.blocks[first:last]


@compiled
def fetch_row(blocks, size, row):
    for number in range(len(blocks)):
        width = size * (blocks[number, 2] - blocks[number, 1])
        start = blocks[number, 0] + row * width
        for at in range(start & -LINE, start + width, LINE):
            fetch(at)


@compiled
def _row_product(blocks, row, apart, vector, like):
    # The product of a row's columns with those of the query; for L2, their squared distance. Rows have the dtype of
    # ``like``.
    size, sum_ = like.itemsize, np.float32(0)
    even = odd = no_products()
    for number in range(len(blocks)):
        first = blocks[number, 1]
        width = blocks[number, 2] - first
        numbers = carray(pointer(blocks[number, 0] + size * row * width), (width,), like.dtype)
        whole, pairs = width & -LANES, width & -(2 * LANES)
        for j in range(0, pairs, 2 * LANES):
            if apart:
                even = add_square(numbers, j, vector, first + j, even)
                odd = add_square(numbers, j + LANES, vector, first + j + LANES, odd)
            else:
                even = add_product(numbers, j, vector, first + j, even)
                odd = add_product(numbers, j + LANES, vector, first + j + LANES, odd)
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
    # Adds columns in full precision, and computes keys from the scores: of places, in the last stage of rows.
    unit, count, apart = np.float32(1) / max(np.float32(length), TINY), len(places), tables.metric == L2
    blocks, size, norms, levels = blocks_of(tables, done, dim), 2 if tables.half else 4, tables.norms, tables.levels
    halves, rows = carray(pointer(tables.blocks[0, 0]), (0,), np.uint16), tables.rows
    for i in range(min(_ROWS_AHEAD, count)):
        fetch_row(blocks, size, np.int64(rows[places[i]]))
    for i in range(count):
        if i + _ROWS_AHEAD < count:
            coming = np.int64(rows[places[i + _ROWS_AHEAD]])
            fetch(norms.ctypes.data + 4 * coming * levels)
            fetch_row(blocks, size, coming)
        row = np.int64(rows[places[i]])
        if size == 2:
            score = _row_product(blocks, row, apart, vector, halves)
        else:
            score = _row_product(blocks, row, apart, vector, vector)
        sums[i] = score = score + sums[i] if done else score
        if apart:
            score = -score
        elif tables.metric == COSINE:
            score = score * (np.float32(1) / max(norms[row, level], TINY)) * unit
        keys[i] = key_of(score, row if final else places[i])


@compiled
def sift(places, sums, keys, spare, keep, k, margin):
    # Moves the candidates that stay to the front; returns their number.
    spare[: len(keys)] = keys
    lowest, left = lowest_kept(spare[: len(keys)], keep, k, margin), 0
    for i in range(len(keys)):
        if keys[i] >= lowest:
            places[left], sums[left], keys[left] = places[i], sums[i], keys[i]
            left += 1
    return left
