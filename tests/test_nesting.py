"""Prefix arithmetic with numpy: properties that hold for any vectors, and the message of each broken rule."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matryo.errors import InputError, NestingError
from matryo.nesting import Nesting, prefix_norms, truncate

quick = settings(deadline=None, max_examples=60)


def vectors(dtype: type = np.float64, limit: float = 1e3) -> st.SearchStrategy[np.ndarray]:
    numbers = st.floats(-limit, limit, width={np.float16: 16, np.float32: 32, np.float64: 64}[dtype])
    return hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, max_side=9), elements=numbers)


def norm(row: np.ndarray) -> float:
    return math.sqrt(math.fsum(float(value) ** 2 for value in row))


@quick
@given(z=vectors(), data=st.data())
def test_truncating_twice_is_truncating_to_the_smaller(z: np.ndarray, data: st.DataObject) -> None:
    large = data.draw(st.integers(1, z.shape[-1]))
    small = data.draw(st.integers(1, large))
    for normalize in (False, True):
        twice = truncate(truncate(z, large, normalize), small, normalize)
        # A prefix of ~1e-160 is lost to underflow when the whole is first scaled; nothing short of that is.
        assert twice.shape == (*z.shape[:-1], small)
        if normalize and np.abs(z[..., :small][z[..., :small] != 0]).min(initial=1) < 1e-100:
            continue
        np.testing.assert_allclose(twice, truncate(z, small, normalize), rtol=1e-9, atol=1e-12)


@quick
@given(z=vectors(np.float32), data=st.data())
def test_a_truncated_vector_has_norm_one_unless_it_is_zero(z: np.ndarray, data: st.DataObject) -> None:
    dim = data.draw(st.integers(1, z.shape[-1]))
    for before, after in zip(
        z[..., :dim].reshape(-1, dim), truncate(z, dim).reshape(-1, dim), strict=True
    ):
        if np.abs(before).max() > 1e-15:   # float32 squares below are zero
            assert norm(after) == pytest.approx(1, abs=1e-5)
        elif not before.any():
            assert not after.any()


@quick
@given(z=vectors(), data=st.data())
def test_prefix_norms_are_the_norms_of_the_truncations(z: np.ndarray, data: st.DataObject) -> None:
    dims = sorted(data.draw(st.sets(st.integers(1, z.shape[-1]), min_size=1)))
    norms = prefix_norms(z, dims)
    assert norms.shape == (*z.shape[:-1], len(dims))
    for place, dim in enumerate(dims):
        plain = truncate(z, dim, normalize=False).reshape(-1, dim)
        expected = [norm(row) for row in plain]
        np.testing.assert_allclose(norms[..., place].ravel(), expected, rtol=1e-9, atol=1e-150)


def test_a_zero_vector_stays_zero() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        assert not truncate(np.zeros((2, 4), dtype), 3).any()


def test_half_precision_neither_overflows_nor_changes_its_dtype() -> None:
    z = np.full((1, 1000), 300, np.float16)   # 300² is beyond float16
    unit = truncate(z, 1000)
    assert unit.dtype == np.float16
    assert norm(unit[0]) == pytest.approx(1, abs=1e-2)
    assert prefix_norms(z, [1, 1000])[0].tolist() == pytest.approx([300, 300 * math.sqrt(1000)], rel=1e-5)


@quick
@given(z=vectors(np.float16, limit=60000))
def test_half_precision_of_any_size_is_finite(z: np.ndarray) -> None:
    assert np.isfinite(truncate(z, z.shape[-1])).all()
    assert np.isfinite(prefix_norms(z, [z.shape[-1]])).all()


def test_integers_are_widened() -> None:
    np.testing.assert_allclose(prefix_norms(np.array([3, 4]), [1, 2]), [3, 5])


def test_truncate_does_not_touch_its_input() -> None:
    z = np.array([[3.0, 4.0, 12.0]])
    truncate(z, 2)
    assert z.tolist() == [[3.0, 4.0, 12.0]]


@pytest.mark.parametrize("dim", [0, -1, 4])
def test_truncate_names_the_columns_there_are(dim: int) -> None:
    with pytest.raises(NestingError, match=rf"dim must lie in 1 … 3, the columns .*got {dim}\): use dim=3 or less"):
        truncate(np.ones((2, 3)), dim)


@pytest.mark.parametrize("dim", ["2", 2.0, np.float64(2), True, np.True_, None])
def test_truncate_takes_no_dim_that_is_no_integer(dim: object) -> None:
    told = rf"dim must be an integer.*got {re.escape(repr(dim))}\): use for example 8"
    with pytest.raises(NestingError, match=told):
        truncate(np.ones((2, 3)), dim)   # type: ignore[type-var]
    assert truncate(np.ones((2, 3)), np.int64(2)).shape == (2, 2)


@pytest.mark.parametrize(
    ("dim", "smallest", "dims"),
    [
        (64, 8, (8, 16, 32, 64)),
        (768, 12, (12, 24, 48, 96, 192, 384, 768)),
        (100, 8, (25, 50, 100)),
        (7, 1, (7,)),
        (8, 8, (8,)),
        (4, 1, (1, 2, 4)),
        (48, 8, (12, 24, 48)),
    ],
)
def test_halving(dim: int, smallest: int, dims: tuple[int, ...]) -> None:
    assert Nesting.halving(dim, smallest).dims == dims


@quick
@given(dim=st.integers(1, 4096), data=st.data())
def test_halving_halves_down_to_the_smallest(dim: int, data: st.DataObject) -> None:
    smallest = data.draw(st.integers(1, dim))
    dims = Nesting.halving(dim, smallest).dims
    assert dims[-1] == dim
    assert dims[0] >= smallest
    assert all(2 * low == high for low, high in pairwise(dims))
    assert dims[0] % 2 or dims[0] // 2 < smallest   # one more step would not do


@pytest.mark.parametrize(("dim", "smallest"), [(4, 8), (8, 0), (0, 1)])
def test_halving_refuses_a_smallest_outside(dim: int, smallest: int) -> None:
    with pytest.raises(NestingError, match=rf"must lie in 1 … dim \(got smallest={smallest}, dim={dim}"):
        Nesting.halving(dim, smallest)


def test_uniform() -> None:
    assert Nesting.uniform(2048, 11).dims == (8, 212, 416, 620, 824, 1028, 1232, 1436, 1640, 1844, 2048)
    assert Nesting.uniform(512, 1).dims == (512,)
    assert Nesting.uniform(64, 2).dims == (8, 64)
    with pytest.raises(NestingError, match=r"count must be at least 1 \(got 0\)"):
        Nesting.uniform(64, 0)
    with pytest.raises(NestingError, match="increasing order"):
        Nesting.uniform(9, 5)   # only two integers lie in 8 … 9


dims_lists = st.sets(st.integers(1, 500), min_size=1, max_size=8).map(sorted)


@quick
@given(dims=dims_lists)
def test_blocks_tile_the_columns(dims: list[int]) -> None:
    nesting = Nesting(dims)
    columns = [column for low, high in nesting.blocks for column in range(low, high)]
    assert columns == list(range(nesting.dim))
    assert [high for _, high in nesting.blocks] == dims
    assert len(nesting) == len(dims)


@quick
@given(dims=dims_lists)
def test_between_lies_strictly_between_neighbours(dims: list[int]) -> None:
    between = Nesting(dims).between()
    assert not set(between) & set(dims)
    pairs = list(pairwise(dims))
    assert len(between) == sum(high - low > 1 for low, high in pairs)
    assert all(any(low < m < high for low, high in pairs) for m in between)


def test_between_of_the_paper() -> None:
    assert Nesting.halving(2048).between() == (12, 24, 48, 96, 192, 384, 768, 1536)


def test_numpy_integers_become_plain_ones() -> None:
    dims = Nesting(np.array([8, 16])).dims
    assert dims == (8, 16)
    assert all(type(m) is int for m in dims)


@pytest.mark.parametrize(
    "dims", [[], [0], [-8, 8], [8, 8], [16, 8], [8.0, 16], ["8"], [True, 2], [None]], ids=repr
)
def test_dims_that_are_no_nesting(dims: list[object]) -> None:
    with pytest.raises(NestingError, match="dims must be positive integers in increasing order") as error:
        Nesting(dims)   # type: ignore[arg-type]
    assert str(tuple(dims)) in str(error.value)
    assert "list each dim once, smallest first" in str(error.value)
    assert isinstance(error.value, InputError)


def test_a_number_is_no_list_of_dims() -> None:
    with pytest.raises(NestingError, match=r"dims must be .*\(got 16\): .*even for a single dim: \[16\]"):
        Nesting(16)   # type: ignore[arg-type]


def test_weights_default_to_one() -> None:
    assert Nesting([8, 16]).weights == (1.0, 1.0)
    assert Nesting([8, 16], weights=[2, 0]).weights == (2.0, 0.0)
    assert Nesting.halving(16, 8, weights=(1, 3)).weights == (1.0, 3.0)


@pytest.mark.parametrize("weights", [[1], [1, 2, 3], []])
def test_one_weight_for_each_dim(weights: list[float]) -> None:
    with pytest.raises(NestingError, match="one weight for each of the 2 dims"):
        Nesting([8, 16], weights)


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [1, math.nan], [math.inf, 1]])
def test_weights_must_be_finite_and_useful(weights: list[float]) -> None:
    with pytest.raises(NestingError, match="weights must be finite, none negative, not all zero"):
        Nesting([8, 16], weights)


def test_check_fits() -> None:
    Nesting([8, 16]).check_fits(16)
    with pytest.raises(NestingError, match=r"the 12 dimensions .*got \(8, 16\).*drop the dims above 12"):
        Nesting([8, 16]).check_fits(12)


def test_a_nesting_is_a_value() -> None:
    assert Nesting([8, 16]) == Nesting((8, 16), weights=[1, 1])
    assert hash(Nesting([8])) == hash(Nesting([8]))
    with pytest.raises(AttributeError):
        Nesting([8]).dims = (4,)   # type: ignore[misc]
