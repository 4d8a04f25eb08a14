"""Stages in full precision that read few rows: the outcome is that of reading all, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs_core import needs_core
from partition_oracle import decoded_bytes

from matryo.nesting import Nesting
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS, Metric

pytestmark = needs_core

NESTING = Nesting([4, 8, 20, 90, 160])
PLANS = {
    "adaptive": Plan.adaptive(8, 160, keep=120, precision="int8"),
    "shorter": Plan.adaptive(8, 90, keep=120, precision="int8"),
    "funnel": Plan.of([(8, 150, "int8"), (20, 70), (90, 30), (160, 5)]),
    "in 8 bits first": Plan.of([(8, 150, "int8"), (90, 80, "int8"), (160, 5)]),
    "all in 8 bits": Plan.of([(8, 150, "int8"), (160, 150, "int8"), (160, 5)]),
    "margin": Plan((Stage(8, 150, "int8"), Stage(20, 90, margin=0.3), Stage(90, 40), Stage(160, 5))),
}


def drawn(rng: np.random.Generator, count: int, dim: int = 160) -> np.ndarray:
    """Rows in clouds, with a spectrum that falls, some of them equal, some zero, some far out."""
    centres = rng.standard_normal((5, dim))
    rows = centres[rng.integers(5, size=count)] + 0.7 * rng.standard_normal((count, dim))
    rows *= np.arange(1, dim + 1) ** -0.4
    rows[rng.integers(count, size=count // 8)] = rows[rng.integers(count)]
    rows[rng.integers(count, size=3)] = 0
    rows[rng.integers(count, size=3), :20] = 0
    rows[rng.integers(count, size=3)] *= 50
    return rows.astype(np.float32)


def unbound(partition: Partition) -> Partition:
    """The same, but nothing is known of how far rows are from their codes: all are read in full."""
    return replace(partition, errors=np.full_like(partition.errors, np.inf))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), power=st.sampled_from([-120, -70, -20, 0, 0, 0, 20, 50]), half=st.booleans(),
       k=st.sampled_from([1, 5, 40, 300]), masked=st.booleans(),
       layout=st.sampled_from([{}, {"rotated": True, "copies": 2}, {"rotated": False, "copies": 1}]))  # fmt: skip
def test_few_rows_read_are_as_good_as_all(
    plan: Plan, metric: Metric, seed: int, power: int, half: bool, k: int, masked: bool, layout: dict
) -> None:
    rng = np.random.default_rng(seed)
    rows = drawn(rng, 400)
    if not half:   # float16 has no such numbers
        rows = np.ldexp(rows, power)
    blocks = Blocks.of(rows, NESTING, dtype="float16" if half else "float32")
    partition = Partition.of(blocks, metric, dim=8, lists=12, **layout)
    queries = np.concatenate([rows[rng.permutation(400)[:6]], drawn(rng, 16)[:6]])
    queries = queries[np.square(queries, dtype=np.float64).sum(1) > 0]
    queries[0, :20] = 0   # nothing is known of it before later stages
    queries = queries[np.square(queries, dtype=np.float64).sum(1) > 0]
    allowed = rng.random(400) < 0.7 if masked else None
    both = partition, unbound(partition)
    found, expected = (PartitionSearch(blocks, one, plan, k)(queries, allowed) for one in both)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("power", [-90, 0, 50])
def test_no_row_is_further_from_its_codes_than_is_stored(metric: Metric, power: int) -> None:
    rows = np.ldexp(drawn(np.random.default_rng(3), 300), power)
    blocks = Blocks.of(rows, NESTING)
    partition = Partition.of(blocks, metric, dim=8, long=90, lists=7)
    held = decoded_bytes(partition)
    of = partition.rows
    true = rows[of, :90].astype(np.float64)
    if metric != "l2":
        norms = np.sqrt(np.square(rows[of].astype(np.float64)).sum(1, keepdims=True))
        true = np.divide(true, norms, out=np.zeros_like(true), where=norms > 0)
    apart = np.sqrt(np.square(true - held).sum(1))
    assert (partition.errors >= apart).all()
    assert (partition.errors <= apart * 1.001 + 1e-5 * np.sqrt(np.square(held).sum(1))).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("plan", [PLANS["adaptive"], PLANS["funnel"]], ids=["adaptive", "funnel"])
def test_rows_that_cannot_be_among_the_best_are_not_read(metric: Metric, plan: Plan) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((400, 160)).astype(np.float32)
    query = rng.standard_normal(160).astype(np.float32)
    near = rng.permutation(400)[:8]
    rows[near] = query + 0.1 * rows[near]
    blocks = Blocks.of(rows, NESTING)
    partition = Partition.of(blocks, metric, dim=8, lists=1)
    expected = PartitionSearch(blocks, partition, plan, 5)(query)
    assert set(expected[0][0]) <= set(near)
    # The second half of far rows is gone: a score made of it would be none.
    last = blocks.full[-1].copy()
    last[np.setdiff1d(np.arange(400), near)] = np.nan
    found = PartitionSearch(replace(blocks, full=(*blocks.full[:-1], last)), partition, plan, 5)(query)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
