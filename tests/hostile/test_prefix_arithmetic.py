"""Norms and unit vectors of every dtype, from denormal to huge numbers, against float64; with and without torch."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.nesting import prefix_norms, truncate

LIBRARIES = ["numpy", "torch"]
INTEGERS = ["bool", "int8", "uint8", "int16", "int32", "int64"]
SCALES = [1e-45, 1e-42, 1e-38, 1e-30, 1e-20, 1e-12, 1.0, 1e12, 1e19, 1e30, 1e37]


def given_to(library: str, array: np.ndarray) -> object:
    return array if library == "numpy" else pytest.importorskip("torch").from_numpy(array)


def true_unit(rows: np.ndarray, dim: int) -> np.ndarray:
    prefix = rows[:, :dim].astype(np.float64)
    norms = np.linalg.norm(prefix, axis=1, keepdims=True)   # squares of float32 numbers are numbers of float64
    return prefix / np.where(norms > 0, norms, 1)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [*INTEGERS, "float16", "float32", "float64"])
def test_every_dtype_has_unit_prefixes(library: str, dtype: str) -> None:
    limits = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype) if dtype != "bool" else None
    low, high = (0, 1) if limits is None else (float(limits.min) / 4, float(limits.max) / 4)
    rows = np.random.default_rng(3).uniform(low, high, (20, 6)).astype(dtype)
    rows = np.concatenate([rows, np.array([[90, -100, 20, 1, 0, 3]]).astype(dtype), np.zeros((1, 6), dtype)])
    unit = np.asarray(truncate(given_to(library, rows), 2))
    assert unit.dtype == (dtype if dtype.startswith("f") else "float32")
    scaled = rows / np.maximum(np.abs(rows.astype(np.float64)).max(1, keepdims=True), 1)   # float64 overflows too
    np.testing.assert_allclose(unit, true_unit(scaled, 2), rtol=0, atol=2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("scale", SCALES)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_square_overflows_or_vanishes(library: str, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((5, 7)) * scale).astype(np.float32)
    rows[rng.random((5, 7)) < 0.3] *= np.float32(1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        units = {dim: np.asarray(truncate(given_to(library, rows), dim)) for dim in (1, 3, 7)}
        norms = np.asarray(prefix_norms(given_to(library, rows), [1, 3, 7]))
    wide = rows.astype(np.float64)
    for column, (dim, unit) in enumerate(units.items()):
        np.testing.assert_allclose(unit, true_unit(rows, dim), rtol=0, atol=1e-6)
        np.testing.assert_allclose(norms[:, column], np.linalg.norm(wide[:, :dim], axis=1), rtol=1e-6, atol=2e-45)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_small_prefix_of_a_large_vector_has_its_own_norm(library: str) -> None:
    rows = np.array([[3e-30, 4e-30, 1e30]], np.float32)
    np.testing.assert_allclose(np.asarray(prefix_norms(given_to(library, rows), [2, 3])), [[5e-30, 1e30]], rtol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    beside = np.concatenate([rows, np.full((1, 5), 1e30, np.float32), np.full((1, 5), 1e-40, np.float32)])
    np.testing.assert_array_equal(truncate(beside, 4)[:9], truncate(rows, 4))
    np.testing.assert_array_equal(prefix_norms(beside, [2, 5])[:9], prefix_norms(rows, [2, 5]))


def test_gradients_of_extreme_vectors_are_those_of_ordinary_ones() -> None:
    torch = pytest.importorskip("torch")
    ordinary = torch.tensor([[3.0, 4.0, 12.0]], requires_grad=True)
    (truncate(ordinary, 2) @ torch.tensor([1.0, 2.0])).sum().backward()
    for scale in (1e-20, 1e20):
        z = (ordinary.detach() * scale).requires_grad_()
        (truncate(z, 2) @ torch.tensor([1.0, 2.0])).sum().backward()
        np.testing.assert_allclose(z.grad * scale, ordinary.grad, rtol=1e-5)
    zero = torch.zeros(1, 3, requires_grad=True)
    truncate(zero, 2).sum().backward()
    assert torch.isfinite(zero.grad).all()
