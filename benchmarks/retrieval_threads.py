"""Speed of one index by number of threads: many queries at once, through ``index.search(threads=…)``.

Exact search, certified by the sketch, and a plan through partitions, each with one thread and with more, in turns, so
that clocks and neighbours disturb all alike; a ratio is the median of the ratios within a round. Every answer is
compared with that of one thread.

    python benchmarks/retrieval_threads.py --database emb/train --queries emb/val --threads 2
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from matryo import EmbeddingSet, Index, Plan
from matryo.results import append_rows, stamp
from matryo.retrieve import Stage

K = 10


def searches(index: Index, exact: int, many: int) -> dict[str, tuple[Plan | None, int]]:
    """The searches, each with its number of queries: exact search takes longer."""
    dim, tiles = index.nesting.dim, index.nesting.dims[0]   # the first stage reads the tiles, whatever its dim
    stages = Stage(tiles, 100, "int8"), Stage(dim // 4, 40, "int8"), Stage(dim, 15, "int8"), Stage(dim, K)
    return {
        "exact": (None, exact),
        "partitions, 8 bits between": (Plan(stages, probe=0.02), many),
        "partitions, two stages": (Plan((Stage(tiles, 200, "int8"), Stage(dim, K)), probe=0.02), many),
    }


def measure(index: Index, queries: Any, plan: Plan | None, threads: list[int], rounds: int) -> list[dict[str, Any]]:
    """Seconds of each round by the number of threads; the first round only wakes caches."""
    taken: dict[int, list[float]] = {count: [] for count in threads}
    alone = index.search(queries, K, plan)
    for _ in range(rounds):
        for count in threads:
            begin = time.perf_counter()
            hits = index.search(queries, K, plan, threads=count)
            taken[count].append(time.perf_counter() - begin)
            assert (hits.ids == alone.ids).all() and (hits.scores == alone.scores).all()
    return [
        {"threads": count, "qps": len(queries) / median(times),
         "faster": median(a / b for a, b in zip(taken[threads[0]], times, strict=True))}
        for count, times in taken.items()
    ]  # fmt: skip


def main() -> None:
    """Build the index, measure, print, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, metavar="EMB", required=True, help="an embeddings folder")
    parser.add_argument("--queries", type=Path, metavar="EMB", required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="beside one")
    parser.add_argument("--exact", type=int, default=1000, help="queries of exact search")
    parser.add_argument("--asked", type=int, default=5000, help="queries of plans")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/retrieval.jsonl"))
    args = parser.parse_args()
    database, asked = EmbeddingSet.open(args.database), EmbeddingSet.open(args.queries)
    chosen = np.random.default_rng(args.seed).permutation(asked.count)
    with tempfile.TemporaryDirectory() as work:
        index = Index.create(f"{work}/index", database.nesting, dtype=str(database.vectors.dtype))
        index.add(database.vectors)
        index.build()
        found = []
        for name, (plan, count) in searches(index, args.exact, args.asked).items():
            queries = np.asarray(asked.vectors[chosen[:count]], np.float32)
            rows = measure(index, queries, plan, [1, *args.threads], args.rounds)
            found.append({"name": name, "queries": len(queries), "plan": plan and plan.to_dict(), "threads": rows})
            print(name, *(f"{row['threads']}: {row['qps']:,.0f}/s, {row['faster']:.2f}" for row in rows), flush=True)
        index.close()
    title = f"{database.manifest.title}, {database.count:,} × {database.dim}"
    figures = {"count": database.count, "dim": database.dim, "rounds": args.rounds, "searches": found}
    append_rows(args.out, [stamp("retrieval-threads", title, figures, seed=args.seed)])


if __name__ == "__main__":
    main()
