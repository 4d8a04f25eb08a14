"""Moments equal those of numpy over all rows at once, in any order and partition."""

import numpy as np
import pytest

from matryo.errors import EmbeddingsError
from matryo.retrofit import Moments


def of(*parts):
    moments = Moments(parts[0].shape[1])
    for part in parts:
        moments.add(part)
    return moments


def test_batches_give_the_moments_of_all_rows():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9000, 12)) * np.linspace(3, 0.01, 12) + rng.normal(size=12)
    for moments in (of(rows), of(*np.array_split(rows, 7))):
        assert moments.count == 9000
        np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(moments.covariance, np.cov(rows.T, bias=True), atol=2e-6)
        np.testing.assert_allclose(moments.second, rows.T @ rows / len(rows), atol=4e-6)


def test_a_large_common_mean_does_not_hide_a_small_variance():
    rng = np.random.default_rng(1)
    rows = 1e4 + rng.normal(size=(5000, 4))   # float32 products of the rows themselves would lose it
    np.testing.assert_allclose(of(*np.array_split(rows, 3)).covariance, np.cov(rows.T, bias=True), rtol=1e-4, atol=1e-4)


def test_huge_numbers_do_not_overflow():
    rows = np.random.default_rng(2).normal(size=(500, 3)) * 1e25
    np.testing.assert_allclose(of(rows).covariance / 1e50, np.cov(rows.T, bias=True) / 1e50, rtol=1e-6)


def test_merging_and_removing_equal_adding():
    rng = np.random.default_rng(3)
    one, two, three = (rng.normal(size=(200, 5)) + shift for shift in (0, 4, -7))
    merged = of(one)
    merged.merge(of(two))
    whole = of(one, two)
    np.testing.assert_allclose(merged.covariance, whole.covariance, rtol=1e-5)
    whole.add(three)
    whole.remove(three)
    np.testing.assert_allclose(whole.covariance, merged.covariance, rtol=1e-4, atol=1e-5)
    assert whole.count == merged.count == 400


def test_arrays_rebuild_them():
    moments = of(np.random.default_rng(4).normal(size=(50, 3)))
    again = Moments.of_arrays(moments.arrays())
    assert again.count == 50 and np.array_equal(again.covariance, moments.covariance)


def test_moments_of_another_model_are_refused():
    with pytest.raises(EmbeddingsError, match=r"moments of 3 columns .*got 4\): fit a new map"):
        Moments(3).merge(of(np.ones((2, 4))))
