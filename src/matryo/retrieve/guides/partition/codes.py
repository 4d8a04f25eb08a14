"""Codes of rows: 4 bits per column for the tiles, 8 bits per column for re-ranking.

A column has codes of its own, so that columns of small and of large numbers are equally precise. Codes of 4 bits are
spaced for normally distributed values and clip the tails; codes of 8 bits span the range of the column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Array, Codes, Floats

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

LANES = 16   # rows per tile
EIGHT = 8    # columns that 64 bytes of a tile hold
LINE = 64    # bytes per cache line
_SPACING = 0.3352   # of 16 codes, in standard deviations: the smallest mean squared error for normal values
_NIBBLE = 15


def nibble_columns(sample: Floats) -> Floats:
    """Return the step and the lowest value of each column's 4-bit codes, [2, columns]."""
    if not len(sample):
        return np.stack([np.ones(sample.shape[1]), np.zeros(sample.shape[1])]).astype(np.float32)
    steps = _SPACING * sample.std(0, dtype=np.float64)
    lows = sample.mean(0, dtype=np.float64) - steps * _NIBBLE / 2
    tiny = steps < np.finfo(np.float32).tiny   # a constant column: its value is the lowest
    return np.stack([np.where(tiny, 1, steps), np.where(tiny, sample[0], lows)]).astype(np.float32)


def encode_nibbles(rows: Floats, columns: Floats) -> Bytes:
    """Return the 4-bit codes of ``rows``, one per byte."""
    made: Floats = rows - columns[1]
    made /= columns[0]
    np.clip(np.rint(made, out=made), 0, _NIBBLE, out=made)
    return made.astype(np.uint8)


def decode_nibbles(codes: Bytes, columns: Floats) -> Floats:
    """Return the values of 4-bit codes."""
    decoded: Floats = codes * columns[0]
    decoded += columns[1]
    return decoded


def byte_columns(low: Floats, high: Floats) -> Floats:
    """Return the step of each column's 8-bit codes and the middle of its range, [2, columns]."""
    steps = high / 254 - low / 254
    return np.stack([np.where(steps > 0, steps, 1), low / 2 + high / 2]).astype(np.float32)


def encode_bytes(rows: Floats, columns: Floats) -> Codes:
    """Return the 8-bit codes of ``rows``; values outside the range of a column are clipped."""
    made: Floats = rows - columns[1]
    made /= columns[0]
    np.clip(np.rint(made, out=made), -127, 127, out=made)
    return made.astype(np.int8)


def byte_errors(rows: Floats, codes: Codes, columns: Floats) -> Floats:
    """Return the distances of rows from their 8-bit codes, rounded up by more than the errors of float32 sums."""
    decoded = codes * columns[0] + columns[1]
    arrays = rows - decoded, rows, decoded, columns[1]
    apart, *added = (np.sqrt(np.square(array, dtype=np.float64).sum(-1)) for array in arrays)
    return np.asarray((apart + 2.0**-21 * sum(added)) * (1 + 1e-6), np.float32)


def packed(codes: Bytes) -> Bytes:
    """Return 4-bit codes two per byte: four bytes hold eight columns, the first four in the lower halves."""
    wide = np.zeros((len(codes), -(-codes.shape[1] // EIGHT) * EIGHT), np.uint8)
    wide[:, : codes.shape[1]] = codes
    fours = wide.reshape(len(codes), -1, 2, 4)
    both: Bytes = fours[:, :, 0] | fours[:, :, 1] << 4   # [row, eight, column]
    return both.reshape(len(codes), -1)


def tiled(codes: Bytes) -> Bytes:
    """Return 4-bit codes [16 · tiles, columns] as tiles; see ``src/core/codes.h``."""
    both = packed(codes)
    fours = both.reshape(-1, LANES, both.shape[1] // 4, 4)   # [tile, lane, eight, column]
    return np.ascontiguousarray(fours.transpose(0, 2, 1, 3)).reshape(len(fours), both.shape[1] * LANES)


def aligned(shape: tuple[int, ...], dtype: Any, value: Any) -> Array:
    """Return an array filled with ``value``, which begins at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    made: Array = raw[start : start + size].view(dtype).reshape(shape)
    made[:] = value
    return made
