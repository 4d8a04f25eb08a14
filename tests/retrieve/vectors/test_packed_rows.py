"""Packed codes against numpy, bit for bit, and against the vectors that they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from matryo.errors import InputError
from matryo.retrieve.vectors.metric import METRICS
from matryo.retrieve.vectors.packed import BITS, PackedRows, scores_by_numpy, tiled, untiled


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", [1, 4, 7, 32, 33, 100])
def test_tiles_hold_what_was_put_in(bits: int, width: int) -> None:
    codes = np.random.default_rng(width).integers(0, 1 << bits, (48, width), dtype=np.uint8)
    np.testing.assert_array_equal(untiled(tiled(codes, bits), bits)[:, :width], codes)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(1, 1), (16, 8), (17, 33), (333, 100), (40, 1100)])
def test_scores_have_the_bits_of_numpy(shape: tuple[int, int], bits: int, metric: str) -> None:
    rng = np.random.default_rng(shape[0] + bits)
    vectors = rng.standard_normal(shape) * np.linspace(2, 0.1, shape[1]) * 10.0 ** rng.integers(-6, 6)
    vectors[rng.integers(shape[0])] = 0
    vectors[shape[0] // 2 :: 3] = vectors[0]   # ties
    packed = PackedRows.of(vectors, bits, metric)
    queries = packed._queries(np.concatenate([vectors[:1], rng.standard_normal((6, shape[1]))]))
    every = np.tile(np.arange(shape[0]), (len(queries), 1))
    true = scores_by_numpy(packed, queries)
    asked = replace(packed, metric="ip")   # as the queries are prepared already
    np.testing.assert_array_equal(asked.score(queries, every), true)
    allowed = rng.random(shape[0]) < 0.7
    for mask in (None, allowed):
        may = every[0] if mask is None else np.flatnonzero(mask)
        for some in (queries[:1], queries):
            rows, scores = asked.search(some, 20, mask, threads=2)
            for line, found, given in zip(true, rows, scores, strict=False):
                best = may[np.lexsort((may, -line[may]))][:20]
                np.testing.assert_array_equal(found[: len(best)], best)
                np.testing.assert_array_equal(given[: len(best)], line[best])
                assert (found[len(best) :] == -1).all() and np.isneginf(given[len(best) :]).all()


@pytest.mark.parametrize("metric", METRICS)
def test_estimates_are_near_the_metric_and_nearer_with_more_bits(metric: str) -> None:
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((400, 256)), rng.standard_normal((20, 256))
    products = queries @ vectors.T
    lengths = np.linalg.norm(vectors, axis=1)
    true = {"ip": products, "l2": 2 * products - lengths**2,
            "cosine": products / lengths / np.linalg.norm(queries, axis=1)[:, None]}[metric]   # fmt: skip
    errors = {}
    for bits in BITS:
        packed = PackedRows.of(vectors, bits, metric)
        found = packed.score(queries, np.tile(np.arange(400), (20, 1)))
        errors[bits] = float(np.square(found - true).mean() / true.var())
        own = packed.decode() if metric != "cosine" else packed.decode() * lengths[:, None]
        # The correction: the product of a row with its own codes is its square.
        np.testing.assert_allclose(np.einsum("ij,ij->i", own, vectors), lengths**2, rtol=1e-4)
    assert errors[1] < 0.7 and errors[4] < 0.02 and errors[8] < 1e-4
    assert errors[8] < errors[4] < errors[1]


def test_the_bytes_per_row() -> None:
    vectors = np.ones((3, 64))
    assert [PackedRows.of(vectors, bits).bytes_per_row for bits in BITS] == [12, 36, 68]


def test_bad_arguments_are_refused() -> None:
    packed = PackedRows.of(np.eye(4), 8)
    for call, rule in (
        (lambda: PackedRows.of(np.eye(4), 2), "bits must be 1, 4 or 8"),   # type: ignore[arg-type]
        (lambda: PackedRows.of(np.full((2, 2), np.nan), 8), "vectors must be finite"),
        (lambda: packed.search(np.eye(4), 0), "k must be a positive integer"),
        (lambda: packed.search(np.full((1, 4), np.inf), 1), "queries must be finite"),
        (lambda: packed.score(np.eye(4)[:1], [[4]]), "rows must be in 0 … 3"),
        (lambda: packed.score(np.eye(4)[:1], [0]), "rows must have one line per query"),
    ):
        with pytest.raises(InputError, match=rule):
            call()
