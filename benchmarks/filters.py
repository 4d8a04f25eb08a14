"""Search under filters: matryo's plans and exact search, and qdrant-edge, at several selectivities.

The vectors are generated: noise around cluster centres, with a spectrum that decays. The payload of each row is a share
from 0 to 1, a year and a tag. A filter is `share < s`, which the share s of all rows match. Queries are searched one at
a time, on one thread. recall@10 counts against the exact nearest rows among those that match, computed in float64.

"first" is the first search with a new value of s, which evaluates the filter; "column" is the first filter on a field.

    python benchmarks/filters.py --rows 100000 --dim 128
    python benchmarks/filters.py --rows 1000000 --dim 64
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Index
from matryo.results import append_rows, stamp

Array = np.ndarray[Any, np.dtype[Any]]
Search = Callable[[Array, float], Any]
"""The ids nearest to a query, among the rows whose share is below a bound."""

K = 10
TAGS = 1000
BATCH = 10_000


def main() -> None:
    """Measure every engine at every selectivity, print the table, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="vectors in the database")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--selectivities", type=float, nargs="+", default=[0.5, 0.01, 0.001, 0.0001])
    parser.add_argument("--recalls", type=float, nargs="+", default=[0.9, 0.95, 0.99], help="of our plans, unfiltered")
    parser.add_argument("--efs", type=int, nargs="*", default=[32, 64, 128, 256], help="hnsw_ef of qdrant-edge")
    parser.add_argument("--count", type=int, default=3, help="timed rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/filters.jsonl"))
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    centres = decaying(rng, max(100, args.rows // 200), args.dim)
    vectors, queries, learn = (clustered(rng, centres, n) for n in (args.rows, args.queries, 1000))
    shares = rng.random(args.rows)
    payload = [{"share": share, "year": 1990 + row % 35, "tag": f"tag {row % TAGS}"}
               for row, share in enumerate(shares.tolist())]   # fmt: skip
    right = {share: nearest(vectors, queries, np.flatnonzero(shares < share)) for share in args.selectivities}
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        engines = [*ours(Path(folder) / "matryo", vectors, payload, learn, args.recalls),
                   *qdrant(Path(folder) / "qdrant", vectors, payload, args.efs)]   # fmt: skip
        for share in args.selectivities:
            for name, search in engines:
                measured = measure(search, queries, share, right[share], args.count)
                figures.append({"engine": name, "selectivity": share} | measured)
                shown = " ".join(f"{key} {value:.4g}" for key, value in measured.items())
                print(f"{name:20} {share:<8g} {shown}", flush=True)
    subject = f"{args.rows} × {args.dim}, {args.queries} queries, k {K}"
    append_rows(args.out, [stamp("filters", subject, {"rows": figures}, seed=args.seed)])


def decaying(rng: np.random.Generator, rows: int, dim: int) -> Array:
    """Gaussian vectors whose column j has variance 1 / (1 + j)."""
    return rng.standard_normal((rows, dim), np.float32) / np.sqrt(1 + np.arange(dim, dtype=np.float32))


def clustered(rng: np.random.Generator, centres: Array, rows: int) -> Array:
    """Unit vectors around random ``centres``."""
    made = centres[rng.integers(len(centres), size=rows)] + 0.7 * decaying(rng, rows, centres.shape[1])
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)


def nearest(vectors: Array, queries: Array, rows: Array) -> list[set[int]]:
    """The nearest K of ``rows`` for each query, in float64."""
    among = vectors[rows].astype(np.float64)
    found = []
    for query in queries:
        scores = among @ query.astype(np.float64)
        best = np.argsort(-scores, kind="stable")[:K]
        found.append(set(rows[best].tolist()))
    return found


def ours(
    folder: Path, vectors: Array, payload: Any, learn: Array, recalls: list[float]
) -> Iterator[tuple[str, Search]]:
    """Our exact search, and plans that the planner chooses for each recall without a filter."""
    dim = vectors.shape[1]
    with Index.create(folder, [dim // 4, dim // 2, dim]) as made:
        for start in range(0, len(vectors), 100_000):
            made.add(vectors[start : start + 100_000], payload=payload[start : start + 100_000])
        made.compact()
        made.build()
    index = Index.open(folder)
    begin = time.process_time()
    index.where({"share": 0})
    print(f"column: {time.process_time() - begin:.2f} s")

    def search_along(plan: Any) -> Search:
        return lambda query, share: index.search(query, k=K, plan=plan, where={"share": {"$lt": share}}).ids[0]

    yield "matryo exact", search_along(None)
    for recall in recalls:
        plan = index.plan(recall=recall, k=K, queries=learn, progress=False).plan
        print(f"plan {recall:g}: {replace(plan, promise=None).to_dict() if plan else 'exact'}")
        yield f"matryo plan {recall:g}", search_along(plan)


def qdrant(folder: Path, vectors: Array, payload: Any, efs: list[int]) -> Iterator[tuple[str, Search]]:
    """qdrant-edge with an HNSW graph, an index of each payload field, and one thread per search; exact with ef 0."""
    try:
        edge: Any = importlib.import_module("qdrant_edge")
    except ImportError:
        print("qdrant-edge is not installed: skipped")
        return
    folder.mkdir()
    config = edge.EdgeConfig(
        vectors=edge.EdgeVectorParams(size=vectors.shape[1], distance=edge.Distance.Dot),
        hnsw_config=edge.HnswIndexConfig(m=16 if efs else 0, ef_construct=100, full_scan_threshold=10_000),
        optimizers=edge.EdgeOptimizersConfig(default_segment_number=1, max_segment_size=1 << 30),
        max_search_threads=1,
        payload_memory=edge.Memory.Cached,
        wal_enabled=False,
    )
    shard = edge.EdgeShard.create(str(folder), config)
    schema = edge.PayloadSchemaType
    for field, kind in (("share", schema.Float), ("year", schema.Integer), ("tag", schema.Keyword)):
        shard.update(edge.UpdateOperation.create_field_index(field, kind))
    for start in range(0, len(vectors), BATCH):
        rows = range(start, min(start + BATCH, len(vectors)))
        points = [edge.Point(row, vectors[row].tolist(), payload[row]) for row in rows]
        shard.update(edge.UpdateOperation.upsert_points(points))
    begin = time.perf_counter()
    while shard.optimize():
        pass
    shard.flush()
    print(f"qdrant-edge: {time.perf_counter() - begin:.0f} s to optimize")

    def search_with(ef: int) -> Search:
        params = edge.SearchParams(hnsw_ef=ef or None, exact=not ef)

        def search(query: Array, share: float) -> list[int]:
            below = edge.Filter(must=[edge.FieldCondition(key="share", range=edge.RangeFloat(lt=share))])
            near = edge.Query.Nearest(query.tolist())
            request = edge.SearchRequest(query=near, limit=K, filter=below, params=params)
            return [point.id for point in shard.search(request)]

        return search

    for ef in (0, *efs):
        yield (f"qdrant-edge ef {ef}" if ef else "qdrant-edge exact"), search_with(ef)


def measure(search: Search, queries: Array, share: float, right: list[set[int]], count: int) -> dict[str, Any]:
    """Recall, and milliseconds per query: the median over queries, the mean of the best round, and the first search."""
    firsts = []
    for _ in range(7):
        begin = time.perf_counter()
        search(queries[0], share * (1 + 1e-7 * random.random()))   # a bound that no search had before
        firsts.append(time.perf_counter() - begin)
    found = [search(query, share) for query in queries]
    recall = statistics.mean(len(near & set(map(int, ids))) / len(near) for ids, near in zip(found, right, strict=True))
    rounds = []
    for _ in range(count):
        seconds = []
        for query in queries:
            begin = time.perf_counter()
            search(query, share)
            seconds.append(time.perf_counter() - begin)
        rounds.append(seconds)
    best = min(rounds, key=sum)
    return {"recall": recall, "p50_ms": 1e3 * statistics.median(best), "mean_ms": 1e3 * statistics.mean(best),
            "first_ms": 1e3 * statistics.median(firsts)}   # fmt: skip


if __name__ == "__main__":
    main()
