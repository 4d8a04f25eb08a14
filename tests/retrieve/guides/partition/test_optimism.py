"""Inner products with rows of very different norms, and masks in the order of the slots."""

from __future__ import annotations

import numpy as np
import pytest
from needs_core import needs_core

from matryo.nesting import Nesting
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.guides.partition.optimism import radii, squared_gaps, typical
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS, Metric

DIM = 96
PLAN = Plan((Stage(32, 100, "int4"), Stage(DIM, 10)), probe=0.1)


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    rows = rng.standard_normal((9, DIM))[rng.integers(9, size=count)] + rng.standard_normal((count, DIM))
    return (rows * np.linspace(1, 0.3, DIM)).astype(np.float32)


def test_gaps_are_distances_in_all_columns() -> None:
    rng = np.random.default_rng(0)
    rows, means, chosen = drawn(rng, 40), drawn(rng, 5)[:, :20], rng.integers(5, size=(40, 2))
    gaps = squared_gaps(rows[:, :20], np.linalg.norm(rows, axis=1), means, chosen)
    expected = np.zeros(5)
    for list_ in range(5):
        own = [np.square(row[:20] - means[list_]).sum() + np.square(row[20:]).sum()
               for row, lists in zip(rows, chosen, strict=True) for one in lists if one == list_]   # fmt: skip
        expected[list_] = np.sqrt(np.mean(own)) if own else 0
    np.testing.assert_allclose(radii(gaps, chosen, 5), expected, rtol=1e-5)
    assert typical(np.array([[3.0, -4.0]]), np.array([0.0, 2.0])) == pytest.approx(2.5)   # a row that is its mean
    assert typical(np.empty((0, 3)), np.ones(3)) == typical(np.zeros((2, 1)), np.zeros(1)) == 0


@needs_core
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 1.5])
def test_inner_products_are_found_whatever_the_norms(spread: float) -> None:
    rng = np.random.default_rng(1)
    rows, queries = drawn(rng, 6000), drawn(rng, 100)
    rows *= np.exp(spread * rng.standard_normal((len(rows), 1))).astype(np.float32)
    blocks = Blocks.of(rows, Nesting([32, DIM]))
    found, _ = PartitionSearch(blocks, Partition.of(blocks, "ip", dim=32, rotated=False, copies=1), PLAN, 10)(queries)
    true = np.argsort(-(queries.astype(np.float64) @ rows.T), axis=1)[:, :10]
    recalls = [len(np.intersect1d(a, b)) / 10 for a, b in zip(found, true, strict=True)]
    assert np.mean(recalls) > (0.93 if spread else 0.6)


@needs_core
@pytest.mark.parametrize("share", [0.5, 0.98])   # read as a whole, or where it excludes rows
@pytest.mark.parametrize("metric", METRICS)
def test_a_mask_that_is_used_again_finds_the_same_rows(metric: Metric, share: float) -> None:
    rng = np.random.default_rng(2)
    blocks, queries = Blocks.of(drawn(rng, 2000), Nesting([32, DIM])), drawn(rng, 30)
    partition = Partition.of(blocks, metric, dim=32, copies=2)
    masks = [rng.random(2000) < share for _ in range(2)]
    again, search = PartitionSearch(blocks, partition, PLAN, 10), PartitionSearch(blocks, partition, PLAN, 10)
    for mask in (*masks, masks[0]):
        once = search(queries, mask.copy())   # in the order of the rows
        for _ in range(3):
            for one, other in zip(again(queries, mask), once, strict=True):
                np.testing.assert_array_equal(one, other)
        assert mask[once[0]].all()
        np.testing.assert_array_equal(partition.by_slot(mask), mask[partition.rows])
    late = np.append(masks[0], [True, False])
    np.testing.assert_array_equal(partition.by_slot(late), np.append(masks[0][partition.rows], [True, False]))
