"""The compiled loops against plain products of the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("numba")
from matryo.retrieve.engines.compiled import kernels
from matryo.retrieve.engines.compiled.exact import score_at

WIDTHS = (1, 7, 8, 48, 64, 100, 256)


def held(rows: np.ndarray) -> np.ndarray:
    return rows if rows.dtype == np.float32 else rows.view(np.uint16)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_of_a_block_and_of_a_shortlist(width: int, dtype: str) -> None:
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((37, width)).astype(dtype)
    query = rng.standard_normal(width).astype(np.float32)
    at = np.array([30, 2, 2, 36, 0])
    true = rows.astype(np.float64) @ query
    sums = np.ones(37, np.float32)
    kernels.add_products(held(rows), query, sums)
    np.testing.assert_allclose(sums, 1 + true, rtol=0, atol=1e-5 * width)
    some = np.ones(5, np.float32)
    kernels.add_products_at(held(rows), query, at, some)
    np.testing.assert_array_equal(some, sums[at])   # to the bit, wherever the row lies
    blocks = np.array([[rows.ctypes.data, 0, width]])
    apart = np.square(rows.astype(np.float64) - query).sum(1)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1) * np.linalg.norm(query.astype(np.float64))
    at[0], outside = 0xFFFFFFFF, [0]   # a row that does not exist is not read
    for metric, wanted in enumerate((true / lengths, true, -apart)):
        exact, squares = np.zeros(5), np.zeros(5)
        score_at(blocks, dtype == "float16", 37, metric, query.astype(np.float64), at, exact, squares)
        assert (exact[outside] == -np.inf).all()
        np.testing.assert_allclose(exact[1:], wanted[at[1:]], rtol=0, atol=1e-13 * width)


def test_equal_rows_have_equal_sums_wherever_they_lie() -> None:
    rng = np.random.default_rng(0)
    row, query = rng.standard_normal((2, 100)).astype(np.float32)
    sums = np.zeros(67, np.float32)
    kernels.add_products(np.tile(row, (67, 1)), query, sums)
    assert len(set(sums.tolist())) == 1


@pytest.mark.parametrize("width", [3, 16, 64, 192])
def test_products_with_bytes_are_exact(width: int) -> None:
    rng = np.random.default_rng(width)
    codes, query = rng.integers(-127, 128, (50, width)).astype(np.int8), rng.integers(-9, 9, width).astype(np.float32)
    sums = np.arange(50, dtype=np.float32)
    kernels.add_products(codes, query, sums)
    np.testing.assert_array_equal(sums, np.arange(50) + codes.astype(int) @ query.astype(int))


@pytest.mark.parametrize("keep", [1, 10, 200, 5000])
def test_the_best_are_those_of_a_sort_with_ties_by_row(keep: int) -> None:
    rng = np.random.default_rng(keep)
    for scores in (
        rng.standard_normal(3000),
        rng.integers(-2, 3, 3000) * 0.5,   # hardly anything but ties
        np.where(rng.random(3000) < 0.5, 0.0, -0.0),
        np.arange(3000.0),   # each better than all before
        np.full(3000, -np.inf),
    ):
        found = kernels.best(scores.astype(np.float32), keep)
        np.testing.assert_array_equal(found, np.argsort(-scores, kind="stable")[:keep])


def sketched(rng: np.random.Generator, count: int, width: int) -> tuple[np.ndarray, ...]:
    codes = rng.integers(-127, 128, (count, width)).astype(np.int8)
    padded = np.zeros((-(-count // kernels.LANES) * kernels.LANES, width), np.int8)
    padded[:count] = codes
    tiles = (padded.view(np.uint8) ^ 128).reshape(-1, kernels.LANES, width // 4, 4).transpose(0, 2, 1, 3)
    query = rng.integers(-16319, 16320, width)
    query[0] = 16319
    high = (query + 64) >> 7
    low = query - (high << 7)
    return codes, np.ascontiguousarray(tiles), query, high.astype(np.int8), low.astype(np.int8)


@pytest.mark.parametrize(("count", "width"), [(1, 4), (16, 32), (45, 64), (1000, 512)])
def test_a_scan_of_a_sketch_gives_every_product_and_the_best_rows(count: int, width: int) -> None:
    rng = np.random.default_rng(count)
    codes, tiles, query, high, low = sketched(rng, count, width)
    true = (codes.astype(int) + 128) @ query
    offsets = np.zeros(tiles.shape[0] * kernels.LANES, np.float32)
    offsets[:count] = rng.standard_normal(count) * np.abs(true).max()
    for given, scores in ((None, true), (offsets, true.astype(np.float32) + offsets[:count])):
        for allowed in (np.ones(count, bool), rng.random(count) < 0.5):
            dots = np.empty(len(offsets), np.int32)
            found = kernels.scan_sketch(tiles, high, low, np.float32(1), given, allowed, dots, count, 10)
            np.testing.assert_array_equal(dots[:count], true)
            may = np.flatnonzero(allowed)
            best = may[np.argsort(-scores[may].astype(np.float32), kind="stable")[:10]]
            np.testing.assert_array_equal(found, best)


def test_sifting_keeps_exactly_the_rows_that_may_reach_the_bar() -> None:
    rng = np.random.default_rng(5)
    codes, tiles, query, high, low = sketched(rng, 330, 64)
    scale, padded = 2.0**-20, tiles.shape[0] * kernels.LANES
    dots = np.zeros(padded, np.int32)
    kernels.scan_sketch(tiles, high, low, np.float32(scale), None, np.ones(330, bool), dots, 330, 1)
    tails = np.zeros(padded, np.float32)
    tails[:330] = rng.random(330)
    known = dots[:330] * scale
    bar = float(np.quantile(known + 2 * tails[:330], 0.7))
    rows, sums = np.empty(330, np.int64), np.empty(330)
    first = np.float32(scale), None, tails, np.float32(2), np.float32(bar)
    count = kernels.sift_sketch(dots, *first, np.ones(330, bool), rows, sums, 330)
    left = np.flatnonzero(known + 2 * tails[:330] >= bar)
    np.testing.assert_array_equal(rows[:count], left)
    np.testing.assert_array_equal(sums[:count], known[left])
    more = known[left] + scale * (codes[left].astype(int) @ query)
    higher = float(np.median(more))
    count = kernels.sift_more(codes, high, low, scale, None, tails, 0.5, higher, rows[:count], sums[:count])
    still = more + 0.5 * tails[left] >= higher
    assert 0 < still.sum() < len(left)
    np.testing.assert_array_equal(rows[:count], left[still])
    np.testing.assert_allclose(sums[:count], more[still], rtol=1e-12)


def test_bytes_are_multiplied_alike_on_a_processor_without_the_instruction() -> None:
    code = """
import numpy as np
from matryo.retrieve.engines.compiled import kernels
assert not kernels._VNNI
rng = np.random.default_rng(0)
codes, query = rng.integers(-127, 128, (50, 64)).astype(np.int8), rng.integers(-127, 128, 64).astype(np.int8)
rows, sums, none = np.arange(50), np.zeros(50), np.zeros(50, np.float32)
kernels.sift_more(codes, query, np.zeros_like(query), 1 / 128, None, none, 0.0, -np.inf, rows, sums)
print((sums == codes.astype(int) @ query.astype(int)).all())
"""
    # Kept where nobody looks: an installation's own cache is for its own processor.
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
