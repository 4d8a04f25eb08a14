"""Scans of codes against plain loops over decoded rows, and the compiled product scan against its numpy twin."""

import numpy as np
import pytest

from matryo import Compression
from matryo.retrieve.compress.codes import scan as scans
from matryo.retrieve.compress.codes.scan import PackedScan, PlainScan, ProductScan, scan_of

DIM = 24


def made(seed, rows):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(DIM, DIM)))[0]
    return ((rng.normal(size=(rows, DIM)) * np.geomspace(1, 0.1, DIM)) @ turn + 0.1).astype(np.float32)


KINDS = {"product": {"bytes_per_vector": 7}, "packed": {"bits": 8}, "plain": {"bits": 16}}


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_finds_the_best_allowed_rows(kind, metric):
    vectors, queries = made(0, 1201), made(1, 5)
    compression = Compression.fit(vectors, metric=metric, progress=False, **KINDS[kind])
    codes = compression.encode(vectors)
    scan = scan_of(compression.fitted, metric, codes)
    assert type(scan) is {"product": ProductScan, "packed": PackedScan, "plain": PlainScan}[kind]
    if metric == "cosine":
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    scores = compression.score(queries, codes)
    for share in (1.0, 0.3, 0.01):
        allowed = np.random.default_rng(2).random(len(codes)) < share
        rows, found = scan.search(queries, 20, allowed if share < 1 else None)
        count = min(20, allowed.sum()) if share < 1 else 20
        best = np.sort(np.where(allowed, scores, -np.inf), axis=1)[:, ::-1][:, :count]
        np.testing.assert_allclose(found[:, :count], best, atol=3e-3 * np.abs(scores).max())
        taken = np.take_along_axis(scores, rows[:, :count], axis=1)
        np.testing.assert_allclose(found[:, :count], taken, atol=3e-3 * np.abs(scores).max())
        assert (rows[:, count:] == -1).all() and (found[:, count:] == -np.inf).all()
        assert allowed[rows[:, :count]].all() or share == 1


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("count", [1, 3, 4, 1001])
def test_the_compiled_product_scan_equals_numpy_bit_for_bit(metric, count, monkeypatch):
    if scans.core() is None:
        pytest.skip("the core is not installed")
    vectors, queries = made(0, 1001), made(1, 9)
    compression = Compression.fit(vectors, bytes_per_vector=5, metric=metric, progress=False)
    codes, mask = compression.encode(vectors)[:count], np.arange(count) % 3 != 1
    compiled = scan_of(compression.fitted, metric, codes)
    there = [compiled.search(queries, 12), compiled.search(queries, 12, mask), compiled.search(queries, 12, mask, 3)]
    monkeypatch.setattr(scans, "core", lambda: None)
    plain = scan_of(compression.fitted, metric, codes)
    here = [plain.search(queries, 12), plain.search(queries, 12, mask), plain.search(queries, 12, mask)]
    np.testing.assert_array_equal(compiled.factors, plain.factors)
    np.testing.assert_array_equal(compiled.offsets, plain.offsets)
    for (rows, scores), (same_rows, same_scores) in zip(there, here, strict=True):
        np.testing.assert_array_equal(rows, same_rows)
        np.testing.assert_array_equal(scores, same_scores)


def test_equal_codes_come_in_the_order_of_the_rows():
    vectors = made(0, 600)
    compression = Compression.fit(vectors, bytes_per_vector=3, progress=False)
    codes = np.repeat(compression.encode(vectors[:1]), 50, axis=0)
    rows, scores = scan_of(compression.fitted, "cosine", codes).search(vectors[:2], 5)
    assert rows.tolist() == [[0, 1, 2, 3, 4]] * 2 and (scores == scores[:, :1]).all()


def test_the_kernel_checks_its_arguments():
    core = scans.core()
    if core is None:
        pytest.skip("the core is not installed")
    codes, ones = np.zeros((5, 2), np.uint8), np.ones(5, np.float32)
    with pytest.raises(ValueError, match="one entry per row"):
        core.Products(codes, ones[:4], ones)
    with pytest.raises(ValueError, match="1 … 32768 bytes"):
        core.Products(codes[:, :0], ones, ones)
    products = core.Products(codes, ones, ones)
    tables, units = np.zeros((3, 512), np.int16), np.ones(3)
    rows, scores = np.empty((3, 4), np.int64), np.empty((3, 4), np.float32)
    with pytest.raises(ValueError, match="256 entries"):
        products.search(tables[:, :256].copy(), units, units, None, rows, scores, 1)
    with pytest.raises(ValueError, match="one entry per query"):
        products.search(tables, units[:2], units, None, rows, scores, 1)
    with pytest.raises(ValueError, match="a mask"):
        products.search(tables, units, units, np.ones(4, np.bool_), rows, scores, 1)
    with pytest.raises(ValueError, match="one line per query"):
        products.search(tables, units, units, None, rows[:2], scores, 1)
    with pytest.raises(ValueError, match="one sum per row"):
        products.sums(np.zeros((2, 256), np.float32), ones[:3].copy())
