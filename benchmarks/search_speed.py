"""Cost of exact search at every dim: in one pass, one search per dim, plain numpy, and faiss once per dim.

All contenders search the same vectors with all cores, in turns, so that clocks and neighbours disturb them alike; a
ratio is the median of the ratios within a round. The vectors are random, of a spectrum that decays as embeddings'
does: the time depends little on them. faiss is given its normalised prefixes and its index, and is timed for the
search alone; the others normalise within their time.

    python benchmarks/search_speed.py --rows 100000 --queries 10000 --dim 512
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Nesting, truncate
from matryo.evaluation.knn.search import search
from matryo.results import append_rows, stamp

Vectors = np.ndarray[Any, np.dtype[np.float32]]
Hits = dict[int, np.ndarray[Any, np.dtype[np.int64]]]


def main() -> None:
    """Measure every contender, print the table, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="vectors in the database")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--dims", type=int, default=17, help="how many dims, trained and interpolated")
    parser.add_argument("-k", type=int, default=100, help="neighbours")
    parser.add_argument("--count", type=int, default=3, help="timed rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/search-speed.jsonl"))
    args = parser.parse_args()
    nested = Nesting.halving(args.dim).dims
    dims = many_dims(args.dim, args.dims)
    rng = np.random.default_rng(args.seed)
    database, queries = decaying(rng, args.rows, args.dim), decaying(rng, args.queries, args.dim)
    search(database[:64], queries[:64], dims, 1, fast=True)   # loaded before the clock starts

    def ours(chosen: tuple[int, ...], fast: bool) -> Callable[[], Hits]:
        return lambda: search(database, queries, chosen, args.k, fast=fast)

    rounds: list[dict[str, float]] = []
    found: dict[str, Hits] = {}
    for number in range(args.count):
        seconds = {}
        for name, run in {
            "one dim": ours((args.dim,), True),
            "one dim, numpy": ours((args.dim,), False),
            "nested dims": ours(nested, True),
            "all dims": ours(dims, True),
            "all dims, numpy": ours(dims, False),
        }.items():
            seconds[name], found[name] = timed(run)
        alone = {dim: timed(ours((dim,), True)) for dim in dims}
        seconds |= sums("a search a dim", alone, nested)
        found["a search a dim"] = {dim: hits[dim] for dim, (_, hits) in alone.items()}
        other = {dim: result for dim in dims if (result := faiss_search(database, queries, dim, args.k))}
        seconds |= sums("faiss", other, nested)
        found["faiss"] = {dim: hits[dim] for dim, (_, hits) in other.items()}
        rounds.append(seconds)
        print(f"round {number + 1}:", ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()), flush=True)
    figures = {"dims": dims, "nested": nested} | summary(rounds) | agreement(found)
    for name, value in figures.items():
        print(name, value)
    subject = f"{args.queries} queries, {args.rows} rows, dim {args.dim}, k {args.k}"
    append_rows(args.out, [stamp("search-speed", subject, figures, seed=args.seed)])


def many_dims(dim: int, count: int) -> tuple[int, ...]:
    """The nested dims and those between, then the middle of the widest block, again and again, until ``count``."""
    nesting = Nesting.halving(dim)
    dims = sorted({*nesting.dims, *nesting.between()})
    while len(dims) < count:
        low, high = max(pairwise(dims), key=lambda block: block[1] - block[0])
        dims = sorted({*dims, (low + high) // 2})
    return tuple(dims)


def decaying(rng: np.random.Generator, rows: int, dim: int) -> Vectors:
    """Gaussian vectors whose column j has variance 1 / (1 + j)."""
    vectors: Vectors = rng.standard_normal((rows, dim), np.float32)
    vectors /= np.sqrt(1 + np.arange(dim, dtype=np.float32))
    return vectors


def timed(run: Callable[[], Hits]) -> tuple[float, Hits]:
    """Seconds, and what was found."""
    begin = time.perf_counter()
    found = run()
    return time.perf_counter() - begin, found


def faiss_search(database: Vectors, queries: Vectors, dim: int, k: int) -> tuple[float, Hits] | None:
    """The exact index of faiss at one dim, or None where it is not installed."""
    try:
        faiss: Any = importlib.import_module("faiss")
    except ImportError:
        return None
    faiss.omp_set_num_threads(os.cpu_count())
    index = faiss.IndexFlatIP(dim)
    index.add(truncate(database, dim))
    asked = truncate(queries, dim)
    return timed(lambda: {dim: index.search(asked, k)[1]})


def sums(name: str, by_dim: dict[int, tuple[float, Hits]], nested: tuple[int, ...]) -> dict[str, float]:
    """The seconds of one search after the other, over the nested dims and over all."""
    if not by_dim:
        return {}
    return {
        f"nested dims, {name}": sum(by_dim[dim][0] for dim in nested),
        f"all dims, {name}": sum(seconds for seconds, _ in by_dim.values()),
    }


def summary(rounds: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """p20, p50 and p80 of the seconds, and the ratios that matter."""
    seconds = {name: quantiles([times[name] for times in rounds]) for name in rounds[0]}
    base = min("one dim", "one dim, numpy", key=lambda name: seconds[name]["p50"])
    pairs = [("all dims", base), ("nested dims", base)]
    pairs += [(name, f"{name}, {how}") for name in ("nested dims", "all dims") for how in ("a search a dim", "faiss")]
    pairs += [("all dims", "all dims, numpy")]
    ratios = {
        f"{name} / {other}": round(statistics.median(times[name] / times[other] for times in rounds), 3)
        for name, other in pairs
        if other in rounds[0]
    }
    return {"seconds": seconds, "ratios": ratios}


def quantiles(values: list[float]) -> dict[str, float]:
    """p20, p50 and p80."""
    return {f"p{part}": round(float(np.percentile(values, part)), 3) for part in (20, 50, 80)}


def agreement(found: dict[str, Hits]) -> dict[str, float]:
    """Of the neighbours that the single pass found, the share that each other search found in that very place."""
    whole = found["all dims"]
    others = {"a search a dim", "all dims, numpy", "faiss"}
    return {
        f"same as {name}": float(np.mean([np.mean(whole[dim] == hits[dim]) for dim in hits]))
        for name, hits in found.items()
        if name in others and hits
    }


if __name__ == "__main__":
    main()
