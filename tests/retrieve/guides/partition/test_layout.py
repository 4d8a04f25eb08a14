"""The layout that is chosen suits the rows, and what is given is kept."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from matryo.nesting import Nesting
from matryo.retrieve.guides.partition.layout import choose_layout
from matryo.retrieve.guides.partition.space import Space, principal_axes
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS, Metric

WIDTH = 160


def chosen(rows: np.ndarray, metric: Metric = "cosine", **given: Any) -> tuple[Any, np.ndarray]:
    return choose_layout(Blocks.of(rows, Nesting([rows.shape[1]])), metric, np.random.default_rng(0), **given)


def decaying(count: int = 2500, turned: bool = False) -> np.ndarray:
    """Rows whose columns decay quickly; after a random rotation, all columns are alike."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((count, WIDTH)) * np.exp(-np.arange(WIDTH) / 12)
    if turned:
        rows = rows @ np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    return rows.astype(np.float32)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_vectors_that_are_not_nested_are_rotated(metric: Metric) -> None:
    layout, axes = chosen(decaying(turned=True), metric)
    assert layout.rotated and layout.dim < WIDTH and axes.shape == (WIDTH, layout.dim)
    np.testing.assert_allclose(axes.T @ axes, np.eye(layout.dim), atol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_nested_vectors_need_few_columns(metric: Metric) -> None:
    layout, axes = chosen(decaying(), metric)
    assert layout.dim < WIDTH
    assert len(axes) == (WIDTH if layout.rotated else 0)


@pytest.mark.parametrize(("dim", "rotated", "copies"), [*product([None, 5, WIDTH], [None, False, True], [None, 1, 2])])
def test_what_is_given_is_kept(dim: int | None, rotated: bool | None, copies: int | None) -> None:
    layout, axes = chosen(decaying(400), dim=dim, rotated=rotated, copies=copies)
    assert dim in (None, layout.dim)
    assert copies in (None, layout.copies) and layout.copies in (1, 2)
    # A rotation of all columns has no effect on any score, so there is none.
    assert rotated in (None, layout.rotated) or (rotated and layout.dim == WIDTH and not layout.rotated)
    assert axes.shape == ((WIDTH if layout.rotated else 0), layout.dim) and axes.dtype == np.float32


@pytest.mark.parametrize("count", [0, 1, 2, 3, 30])
@pytest.mark.parametrize("width", [1, 2, 40])
def test_few_rows_have_a_layout(count: int, width: int) -> None:
    rows = np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)
    for metric in METRICS:
        layout, axes = chosen(rows, metric)
        assert 1 <= layout.dim <= width and len(axes) in (0, width)
        assert chosen(np.zeros_like(rows), metric)[0].dim <= width


def test_the_same_seed_chooses_the_same_layout() -> None:
    one, other = (chosen(decaying(1500, turned=True)) for _ in range(2))
    assert one[0] == other[0]
    np.testing.assert_array_equal(one[1], other[1])


def test_principal_axes_are_in_the_order_of_their_variances() -> None:
    rows = decaying(turned=True)
    axes = principal_axes(rows)
    np.testing.assert_allclose(axes.T @ axes, np.eye(WIDTH), atol=1e-5)
    spread = np.square(rows @ axes).sum(0)
    assert (np.diff(spread) <= 1e-4 * spread[0]).all()
    assert spread[:40].sum() > 0.95 * spread.sum()


@pytest.mark.parametrize("metric", METRICS)
def test_a_rotation_of_all_columns_changes_no_product(metric: Metric) -> None:
    rows = decaying(50, turned=True)
    blocks = Blocks.of(rows, Nesting([20, WIDTH]))
    space = Space(blocks, metric, principal_axes(rows), WIDTH)
    whole = space.whole(np.arange(50))
    np.testing.assert_allclose(space.tile(whole) @ space.tile(whole).T, whole @ whole.T, atol=1e-4)
    lengths = np.linalg.norm(whole, axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(rows, axis=1) if metric == "l2" else 1, rtol=1e-5)
