"""Call the compiled core with random arrays for a while, and compare every answer with numpy in float64.

Run it with sanitizers, which find reads outside an array: ``make sanitize``.

::

    python scripts/fuzz_core.py --seconds 60 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from matryo import Nesting
from matryo.compiled import isa, require_core
from matryo.errors import MatryoError
from matryo.evaluation.knn.search import search as search_every_dim
from matryo.retrieve.engines.compiled import best_engine, view_of
from matryo.retrieve.engines.exact import exact_scores, ranked
from matryo.retrieve.engines.execute import NUMPY, execute
from matryo.retrieve.engines.request import Request
from matryo.retrieve.guides.partition import Partition, PartitionSearch
from matryo.retrieve.guides.partition.means import assigned_by_numpy
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS
from matryo.retrieve.vectors.packed import BITS, PackedRows, scores_by_numpy


def main(argv: Sequence[str] | None = None) -> None:
    """Run until the time is over; an answer that differs, and a report of a sanitizer, end the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    end, searches, queries, seed = time.monotonic() + args.seconds, 0, 0, args.seed
    while time.monotonic() < end:
        done = attempt(np.random.default_rng(seed))
        searches, queries, seed = searches + 1, queries + done, seed + 1
    print(f"{isa()}: {searches:,} random indexes, {queries:,} searches: no difference")


