"""The compiled core against plain products of the same numbers, on every instruction set of this processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from needs_core import needs_core

from matryo import Nesting
from matryo.compiled import require_core
from matryo.retrieve.engines.compiled import best_engine, view_of
from matryo.retrieve.engines.execute import execute
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS

pytestmark = needs_core
DIMS = {"one": [1], "odd": [7, 48, 53], "short": [8, 16], "long": [16, 64, 100, 357]}


def true_scores(metric: str, rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    rows, query = rows.astype(np.longdouble), query.astype(np.longdouble)
    if metric == "l2":
        return -np.square(rows - query).sum(1)
    products = rows @ query
    return products if metric == "ip" else products / np.sqrt(np.square(rows).sum(1) * np.square(query).sum())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dims", DIMS.values(), ids=DIMS)
def test_products_and_exact_scores_of_chosen_rows(dims: list[int], dtype: str) -> None:
    rng = np.random.default_rng(dims[-1])
    blocks = Blocks.of(rng.standard_normal((37, dims[-1])), Nesting(dims), dtype=dtype, int8_up_to=dims[0])
    queries = rng.standard_normal((3, dims[-1])).astype(np.float32)
    at = np.array([[30, 2, 2, 36, 0, 1, 5, 9, 11], [0] * 9, list(range(9))])
    vectors = blocks.rows(slice(None), dims[-1]).astype(np.float64)
    for number, (low, high) in enumerate(blocks.nesting.blocks):
        sums = np.ones(at.shape, np.float32)
        view_of(blocks, "ip").add_products(queries, number, False, at, sums)
        true = 1 + np.einsum("qnd,qd->qn", vectors[at][:, :, low:high], queries[:, low:high])
        np.testing.assert_allclose(sums, true, rtol=0, atol=1e-5 * dims[-1])
        assert (sums[0, 1] == sums[0, 2]) and len(set(sums[1].tolist())) == 1   # to the bit, wherever the row lies
    codes = np.zeros(at.shape, np.float32)
    view_of(blocks, "ip").add_products(queries, 0, True, at, codes)
    decoded = blocks.int8[0].codes.astype(np.float64) * blocks.int8[0].scale
    true = np.einsum("qnd,qd->qn", decoded[at], queries[:, : dims[0]])
    np.testing.assert_allclose(codes, true, rtol=0, atol=1e-5 * dims[0])
    at[0, 0], at[0, 4] = 0xFFFFFFFF, -1   # rows that do not exist are not read
    for metric in METRICS:
        scores = np.empty(at.shape)
        view_of(blocks, metric).exact_scores(queries, len(dims) - 1, at, scores)
        assert scores[0, 0] == scores[0, 4] == -np.inf
        for query, rows, given in zip(queries, at, scores, strict=True):
            exists = (rows >= 0) & (rows < 37)
            true = true_scores(metric, vectors[rows[exists]], query).astype(np.float64)
            np.testing.assert_allclose(given[exists], true, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("keep", [1, 10, 200, 5000])
def test_the_best_are_those_of_a_sort_with_ties_by_row(keep: int) -> None:
    rng = np.random.default_rng(keep)
    kinds = (
        rng.standard_normal(3000),
        rng.integers(-2, 3, 3000) * 0.5,   # hardly anything but ties
        np.where(rng.random(3000) < 0.5, 0.0, -0.0),
        np.arange(3000.0),   # each better than all before
    )
    for scores in kinds:
        blocks = Blocks.of(scores[:, None], Nesting([1]))
        view = view_of(blocks, "ip")
        for allowed in (None, rng.random(3000) < 0.3):
            rows = np.empty((6, min(keep, 3000)), np.int64)
            view.choose(np.ones((6, 1), np.float32), 0, False, allowed, rows, 2)
            may = np.arange(3000) if allowed is None else np.flatnonzero(allowed)
            # A ceiling grows with the size of the row, so large negative scores may change places with their ceilings.
            ceilings = scores[may].astype(np.float32)
            ceilings = ceilings + np.float32(33 * 2.0**-23) * np.abs(ceilings)
            best = may[np.argsort(-ceilings, kind="stable")][: rows.shape[1]]
            for found in rows:
                np.testing.assert_array_equal(found[: len(best)], best)
                assert (found[len(best) :] == -1).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_exact_search_of_many_queries_is_that_of_each(metric: str, shift: float) -> None:
    rng = np.random.default_rng(2)
    vectors = (rng.standard_normal((900, 40)) + shift).astype(np.float32)
    vectors[450:] = vectors[:450]   # ties
    blocks = Blocks.of(vectors, Nesting([8, 40]))
    queries = (rng.standard_normal((11, 40)) + shift).astype(np.float32)
    allowed = rng.random(900) < 0.7
    for mask in (None, allowed):
        rows, scores = execute(blocks, queries, Plan.single(40), 12, metric, mask, engine=best_engine())
        for query, mine, given in zip(queries, rows, scores, strict=True):
            alone = execute(blocks, query[None], Plan.single(40), 12, metric, mask, engine=best_engine())
            np.testing.assert_array_equal(alone[0][0], mine)
            np.testing.assert_array_equal(alone[1][0], given)
            true = true_scores(metric, vectors, query)
            true[~mask if mask is not None else []] = -np.inf
            best = np.lexsort((np.arange(900), -true.astype(np.float64)))[:12]
            np.testing.assert_allclose(given, true[best].astype(np.float64), rtol=1e-12)
            equal = {row % 450 for row in mine.tolist()} == {row % 450 for row in best.tolist()}
            assert equal, (mine, best)


def test_bad_shapes_are_refused_before_anything_is_read() -> None:
    blocks = Blocks.of(np.eye(8, dtype=np.float32), Nesting([4, 8]))
    view, queries = view_of(blocks, "ip"), np.ones((2, 8), np.float32)
    rows, scores = np.zeros((2, 3), np.int64), np.zeros((2, 3))
    for call in (
        lambda: view.search_exact(queries[:, :4].copy(), 1, None, rows, scores, 1),
        lambda: view.search_exact(queries, 2, None, rows, scores, 1),
        lambda: view.search_exact(queries, 1, np.ones(7, bool), rows, scores, 1),
        lambda: view.search_exact(queries, 1, None, rows[:1], scores, 1),
        lambda: view.choose(queries, 1, True, None, rows, 1),   # there are no codes
        lambda: view.add_products(queries, 0, False, np.full((2, 3), 8), np.zeros((2, 3), np.float32)),
        lambda: view.exact_scores(queries, 1, rows, scores[:, :2].copy()),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):   # neither converted nor copied: the caller's array would not be filled
        view.search_exact(queries.astype(np.float64), 1, None, rows, scores, 1)


PROGRAM = """
import hashlib, sys
from dataclasses import replace
import numpy as np
from matryo import Nesting
from matryo.compiled import isa, require_core
from matryo.retrieve import Plan
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.execute import execute
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.packed import PackedRows
rng = np.random.default_rng(0)
made = hashlib.sha256()
for metric in ("cosine", "ip", "l2"):
    for dtype in ("float32", "float16"):
        vectors = rng.standard_normal((1500, 200)) * np.linspace(2, 0.1, 200)
        blocks = Blocks.of(vectors, Nesting([8, 36, 200]), dtype=dtype)
        queries = (rng.standard_normal((9, 200)) * np.linspace(2, 0.1, 200)).astype("f4")
        plan = Plan.of([(36, 300, "int8"), (200, 200, "int8"), (200, 10)])
        found = (
            execute(blocks, queries, Plan.single(200), 10, metric, engine=best_engine()),
            execute(blocks, queries[:1], Plan.single(200), 10, metric, engine=best_engine()),
            Certified(blocks, Sketch.of(blocks, metric, dims=(32, 96, 224))).search(queries, 10),
            *(PartitionSearch(blocks, partition, replace(plan, probe=probe), 10)(some)
              for partition in (Partition.of(blocks, metric, dim=36, rotated=False, copies=1),
                                Partition.of(blocks, metric, dim=45, rotated=True, copies=2))
              for probe in (None, 0.1) for some in (queries, queries[:1])),
        )
        for rows, scores in found:
            made.update(rows.tobytes() + scores.tobytes())
        means = np.empty((1500, 2), np.int64)
        require_core().Means(vectors[:90].astype("f4"), metric == "l2").nearest(vectors.astype("f4"), means, 1)
        made.update(means.tobytes())
        for bits in (1, 4, 8):
            packed = PackedRows.of(vectors, bits, metric)
            for some in (queries, queries[:1]):
                rows, scores = packed.search(some, 50)
                made.update(rows.tobytes() + scores.tobytes() + packed.score(some, rows).tobytes())
