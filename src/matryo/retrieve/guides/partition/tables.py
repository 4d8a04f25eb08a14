"""Lookup tables of the compiled search of partitions: arrays from addresses, keys, and queries in codes."""

# mypy: ignore-errors
# The types are numba's.

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import carray

from matryo.retrieve.engines.compiled.exact import COSINE
from matryo.retrieve.engines.compiled.kernels import LANES, compiled, cut, key_of, pointer, same_bits

FIELDS = (
    "metric", "width", "dim", "long", "fours", "list_count", "tile_count", "mean_tiles", "wanted", "most", "k",
    "stride", "levels", "block_count", "half", "count",
    "lists", "rows", "tiles", "codes", "adjust", "errors", "means", "means_adjust", "columns", "norms", "blocks",
    "dims",
)   # fmt: skip
"""The fields of ``machine``, in order: numbers, and addresses of arrays."""

Tables = namedtuple("Tables", FIELDS)   # FIELDS with arrays instead of addresses
Look = namedtuple("Look", ["coarse", "fine", "scale", "shift"])   # a query in codes: 128 · coarse + fine

LINE = 64   # bytes per cache line, and columns multiplied by one instruction
TINY = np.finfo(np.float32).tiny
FINE = 127 * 128 + 63   # the largest code of a query
_LARGEST = 2.0**62   # the largest norm of a query, as of a row
_LOWEST = np.iinfo(np.int64).min


@compiled
def opened(m):
    fours, lists, tiles, means, levels = m[4], m[5], m[6], m[7], m[12]
    return Tables(
        m[0], m[1], m[2], m[3], fours, lists, tiles, means, m[8], m[9], m[10], m[11], levels, m[13], m[14], m[15],
        carray(pointer(m[16]), (lists, 2), np.int64),
        carray(pointer(m[17]), (tiles * LANES,), np.uint32),
        carray(pointer(m[18]), (tiles * fours * 4 * LANES,), np.uint8),
        m[19],   # the codes are read row by row
        carray(pointer(m[20]), (tiles * LANES,), np.float32),
        carray(pointer(m[21]), (tiles * LANES,), np.float32),
        carray(pointer(m[22]), (means * fours * 4 * LANES,), np.uint8),
        carray(pointer(m[23]), (means * LANES,), np.float32),
        carray(pointer(m[24]), (2, m[3]), np.float32),
        carray(pointer(m[25]), (m[15], levels), np.float32),
        carray(pointer(m[26]), (m[13], 3), np.int64),
        carray(pointer(m[27]), (levels,), np.int64),
    )   # fmt: skip


# ── keys: a score and a place in one integer ──────────────────────────────────────────────────────────────────


@compiled
def ordered(bits):
    # Converts the bits of a float32 to an integer that sorts as the float does, and back.
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@compiled
def score_of(key):
    return same_bits(ordered(np.int32(key >> 32)))


@compiled
def place_of(key):
    return 0xFFFFFFFF - (key & 0xFFFFFFFF)


@compiled
def lowest_kept(keys, keep, k, margin):
    # Moves the best ``keep`` keys to the front and returns the lowest of them.
    lowest = np.int64(_LOWEST)
    if len(keys) > keep:
        cut(keys, keep)
        lowest, keys = keys[keep - 1], keys[:keep]
    if len(keys) > k and margin < np.inf:
        cut(keys, k)
        lowest = max(lowest, key_of(score_of(keys[k - 1]) - margin, 0xFFFFFFFF))
    return lowest


# ── a query in codes ──────────────────────────────────────────────────────────────────────────────────────────


@compiled
def measure(query, tables, vector, lengths):
    # The query for scoring, and its norm at each dim; for cosine, both divided by the full norm. Returns whether the
    # query has a valid score.
    square, low = 0.0, 0
    for level in range(tables.levels):
        for j in range(low, tables.dims[level]):
            square += np.float64(query[j]) * np.float64(query[j])
        low = tables.dims[level]
        lengths[level] = np.sqrt(square)
    norm, cosine = lengths[tables.levels - 1], tables.metric == COSINE
    if not norm <= _LARGEST or (cosine and norm == 0):
        return False
    unit = 1 / norm if cosine else 1.0
    for j in range(tables.width):
        vector[j] = np.float32(query[j] * unit)
    for level in range(tables.levels):
        lengths[level] *= unit
    return True


@compiled
def peak_of(vector, columns, low, high):
    # The largest value of one step of a column's codes.
    peak = np.int32(0)
    for j in range(low, high):   # the bits of positive floats sort as the floats do
        peak = max(peak, same_bits(vector[j] * columns[0, j]) & np.int32(0x7FFFFFFF))
    return same_bits(np.int32(peak))


@compiled
def look_with(vector, columns, low, high, start, coarse, fine, factor):
    # Encodes the columns low … high of a query, from ``start`` on; 0 elsewhere. The product of row and query is then
    # scale · (product of codes, those of rows being too large by 128) + shift, all multiplied by the factor.
    scale = peak_of(vector, columns, low, high) / np.float32(FINE)
    inverse = np.float32(1) / scale if scale >= TINY else np.float32(0)
    coarse[:] = 0
    fine[:] = 0
    sum_, middle = np.int32(0), 0.0
    for j in range(low, high):
        code = np.int32(np.rint(vector[j] * columns[0, j] * inverse))
        upper = (code + np.int32(64)) >> np.int32(7)
        coarse[start + j - low] = upper
        fine[start + j - low] = code - (upper << np.int32(7))
        sum_ += code
        middle += np.float64(vector[j]) * np.float64(columns[1, j])
    shift = middle - np.float64(scale) * 128 * sum_
    return Look(coarse, fine, np.float32(factor * scale), np.float32(factor * shift))
