"""Search while vectors are added: matryo's index as it grows, beside itself freshly compacted, and qdrant-edge.

``grow`` adds a share of new vectors to an index with guides, in small batches, and measures one query at a time along
one plan; then it compacts a copy, and measures the same queries along the same plan. The two answer in turns. ``mixed``
reads for some seconds, with one write per hundred reads: adds, replaced vectors and deletions. A process that is killed
at random moments writes meanwhile, and every write that it acknowledged must be there afterwards. ``pairs`` adds one
vector and searches once, in turns, durably, beside qdrant-edge.

The database is a set of ``unseen.py make``; its last rows are those that are added.

    python benchmarks/updates.py --data unseen/glosses --seconds 120
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from support.unseen_task import Task

from matryo import Index, Plan
from matryo.results import append_rows, stamp

K, RECALL = 10, 0.95
BATCH = 500   # vectors per add
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
Array = np.ndarray[Any, np.dtype[Any]]


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a set of unseen.py")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.05, 0.2], help="of new vectors")
    parser.add_argument("--seconds", type=float, default=120, help="of the mixed load")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("docs/results/updates.jsonl"))
    args = parser.parse_args()
    for name in THREADS:
        os.environ[name] = "1"
    task = Task(args.data)
    vectors, queries, tuning = np.array(task.raw), task.queries("test"), task.queries("tuning")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        kept = round(len(vectors) / (1 + max(args.shares)))
        with Index.create(folder / "base", task.about["nesting"]) as index:
            index.add(vectors[:kept])
            index.build()
            plan = index.plan(RECALL, K, tuning, progress=False).plan
        assert plan is not None   # there is no budget
        figures: dict[str, Any] = {"set": task.name, "count": kept, "dim": task.about["dim"], "plan": plan.to_dict()}
        figures["grow"] = [grow(folder, vectors, kept, share, plan, queries, args.rounds) for share in args.shares]
        figures["mixed"] = mixed(folder, vectors, kept, plan, queries, args.seconds)
        figures["pairs"] = pairs(folder, vectors[:kept], vectors[kept:], plan, queries, args.pairs)
    print(table(figures))
    subject = f"{task.name}, {kept:,} × {task.about['dim']}"
    append_rows(args.out, [stamp("updates", subject, figures, seed=0)])


def grow(
    folder: Path, vectors: Array, kept: int, share: float, plan: Plan, queries: Array, rounds: int
) -> dict[str, Any]:
    """The speed after a share of new vectors, and that of the same index compacted."""
    shutil.copytree(folder / "base", folder / "grown")
    new = vectors[kept : kept + round(share * kept)]
    with Index.open(folder / "grown", writable=True) as index:
        begin = time.perf_counter()
        for start in range(0, len(new), BATCH):
            index.add(new[start : start + BATCH])
        seconds = time.perf_counter() - begin
        index.backup(folder / "compacted")
    with Index.open(folder / "compacted", writable=True) as index:
        index.compact()
    with Index.open(folder / "grown") as grown, Index.open(folder / "compacted") as compacted:
        true = compacted.search(queries, K, exact=True).ids
        recalls = [found(index.search(queries, K, plan).ids, true) for index in (grown, compacted)]
        turns = [(spent(grown, plan, queries), spent(compacted, plan, queries)) for _ in range(rounds)]
        exact = [(spent(grown, None, queries[:200]), spent(compacted, None, queries[:200])) for _ in range(3)]
    shutil.rmtree(folder / "grown")
    shutil.rmtree(folder / "compacted")
    return {
        "share": share, "added": len(new), "adds_per_second": len(new) / seconds,
        "qps": 1 / median(own for own, _ in turns), "compacted_qps": 1 / median(other for _, other in turns),
        "of_compacted": median(other / own for own, other in turns), "recall": recalls[0],
        "compacted_recall": recalls[1], "exact_of_compacted": median(other / own for own, other in exact),
    }  # fmt: skip


def mixed(folder: Path, vectors: Array, kept: int, plan: Plan, queries: Array, seconds: float) -> dict[str, Any]:
    """The speed of reads with one write per hundred, by CPU time, beside the same index compacted afterwards."""
    lost = killed(folder, vectors, kept, plan, queries, seconds / 4)
    shutil.copytree(folder / "base", folder / "mixed")
    rng, new = np.random.default_rng(0), iter(vectors[kept:])
    reads, writes, reading, writing, slowest = 0, 0, 0.0, 0.0, 0.0
    end = time.perf_counter() + seconds
    with Index.open(folder / "mixed", writable=True) as index:
        while time.perf_counter() < end:
            used, longest = hundred_reads(index, plan, queries, rng)
            reading, slowest, reads = reading + used, max(slowest, longest), reads + 100
            begin = time.process_time()
            write(index, next(new), rng)
            writing, writes = writing + time.process_time() - begin, writes + 1
        index.backup(folder / "compacted")
    with Index.open(folder / "compacted", writable=True) as index:
        index.compact()
    with Index.open(folder / "compacted") as compacted, Index.open(folder / "mixed") as index:
        true = compacted.search(queries, K, exact=True).ids
        recalls = [found(one.search(queries, K, plan).ids, true) for one in (index, compacted)]
        other = median(hundred_reads(compacted, plan, queries, rng)[0] / 100 for _ in range(200))
    return {
        "seconds": seconds, "reads": reads, "writes": writes, "qps": reads / reading, "compacted_qps": 1 / other,
        "of_compacted": reads / reading * other, "slowest_ms": 1000 * slowest, "recall": recalls[0],
        "write_microseconds": 1e6 * writing / writes,
        "compacted_recall": recalls[1], **lost,
    }  # fmt: skip


def hundred_reads(index: Index, plan: Plan, queries: Array, rng: np.random.Generator) -> tuple[float, float]:
    """CPU seconds of 100 searches for random queries, and of the longest one."""
    longest, begin = 0.0, time.process_time()
    for query in queries[rng.integers(0, len(queries), 100)]:
        one = time.process_time()
        index.search(query, K, plan)
        longest = max(longest, time.process_time() - one)
    return time.process_time() - begin, longest


def write(index: Index, vector: Array, rng: np.random.Generator) -> tuple[str, int]:
    """One write: mostly a new vector, sometimes a replaced or a deleted one. Returns what was done to which id."""
    kind = rng.random()
    if kind < 0.6:
        return "added", int(index.add(vector[None])[0])
    id = int(rng.choice(index.ids))
    if kind < 0.8:
        index.upsert(vector[None], [id])
        return "added", id
    index.delete([id])
    return "deleted", id


def killed(folder: Path, vectors: Array, kept: int, plan: Plan, queries: Array, seconds: float) -> dict[str, int]:
    """Kill a process that writes and reads, again and again; count the acknowledged writes that are not there."""
    shutil.copytree(folder / "base", folder / "killed")
    kills, acknowledged, lost, chance = 0, 0, 0, random.Random(0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        ours, theirs = multiprocessing.Pipe()
        rows = vectors[kept + 100 * kills : kept + 100 * kills + 400]
        process = multiprocessing.get_context("spawn").Process(
            target=writes_until_killed, args=(folder / "killed", rows, plan, queries, kills, theirs)
        )
        process.start()
        theirs.close()
        ours.recv()   # the index is open
        time.sleep(chance.uniform(0.01, 0.6))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        done: dict[int, str] = {}
        try:
            while True:
                kind, id = ours.recv()
                done[id] = kind
                acknowledged += 1
        except EOFError:
            pass
        kills += 1
        with Index.open(folder / "killed", writable=True) as index:
            lost += sum((id in index) != (kind == "added") for id, kind in done.items())
    with Index.open(folder / "killed") as index:
        index.verify()
    return {"kills": kills, "acknowledged": acknowledged, "lost": lost}


def writes_until_killed(
    folder: Path, vectors: Array, plan: Plan, queries: Array, seed: int, pipe: Connection
) -> None:
    """Write and read, and report every write that returned."""
    rng = np.random.default_rng([1, seed])
    with Index.open(folder, writable=True) as index:
        pipe.send(None)
        for vector in vectors:
            pipe.send(write(index, vector, rng))
            index.search(queries[0], K, plan)


def pairs(folder: Path, base: Array, new: Array, plan: Plan, queries: Array, count: int) -> dict[str, float]:
    """Pairs of one durable add and one search per second, by wall time; also of qdrant-edge, if it is installed."""
    with Index.open(folder / "base", writable=True) as index:
        begin = time.perf_counter()
        for vector, query in zip(new[:count], queries[np.arange(count) % len(queries)], strict=True):
            index.add(vector[None])
            index.search(query, K, plan)
        ours = count / (time.perf_counter() - begin)
    try:
        edge: Any = importlib.import_module("qdrant_edge")
    except ImportError:
        return {"matryo": ours}
    (folder / "edge").mkdir()
    config = edge.EdgeConfig(
        vectors=edge.EdgeVectorParams(size=base.shape[1], distance=edge.Distance.Cosine),
        hnsw_config=edge.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10_000),
        optimizers=edge.EdgeOptimizersConfig(default_segment_number=1, max_segment_size=1 << 30),
    )
    shard = edge.EdgeShard.create(str(folder / "edge"), config)
    for start in range(0, len(base), 10_000):
        points = [edge.Point(start + i, row.tolist(), {}) for i, row in enumerate(base[start : start + 10_000])]
        shard.update(edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    begin = time.perf_counter()
    for number, (vector, query) in enumerate(
        zip(new[:count], queries[np.arange(count) % len(queries)], strict=True), len(base)
    ):
        shard.update(edge.UpdateOperation.upsert_points([edge.Point(number, vector.tolist(), {})]))
        shard.flush()   # durable, as ours is
        shard.search(edge.SearchRequest(query=edge.Query.Nearest(query.tolist()), limit=K))
    return {"matryo": ours, "qdrant-edge": count / (time.perf_counter() - begin)}


def spent(index: Index, plan: Plan | None, queries: Array) -> float:
    """CPU seconds per query, one at a time."""
    each = list(queries)
    for query in each[:20]:
        index.search(query, K, plan)
    begin = time.process_time()
    for query in each:
        index.search(query, K, plan)
    return (time.process_time() - begin) / len(each)


def found(ids: Array, true: Array) -> float:
    """The recall."""
    return float((ids[:, :, None] == true[:, None]).any(1).mean())


def table(figures: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"{figures['set']}: {figures['count']:,} × {figures['dim']}"]
    lines += [
        f"+{row['share']:.0%}: {row['qps']:,.0f} queries/s, {row['of_compacted']:.2f} of compacted (exact search "
        f"{row['exact_of_compacted']:.2f}); recall {row['recall']:.4f} and {row['compacted_recall']:.4f}; "
        f"{row['adds_per_second']:,.0f} adds/s"
        for row in figures["grow"]
    ]
    row = figures["mixed"]
    lines += [
        f"mixed load, {row['seconds']:.0f} s: {row['reads']:,} reads, {row['writes']:,} writes: {row['qps']:,.0f} "
        f"queries/s, {row['of_compacted']:.2f} of compacted, slowest read {row['slowest_ms']:.1f} ms; recall "
        f"{row['recall']:.4f} and {row['compacted_recall']:.4f}; {row['write_microseconds']:,.0f} µs per write",
        f"{row['kills']} kills, {row['acknowledged']:,} acknowledged writes, {row['lost']} lost",
        "add and search in turns, pairs/s: "
        + ", ".join(f"{name} {rate:,.0f}" for name, rate in figures["pairs"].items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