def attempt(rng: np.random.Generator) -> int:
    """Search one random index in every way; return the number of queries."""
    dims = sorted(set(rng.integers(1, rng.choice([9, 70, 300]), rng.integers(1, 5)).tolist()))
    count = int(rng.choice([1, 2, 15, 16, 17, 100, 700]))
    scale, shift = 10.0 ** rng.integers(-8, 8), rng.choice([0.0, 0.0, 30.0])
    rows = (rng.standard_normal((count, dims[-1])) + shift) * scale * np.arange(1, dims[-1] + 1) ** -rng.random()
    rows[rng.integers(0, count, count // 3)] = rows[0]   # ties
    dtype = "float16" if scale < 1e3 and rng.random() < 0.5 else "float32"
    blocks = Blocks.of(rows, Nesting(dims), dtype=dtype, int8_up_to=int(rng.choice([0, dims[0]])))
    metric = METRICS[rng.integers(3)]
    queries = np.concatenate([rows[:3], (rng.standard_normal((rng.integers(1, 9), dims[-1])) + shift) * scale])
    queries = queries.astype(np.float32)[: rng.integers(1, 12)]
    k = int(rng.choice([1, 3, 40, 900]))
    allowed = rng.random(count) < rng.random() if rng.random() < 0.5 else None
    threads = int(rng.integers(1, 4))
    damaged(rng, blocks, metric)
    assign(rng)
    scan_packed(rng, metric)
    scan_products(rng)
    evaluate(rng)
    with contextlib.suppress(MatryoError):   # a query without a score
        request = Request(blocks, queries, metric, allowed)
        every = np.tile(np.arange(count), (len(queries), 1))
        true = exact_scores(request, every, dims[-1])
        true[:, [] if allowed is None else ~allowed] = -np.inf
        wanted = ranked(every, true, k)[1]
        same(execute(blocks, queries, Plan.single(dims[-1]), k, metric, allowed, engine=best_engine()), wanted)
        same(Certified(blocks, Sketch.of(blocks, metric)).search(queries, k, allowed, threads), wanted)
        keep = int(rng.integers(1, count + 50))
        probe = float(rng.choice([0.001, 0.1, 0.5, 1]))
        between = int(rng.choice(dims))
        middle = Stage(between, keep, rng.choice(["int8", "full"]))
        plan = Plan((Stage(dims[0], keep, "int8"), middle, Stage(dims[-1], keep)), probe=probe)
        search = PartitionSearch(blocks, partition_of(rng, blocks, metric), plan, k)
        share = 1.0 if allowed is None else float(allowed.mean())
        many = search(queries, allowed, threads, share)
        may = count if allowed is None else int(np.count_nonzero(allowed))
        assert ((many[0] >= 0).sum(1) == min(k, may)).all()   # no place is empty while there are rows
        assert all(len(set(row)) == min(k, may) for row in (row[row >= 0].tolist() for row in many[0]))
        for i, query in enumerate(queries):
            alone = search(query[None], allowed, 1, share)
            assert (alone[0][0] == many[0][i]).all() and (alone[1][0] == many[1][i]).all()
        plan = Plan.of([(dims[0], keep), (dims[-1], keep)])
        for engine in (best_engine(), NUMPY):
            execute(blocks, queries, plan, k, metric, allowed, engine=engine)
    return len(queries)


def partition_of(rng: np.random.Generator, blocks: Blocks, metric: Any) -> Partition:
    """Return partitions with a random layout."""
    dim = int(rng.integers(1, blocks.nesting.dim + 1))
    rotated, copies = bool(rng.random() < 0.5), int(rng.integers(1, 3))
    return Partition.of(blocks, metric, dim=dim, rotated=rotated, copies=copies)


def same(found: tuple[Any, Any], wanted: Any) -> None:
    """Scores must be those of float64, best first; empty places last."""
    rows, scores = found
    wanted = np.pad(wanted, ((0, 0), (0, scores.shape[1] - wanted.shape[1])), constant_values=-np.inf)
    assert ((rows < 0) == np.isneginf(scores)).all()
    finite = np.isfinite(wanted)
    assert (np.isfinite(scores) == finite).all()
    size = np.abs(wanted[finite]).max(initial=0)
    np.testing.assert_allclose(scores[finite], wanted[finite], rtol=1e-9, atol=1e-12 * size)


def assign(rng: np.random.Generator) -> None:
    """Assign random vectors to random means, and compare with numpy in float64."""
    count, many, width = (int(rng.integers(1, most)) for most in (60, 80, 150))
    scale, shift = 10.0 ** rng.integers(-14, 14), rng.choice([0.0, 300.0])
    vectors, means = (
        ((rng.standard_normal((rows, width)) + shift) * scale).astype(np.float32) for rows in (count, many)
    )
    means[rng.integers(0, many, many // 3)] = means[0]   # ties
    vectors[rng.integers(0, count, count // 3)] = means[0]
    copies, squared = int(rng.integers(1, 3)), bool(rng.random() < 0.5)
    chosen = np.empty((count, copies), np.int64)
    require_core().Means(means, squared).nearest(vectors, chosen, int(rng.integers(1, 4)))
    np.testing.assert_array_equal(chosen, assigned_by_numpy(vectors, means, copies, not squared))


def scan_packed(rng: np.random.Generator, metric: Any) -> None:
    """Scan random rows in packed codes, and compare with the same bits from numpy."""
    shape = int(rng.choice([1, 15, 16, 17, 100])), int(rng.integers(1, rng.choice([9, 70, 1100])))
    vectors = rng.standard_normal(shape) * 10.0 ** rng.integers(-12, 12)
    packed = PackedRows.of(vectors, BITS[rng.integers(3)], metric)
    plain = replace(packed, metric="ip")   # queries as they are
    queries = rng.standard_normal((int(rng.integers(1, 7)), shape[1])).astype(np.float32)
    allowed = rng.random(shape[0]) < rng.random() if rng.random() < 0.5 else None
    rows, scores = plain.search(queries, int(rng.choice([1, 5, 200])), allowed, int(rng.integers(1, 4)))
    true = scores_by_numpy(plain, queries)
    every = np.arange(shape[0]) if allowed is None else np.flatnonzero(allowed)
    for line, found, given in zip(true, rows, scores, strict=True):
        best = every[np.lexsort((every, -line[every]))][: len(found)]
        assert (found[: len(best)] == best).all() and (found[len(best) :] == -1).all()
        assert (given[: len(best)] == line[best]).all()
    every = np.tile(np.arange(shape[0]), (len(queries), 1))
    assert (plain.score(queries, every) == true).all()


def scan_products(rng: np.random.Generator) -> None:
    """Scan random product codes, and compare with the same sums from numpy."""
    count, size, asked = int(rng.choice([0, 1, 3, 4, 5, 100])), int(rng.integers(1, 70)), int(rng.integers(1, 5))
    codes = rng.integers(0, 256, (count, size)).astype(np.uint8)
    factors, offsets = (rng.standard_normal(count).astype(np.float32) for _ in range(2))
    tables = rng.integers(-32767, 32768, (asked, size * 256)).astype(np.int16)
    units, shifts = rng.random(asked), rng.standard_normal(asked)
    mask = rng.random(count) < rng.random() if rng.random() < 0.5 else None
    rows, scores = np.empty((asked, 7), np.int64), np.empty((asked, 7), np.float32)
    products = require_core().Products(codes, factors, offsets)
    products.search(tables, units, shifts, mask, rows, scores, int(rng.integers(1, 4)))
    places = np.arange(size) * 256 + codes
    every = np.arange(count) if mask is None else np.flatnonzero(mask)
    for query in range(asked):
        sums = tables[query].astype(np.int64)[places].sum(axis=1)
        line = ((sums * units[query] + shifts[query]) * factors + offsets).astype(np.float32)
        best = every[np.lexsort((every, -line[every]))][:7]
        assert (rows[query, : len(best)] == best).all() and (rows[query, len(best) :] == -1).all()
        assert (scores[query, : len(best)] == line[best]).all()


def evaluate(rng: np.random.Generator) -> None:
    """Search random rows at every dim in one pass, and compare the cosines of the hits with the best in float64."""
    dims = sorted(set(rng.integers(1, rng.choice([9, 140]), rng.integers(1, 6)).tolist()))
    count, scale = int(rng.integers(1, 150)), 10.0 ** rng.integers(-12, 12)
    rows, queries = (
        (rng.standard_normal((many, dims[-1])) * scale).astype(np.float32) for many in (count, int(rng.integers(1, 30)))
    )
    rows[rng.integers(0, count, count // 3)] = rows[0]   # ties
    rows[rng.integers(0, count, count // 9)] = 0
    k = int(rng.integers(1, count + 1))
    for dim, found in search_every_dim(rows, queries, dims, k, fast=True).items():
        x, y = rows[:, :dim].astype(np.float64), queries[:, :dim].astype(np.float64)
        lengths = np.linalg.norm(y, axis=1)[:, None] * np.linalg.norm(x, axis=1)
        cosines = np.divide(y @ x.T, lengths, out=np.zeros(lengths.shape), where=lengths > 0)
        assert all(len(set(line)) == k for line in found.tolist())
        wanted = -np.sort(-cosines, axis=1)[:, :k]
        np.testing.assert_allclose(np.take_along_axis(cosines, found, 1), wanted, atol=2e-6)


def damaged(rng: np.random.Generator, blocks: Blocks, metric: Any) -> None:
    """Search partitions with random bytes in their arrays: anything may be found, but nothing outside is read."""
    good = partition_of(rng, blocks, metric)
    arrays: dict[str, Any] = {name: array.copy() for name, array in good.arrays().items()}
    flat = arrays[rng.choice(sorted(arrays))].reshape(-1).view(np.uint8)
    if len(flat):
        flat[rng.integers(0, len(flat), 1 + len(flat) // 50)] = rng.integers(0, 256, 1 + len(flat) // 50)
    bad = replace(good, **arrays)
    last = blocks.nesting.dim
    plan = Plan(Plan.of([(last, 20, "int8"), (last, 20, "int8"), (last, 10)]).stages, probe=0.2)
    queries = rng.standard_normal((3, blocks.nesting.dim)).astype(np.float32)
    with contextlib.suppress(MatryoError, ValueError), np.errstate(all="ignore"):
        rows, _ = PartitionSearch(blocks, bad, plan, 10)(queries)
        assert (rows < blocks.count).all()
    view = view_of(blocks, metric)
    with contextlib.suppress(ValueError):
        view.add_products(queries, 0, False, rng.integers(-2, blocks.count + 2, (3, 4)), np.zeros((3, 4), np.float32))


if __name__ == "__main__":
    main()