print(isa(), made.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    found = {}
    for isa in ("", "avx2", "baseline"):
        environment = {**os.environ, "MATRYO_ISA": isa}   # empty: the best one
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
        if "this processor does not have it" in done.stderr:
            continue
        name, digest = done.stdout.split()
        found[name] = digest
        assert isa in ("", name)
    assert "baseline" in found and len(set(found.values())) == 1, found


def test_sums_of_very_long_rows_do_not_overflow() -> None:
    """The products of more than 66,311 columns of the largest codes exceed 32 bits."""
    rows = np.ones((32, 100_000), np.float32)
    rows[:16] *= -1
    rows[16:, -16:] = np.arange(16)[:, None] / 16   # tells the rows apart
    blocks = Blocks.of(rows, Nesting([64, 100_000]))
    plan = Plan.of([(64, 32, "int8"), (100_000, 3, "int8"), (100_000, 3)])
    search = PartitionSearch(blocks, Partition.of(blocks, "ip", dim=64), plan, 3)
    assert search(np.ones((1, 100_000), np.float32))[0].tolist() == [[31, 30, 29]]


def test_an_unknown_instruction_set_is_refused_with_the_known_ones() -> None:
    done = subprocess.run([sys.executable, "-c", "import matryo._core"], capture_output=True, text=True,
                          env={**os.environ, "MATRYO_ISA": "mmx"})   # fmt: skip
    assert "baseline or numpy (got mmx)" in done.stderr


def test_ids_of_rows_in_several_arrays() -> None:
    ids = require_core().Ids([np.array([5, 6]), np.empty(0, np.int64), np.array([9])])
    found = np.empty((2, 2), np.int64)
    ids.take(np.array([[0, 2], [-1, 1]]), found, -7)
    assert found.tolist() == [[5, 9], [-7, 6]]
    with pytest.raises(ValueError):
        ids.take(np.array([[0, 3], [0, 0]]), found, -1)
    with pytest.raises(ValueError):
        ids.take(np.array([[0, 1]]), found, -1)


def test_the_fuzzing_of_the_core_runs() -> None:
    program = Path(__file__).parents[3] / "scripts" / "fuzz_core.py"
    done = subprocess.run([sys.executable, str(program), "--seconds", "0.5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no difference" in done.stdout
