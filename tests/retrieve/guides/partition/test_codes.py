"""4-bit and 8-bit codes: their errors, and the layout of tiles."""

from __future__ import annotations

import numpy as np
import pytest
from partition_oracle import nibbles

from matryo.retrieve.guides.partition.codes import (
    LINE,
    aligned,
    byte_columns,
    byte_errors,
    decode_nibbles,
    encode_bytes,
    encode_nibbles,
    nibble_columns,
    tiled,
)


@pytest.mark.parametrize("dim", [1, 3, 4, 7, 8, 9, 16, 37, 96])
@pytest.mark.parametrize("count", [16, 48])
def test_tiles_hold_each_code_once(count: int, dim: int) -> None:
    codes = np.random.default_rng(dim).integers(0, 16, (count, dim)).astype(np.uint8)
    tiles = tiled(codes)
    assert tiles.shape == (count // 16, -(-dim // 8) * 64) and tiles.dtype == np.uint8
    np.testing.assert_array_equal(nibbles(tiles, dim), codes)
    used = int(np.unpackbits(codes).sum())   # codes of columns beyond the dim are 0
    assert int(np.unpackbits(tiles).sum()) == used


def test_4_bit_codes_are_half_a_step_off_or_clipped() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((40_000, 6)) * [1, 1e-3, 1e3, 1, 1, 0] + [0, 1, 0, -50, 0, 7]).astype(np.float32)
    columns = nibble_columns(rows)
    step, low = columns
    codes = encode_nibbles(rows, columns)
    assert codes.max() == 15 and codes.min() == 0
    decoded = decode_nibbles(codes, columns)
    clipped = np.clip(rows, low, low + 15 * step)
    assert (np.abs(decoded - clipped) <= 0.5001 * step + 1e-5 * np.abs(rows)).all()
    assert (decoded[:, 5] == 7).all()   # a constant column has no error
    # The mean squared error of the best 16 equal steps for normal values is 0.01154 of the variance (Max, 1960).
    errors = np.square(decoded - rows).mean(0)[[0, 2, 4]] / rows.var(0)[[0, 2, 4]]
    assert errors == pytest.approx(np.full(3, 0.01154), rel=0.1)


def test_4_bit_columns_of_no_rows_and_of_one() -> None:
    assert nibble_columns(np.empty((0, 3), np.float32)).tolist() == [[1] * 3, [0] * 3]
    row = np.array([[2, -3, 0]], np.float32)
    assert decode_nibbles(encode_nibbles(row, nibble_columns(row)), nibble_columns(row)).tolist() == row.tolist()


@pytest.mark.parametrize("power", [-110, -40, 0, 40, 55])
def test_8_bit_codes_are_as_near_as_their_errors_say(power: int) -> None:
    rng = np.random.default_rng(1)
    rows = np.ldexp(rng.standard_normal((500, 20)) * np.arange(1, 21) + 5, power).astype(np.float32)
    columns = byte_columns(rows[:400].min(0), rows[:400].max(0))   # of a sample: others may be clipped
    codes = encode_bytes(rows, columns)
    assert codes.dtype == np.int8 and codes.min() >= -127
    held = codes.astype(float) * columns[0].astype(float) + columns[1]
    apart, errors = np.linalg.norm(rows - held, axis=1), byte_errors(rows, codes, columns)
    assert (errors >= apart).all()
    lengths = np.linalg.norm(rows.astype(float), axis=1) + np.linalg.norm(held, axis=1) + np.linalg.norm(columns[1])
    assert (errors <= apart * 1.001 + 2.0**-20 * lengths).all()
    inside = (np.abs(rows[:400] - held[:400]) <= 0.51 * columns[0]).all()
    assert inside


def test_a_constant_column_has_8_bit_codes_of_0() -> None:
    rows = np.full((5, 2), 3, np.float32)
    columns = byte_columns(rows.min(0), rows.max(0))
    assert columns.tolist() == [[1, 1], [3, 3]] and not encode_bytes(rows, columns).any()


def test_arrays_begin_at_a_cache_line() -> None:
    for shape in ((3, 5), (16, 4), (7,)):
        array = aligned(shape, np.float32, 2)
        assert array.shape == shape and array.ctypes.data % LINE == 0 and (array == 2).all()
