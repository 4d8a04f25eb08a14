"""Plans: the paper's shapes and costs, what is counted against what is done, and every rule."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import InputError, NestingError
from matryo.nesting import Nesting
from matryo.retrieve.engines.execute import NUMPY, Engine, execute
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks

IMAGENET = 1_281_167


def shape(plan: Plan) -> list[tuple[int, int]]:
    return [(stage.dim, stage.keep) for stage in plan.stages]


def test_the_funnel_is_the_papers() -> None:
    assert shape(Plan.funnel(16, 2048, keep=200)) == [(16, 200), (32, 100), (64, 50), (128, 25), (256, 10), (2048, 10)]
    assert shape(Plan.funnel(8, 2048, keep=200)) == [(8, 200), (16, 100), (32, 50), (64, 25), (128, 10), (2048, 10)]
    assert shape(Plan.funnel(64, 2048, keep=200))[-2:] == [(1024, 10), (2048, 10)]


# Tables "rerankcascade" of the paper: first dim, re-ranking dims, shortlists, MFLOPs on ImageNet-1K.
CASCADES = [
    (8, (16, 32, 64, 128, 2048), (200, 100, 50, 25, 10), 10.28),
    (8, (16, 32, 64, 128, 2048), (400, 200, 50, 25, 10), 10.29),
    (8, (16, 32, 64, 128, 2048), (800, 400, 200, 50, 10), 10.31),
    (16, (32, 64, 128, 256, 2048), (200, 100, 50, 25, 10), 20.54),
    (16, (32, 64, 128, 256, 2048), (400, 200, 50, 25, 10), 20.56),
    (16, (32, 64, 128, 256, 2048), (800, 400, 200, 50, 10), 20.61),
    (32, (64, 128, 256, 512, 2048), (200, 100, 50, 25, 10), 41.07),
    (32, (64, 128, 256, 512, 2048), (400, 200, 50, 25, 10), 41.09),
    (32, (64, 128, 256, 512, 2048), (800, 400, 200, 50, 10), 41.20),
]


@pytest.mark.parametrize(("first", "dims", "keeps", "mflops"), CASCADES)
def test_mflops_are_the_papers(first: int, dims: tuple[int, ...], keeps: tuple[int, ...], mflops: float) -> None:
    plan = Plan.of(zip((first, *dims), (*keeps, 10), strict=True))
    assert plan.mflops(IMAGENET, reuse=False) == pytest.approx(mflops, abs=0.0051)
    assert plan.mflops(IMAGENET) < plan.mflops(IMAGENET, reuse=False)


def test_single_and_adaptive_cost_what_the_paper_says() -> None:
    assert round(Plan.single(2048).mflops(IMAGENET)) == 2624
    assert round(Plan.adaptive(16, 2048, keep=200).mflops(IMAGENET, reuse=False)) == 21


def test_the_funnel_saves_the_papers_128_times() -> None:
    exact, funnel = Plan.single(2048).mflops(IMAGENET), Plan.funnel(16, 2048, keep=200).mflops(IMAGENET, reuse=False)
    assert 0.97 * 128 <= exact / funnel <= 128


@settings(deadline=None)
@given(
    short=st.integers(1, 64), times=st.integers(1, 40), k=st.integers(1, 20), more=st.integers(0, 400),
    first=st.sampled_from(["full", "int8"]),
)  # fmt: skip
def test_a_funnel_halves_while_the_dim_doubles(short: int, times: int, k: int, more: int, first: str) -> None:
    plan = Plan.funnel(short, short * times, keep=k + more, k=k, precision=first)
    assert shape(plan)[0] == (short, k + more)
    assert shape(plan)[-1] == (short * times, k)
    assert [stage.precision for stage in plan.stages] == [first] + ["full"] * (len(plan.stages) - 1)
    middle = shape(plan)[:-1]
    for (dim, keep), (next_dim, next_keep) in pairwise(middle):
        assert keep > k
        assert next_dim == 2 * dim < short * times
        assert next_keep == keep // 2 >= 2 * k or (next_keep == k and keep < 4 * k + 2)
    dim, keep = middle[-1]
    assert keep == k or 2 * dim >= short * times   # it ends when it can go no further


@settings(deadline=None)
@given(
    data=st.data(), seed=st.integers(0, 99), count=st.integers(1, 60), k=st.integers(1, 12),
    dtype=st.sampled_from(["float32", "float16"]),
)  # fmt: skip
def test_costs_count_what_is_done(data: st.DataObject, seed: int, count: int, k: int, dtype: str) -> None:
    nesting = Nesting([1, 2, 4, 8])
    dims = sorted(data.draw(st.lists(st.sampled_from(nesting.dims), min_size=1, max_size=5)))
    keeps = sorted(data.draw(st.lists(st.integers(1, 70), min_size=len(dims), max_size=len(dims))), reverse=True)
    coarse = data.draw(st.integers(0, len(dims)))
    precisions = ["int8"] * coarse + ["full"] * (len(dims) - coarse)
    plan = Plan.of(zip(dims, keeps, precisions, strict=True)).for_k(k)
    done = []   # (numbers read, bytes a number) by stage

    def first(request, stage):
        done.append((blocks.count * stage.dim, 1 if stage.precision == "int8" else np.dtype(dtype).itemsize))
        return NUMPY.first_stage(request, stage)

    def later(request, shortlist, stage, before):
        size = 1 if stage.precision == "int8" else np.dtype(dtype).itemsize
        done.append((shortlist.rows.size * (stage.dim - before), size))
        return NUMPY.rerank(request, shortlist, stage, before)

    vectors = np.random.default_rng(seed).standard_normal((count, 8))
    blocks = Blocks.of(vectors, nesting, dtype=dtype, int8_up_to=8)
    execute(blocks, vectors[:1], plan, k, engine=Engine(first, later))
    assert plan.mflops(count) == pytest.approx(sum(numbers for numbers, _ in done) / 1e6)
    assert plan.bytes(count, dtype) == sum(numbers * size for numbers, size in done)


def test_bytes_by_hand() -> None:
    plan = Plan.adaptive(64, 2048, keep=200)
    assert plan.bytes(1000) == 4 * (1000 * 64 + 200 * (2048 - 64))
    assert plan.bytes(1000, "float16") == 2 * (1000 * 64 + 200 * (2048 - 64))
    coarse = Plan.adaptive(64, 2048, keep=200, precision="int8")
    assert coarse.bytes(1000) == 1000 * 64 + 4 * 200 * 2048   # full precision begins anew
    assert plan.bytes(150) == 4 * 150 * 2048   # all are kept


def test_for_k() -> None:
    plan = Plan.adaptive(16, 64, keep=50)
    assert shape(plan.for_k(5)) == [(16, 50), (64, 5)]
    assert shape(plan.for_k(80)) == [(16, 80), (64, 80)]
    assert plan.for_k(10) == plan
    assert plan.dim == 64


def test_stages_that_prune_nothing_are_left_out() -> None:
    plan = Plan.of([(2, 50), (4, 50), (8, 20), (16, 20)])
    assert shape(plan.among(100)) == [(2, 50), (8, 20), (16, 20)]
    assert shape(plan.among(50)) == [(8, 20), (16, 20)]
    assert shape(plan.among(20)) == [(16, 20)]
    assert shape(plan.among(0)) == [(16, 20)]


def test_a_plan_is_printed_with_its_costs() -> None:
    text = str(Plan.adaptive(64, 2048, keep=200, precision="int8"))
    head, first, second, total, note = text.splitlines()
    assert head.split() == ["dim", "keep", "precision", "rows", "MFLOPs", "bytes"]
    assert first.split() == ["64", "200", "int8", "1,000,000", "64", "64.0", "MB"]
    assert second.split() == ["2048", "10", "full", "200", "0.41", "1.6", "MB"]
    assert total.split() == ["all", "64.4", "65.6", "MB"]
    assert note == "per query, among 1,000,000 vectors of float32"
    assert len({len(line) for line in (head, first, second, total)}) == 1
    assert "12.8 kB" in Plan.single(64).table(100, "float16")
    assert "128 B" in Plan.single(64).table(1, "float16")
    assert "8.2 TB" in Plan.single(2048).table(10**9)


def test_equal_plans_are_equal() -> None:
    assert Plan.of([(16, 200), (64, 10)]) == Plan.adaptive(16, 64, keep=200) == Plan((Stage(16, 200), Stage(64, 10)))
    assert hash(Plan.single(64)) == hash(Plan.of([Stage(np.int64(64), np.int64(10))]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan(()), "a plan must have at least one stage (got none): use Plan.single(dim)"),
        (lambda: Plan.of([(64, 10), (16, 10)]),
         "dims must not decrease from stage to stage (got [64, 16]): put short dims first"),
        (lambda: Plan.adaptive(64, 16, keep=200),
         "dims must not decrease from stage to stage (got [64, 16]): put short dims first"),
        (lambda: Plan.of([(16, 10), (64, 20)]),
         "keeps must not increase from stage to stage (got [10, 20]): keep more before"),
        (lambda: Plan.of([(16, 20), (64, 10, "int8")]),
         "precision must not decrease from stage to stage (got ['full', 'int8']): put int8 stages first"),
        (lambda: Stage(0, 10), "dim must be an integer of at least 1 (got 0): pass dim=64"),
        (lambda: Stage(8, 0), "keep must be an integer of at least 1 (got 0): pass keep=64"),
        (lambda: Stage(8.0, 10), "dim must be an integer of at least 1 (got 8.0): pass dim=64"),
        (lambda: Stage(8, True), "keep must be an integer of at least 1 (got True): pass keep=64"),
        (lambda: Stage(8, 10, "int2"), "precision must be full, int8 or int4 (got 'int2'): full is the default"),
        (lambda: Plan.single(8, precision="int4"),
         "int4 is for the first stage of a plan with probe (got int4 elsewhere): pass probe=0.05, or use int8"),
        (lambda: Plan.of([(8, 20, "int4"), (8, 20, "int4"), (16, 10)]), "int4 is for the first stage"),
        (lambda: Plan.single(8, k=0), "k must be an integer of at least 1 (got 0): pass k=10"),
        (lambda: Plan.single(8).for_k(0), "k must be an integer of at least 1 (got 0): pass k=10"),
        (lambda: Plan.single(8).for_k(2.5), "k must be an integer of at least 1 (got 2.5): pass k=10"),
        (lambda: Plan.adaptive(8, 16, keep=5), "keep must be at least k (got keep=5, k=10): raise keep or lower k"),
        (lambda: Plan.funnel(8, 16, keep=5), "keep must be at least k (got keep=5, k=10): raise keep or lower k"),
    ],
)  # fmt: skip
def test_rules(make, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make()


def test_dims_must_be_of_the_nesting() -> None:
    Plan.adaptive(8, 16, keep=20).check_fits(Nesting([8, 16]))
    with pytest.raises(NestingError, match=r"must be dims of the index: 8, 16 \(got 12, 32\): use those dims"):
        Plan.of([(8, 20), (12, 20), (32, 20)]).check_fits(Nesting([8, 16]))
