"""Every engine finds what plain numpy finds: compiled loops, and torch on the processor and on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve import NUMPY, Blocks, Engine, Plan, Stage, execute
from matryo.retrieve.engines import compiled
from matryo.retrieve.engines.numpy import scan
from matryo.retrieve.vectors.metric import METRICS

pytest.importorskip("torch")
from matryo.retrieve.engines.torch import engine as gpu
from matryo.retrieve.engines.torch import steps as device_steps

HAS_GPU = importlib.util.find_spec("torch") is not None and importlib.import_module("torch").cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"   # read when a kernel is defined, so before any import of one

NESTING = Nesting([1, 4, 16])
ENGINES = ["compiled", "cpu", "half", "fused", "cuda"]
QUICK = [name for name in ENGINES if name != "fused"]   # of Triton there is only an interpreter, which is slow
PLANS = [
    Plan.single(16),
    Plan.single(4, precision="int8"),
    Plan.adaptive(4, 16, keep=12),
    Plan.of([(1, 40, "int8"), (4, 20, "int8"), (16, 10)]),
    Plan.of([(1, 30), (4, 20), (16, 10)]),
    Plan.of([Stage(1, 50, margin=0.5), Stage(4, 30, margin=0.3), (16, 10)]),
]


def engine_of(name: str) -> Engine:
    if name == "compiled":
        return compiled.best_engine()
    torch = pytest.importorskip("torch")
    if name == "cuda" and not HAS_GPU:
        pytest.skip("there is no GPU")
    if name in ("half", "fused"):   # what a GPU does, on the processor
        pytest.importorskip("triton")
        if name == "fused" and HAS_GPU:
            pytest.skip("the GPU itself does it")
        return gpu._Search(torch.device("cpu"), half=True, fused=name == "fused").engine()
    return gpu.torch_engine(name)


def small_steps(patch: pytest.MonkeyPatch) -> None:
    """Sizes that make few rows go the way of many."""
    patch.setattr(gpu, "_SCORES", 64)
    patch.setattr(gpu, "_MORE", (2, 8))
    patch.setattr(gpu, "_GROWTH", 2)
    patch.setattr(gpu, "_ALL", 1)
    patch.setattr(device_steps, "_GATHER", 64)
    patch.setattr(device_steps, "_DEEP", 1)
    patch.setattr(device_steps, "_FEW", 4)
    patch.setattr(device_steps, "_SHORT", 4)


@pytest.mark.parametrize("name", ENGINES)
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6), count=st.integers(1, 90), queries=st.integers(1, 12), k=st.integers(1, 45),
    metric=st.sampled_from(METRICS), plan=st.sampled_from(PLANS), share=st.sampled_from([None, 0.0, 0.3]),
    dtype=st.sampled_from(["float32", "float16"]), small=st.booleans(),
    whole=st.booleans(),
)  # fmt: skip
def test_it_finds_what_numpy_finds(name, seed, count, queries, k, metric, plan, share, dtype, small, whole) -> None:
    """Vectors of ±127 are exact in every precision, and tie often: rows must be the same, not only scores."""
    rng = np.random.default_rng(seed)
    vectors, asked = (rng.choice(np.float32([-127, 127]), (n, 16)) for n in (count, queries))
    allowed = None if share is None else rng.random(count) < share
    blocks = Blocks.of(vectors, NESTING, dtype=dtype, int8_up_to=16)
    with pytest.MonkeyPatch.context() as patch:
        if small:
            small_steps(patch)
        engine = engine_of(name) if whole else replace(engine_of(name), run=None)
        rows, scores = execute(blocks, asked, plan, k, metric, allowed, engine=engine)
    same_rows, same_scores = execute(blocks, asked, plan, k, metric, allowed)
    np.testing.assert_array_equal(rows, same_rows)
    np.testing.assert_allclose(scores, same_scores, rtol=1e-6)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("metric", METRICS)
def test_scores_of_real_numbers_agree(name: str, metric: str) -> None:
    rng = np.random.default_rng(3)
    vectors, asked = (rng.standard_normal((n, 64)).astype(np.float32) for n in (3000, 40))
    blocks = Blocks.of(vectors, Nesting([8, 16, 64]), int8_up_to=16)
    plan = Plan.of([(8, 600, "int8"), (16, 300), (64, 10)])
    rows, scores = execute(blocks, asked, plan, 10, metric, engine=engine_of(name))
    same_rows, same_scores = execute(blocks, asked, plan, 10, metric)
    np.testing.assert_allclose(scores, same_scores, atol=2e-5)
    assert (rows == same_rows).mean() > 0.999   # but for rounding at the edge of a shortlist


def test_one_query_and_many_score_alike() -> None:
    engine = engine_of("compiled")
    rng = np.random.default_rng(4)
    vectors, asked = (rng.standard_normal((n, 64)).astype(np.float32) for n in (500, 2 * scan.FEW))
    blocks = Blocks.of(vectors, Nesting([8, 16, 64]), dtype="float16")
    rows, scores = execute(blocks, asked, Plan.adaptive(16, 64, keep=90), 10, engine=engine)
    for i, query in enumerate(asked):
        alone = execute(blocks, query[None], Plan.adaptive(16, 64, keep=90), 10, engine=engine)
        assert alone[0].tobytes() == rows[i].tobytes()
        assert alone[1].tobytes() == scores[i].tobytes()


@pytest.mark.parametrize("name", ["numpy", *ENGINES])
def test_a_margin_drops_what_is_too_far_below(name: str) -> None:
    vectors = np.float32([[10, 0], [9, 50], [7, 90], [1, 99]])
    blocks = Blocks.of(vectors, Nesting([1, 2]))
    far = Plan.from_dict({"stages": [{"dim": 1, "keep": 4, "margin": 2.0}, {"dim": 2, "keep": 1}]})
    rows, _ = execute(blocks, [[1, 1]], far, 1, "ip", engine=NUMPY if name == "numpy" else engine_of(name))
    assert rows.tolist() == [[1]]   # 10 and 9 are within 2 of the best at one dim; 7 and 1 are not


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_query_after_the_other_finds_what_numpy_finds(name: str, dtype: str) -> None:
    """A GPU records what it is asked often; what it holds grows with the dims that are asked for."""
    rng = np.random.default_rng(5)
    vectors, asked = (rng.choice(np.float32([-127, 127]), (n, 16)) for n in (200, 10))
    vectors[120:] = vectors[119]   # a tie that reaches beyond any shortlist
    blocks, engine = Blocks.of(vectors, NESTING, dtype=dtype, int8_up_to=4), engine_of(name)
    for turn, query in enumerate(asked):
        for plan in (Plan.single(1), *(PLANS if turn > 4 else [Plan.single(4)])):
            for metric in METRICS:
                found, same = (execute(blocks, query[None], plan, 20, metric, engine=e) for e in (engine, NUMPY))
                np.testing.assert_array_equal(found[0], same[0])
                np.testing.assert_allclose(found[1], same[1], rtol=1e-6)


@pytest.mark.parametrize("name", QUICK)
def test_a_score_has_the_same_bits_whatever_came_before(name: str) -> None:
    rng = np.random.default_rng(6)
    vectors, asked = (rng.standard_normal((n, 64)).astype(np.float32) for n in (2000, 9))
    blocks, engine = Blocks.of(vectors, Nesting([8, 16, 64])), engine_of(name)
    exact = execute(blocks, asked, Plan.single(64), 10, engine=engine)
    for plan in (Plan.adaptive(8, 64, keep=1990), Plan.of([(8, 1999), (16, 1995), (64, 10)])):
        found = execute(blocks, asked, plan, 10, engine=engine)
        assert [a.tobytes() for a in found] == [a.tobytes() for a in exact]


def test_a_device_that_is_not_there_is_named() -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match="device must be one that torch can use"):
        gpu.torch_engine("warp:9")
