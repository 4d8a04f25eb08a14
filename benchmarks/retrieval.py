"""Recall against queries per second, for matryo and other libraries on the same nested embeddings.

Following ann-benchmarks: one thread, one query at a time, and all queries at once; recall@10 against exact
search at full dim, mAP@10 by labels; build time, bytes of the index, memory. Each index lives in a process of its own,
which tells its memory; the processes answer in turns, ``--turn`` queries each, so that clocks and neighbours disturb
all alike. The first engine stays while the others come and go, as many at a time as ``--memory`` holds; a ratio is the
median over turns of the ratio within a turn, and only among those of one group.

    python benchmarks/retrieval.py --database emb/train --queries emb/val
    python benchmarks/retrieval.py --generated model.safetensors --count 1281167 --engines matryo "faiss Flat"
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from generator import Generator, graded, write
from support.retrieval_ours import OURS, PAPER, SHORT
from support.retrieval_peers import Database, Engine, Rows, Settings, Vectors, unit, use_threads
from support.retrieval_settings import PEERS
from tqdm import tqdm

from matryo import EmbeddingSet, Nesting
from matryo.evaluation.knn.search import search
from matryo.results import append_rows, stamp

K = 10
LEARN = 1000   # queries that plan; none of them is timed
ROUNDS = 3   # of all queries at once
SLACK = 1e-5   # a row whose score is less than the k-th best by no more is as good: ties, and rounding of scores
ENGINES = {engine.name: engine for engine in (*OURS, *PEERS)}


@dataclass(frozen=True)
class Task:
    """Queries and database, as paths: each process opens its own arrays."""

    database: Path
    queries: Path
    count: int
    asked: int
    dim: int
    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the paths without opened arrays, which would be copied into each process."""
        return Task, (self.database, self.queries, self.count, self.asked, self.dim, self.seed)

    @cached_property
    def sets(self) -> tuple[EmbeddingSet, EmbeddingSet]:
        """Database and queries, opened."""
        return EmbeddingSet.open(self.database), EmbeddingSet.open(self.queries)

    @cached_property
    def nesting(self) -> Nesting:
        """The dims up to the one that counts as full."""
        return Nesting([dim for dim in self.sets[0].nesting.dims if dim <= self.dim])

    @cached_property
    def rows(self) -> Rows | None:
        """The rows of the database that count, drawn at random; None if all do."""
        whole = self.sets[0].count
        if self.count == whole:
            return None
        return np.sort(np.random.default_rng(self.seed).choice(whole, self.count, replace=False))

    @cached_property
    def _chosen(self) -> Rows:
        return np.random.default_rng([self.seed, 1]).permutation(self.sets[1].count)[: self.asked + LEARN]

    def asked_vectors(self, learn: bool = False) -> Vectors:
        """The queries that are timed, or those to learn from, of length 1."""
        chosen = self._chosen[self.asked :] if learn else self._chosen[: self.asked]
        return unit(np.asarray(self.sets[1].vectors[chosen, : self.dim], np.float32))

    def database_vectors(self) -> Database:
        """The input of every engine's build."""
        return Database(self.sets[0].vectors, self.rows, self.nesting, self.asked_vectors(learn=True))


@dataclass(frozen=True)
class Truth:
    """The exact nearest neighbours."""

    vectors: Vectors
    queries: Vectors
    kth: Vectors
    """The score of the k-th nearest."""
    known: Any
    asked: Any

    @classmethod
    def of(cls, task: Task) -> Truth:
        """By exact search at full dim."""
        database, queries = task.sets
        rows = np.arange(task.count) if task.rows is None else task.rows
        vectors = database.vectors if task.rows is None else database.vectors[rows]
        asked = task.asked_vectors()
        found = search(vectors, asked, (task.dim,), K, progress=True)[task.dim]
        known, labels = np.asarray(database.labels)[rows], np.asarray(queries.labels)[task._chosen[: task.asked]]
        truth = cls(vectors, asked, np.zeros(0, np.float32), known, labels)
        return cls(vectors, asked, truth.scores(found).min(1), known, labels)

    def scores(self, found: Rows) -> Vectors:
        """The cosines of rows [queries, k]; −∞ where there is none."""
        dim = self.queries.shape[1]
        parts = [unit(np.asarray(self.vectors[rows, :dim], np.float32)) @ query
                 for rows, query in zip(np.maximum(found, 0), self.queries, strict=True)]  # fmt: skip
        return np.where(found < 0, -np.inf, np.stack(parts)).astype(np.float32)

    def recall(self, found: Rows) -> float:
        """The share of the k nearest that were found; what scores as well counts as well, but each row once."""
        order = np.sort(found, axis=1)
        twice = (np.diff(order, axis=1) == 0).sum(1)
        hits = (self.scores(found) >= self.kth[:, None] - SLACK).sum(1) - twice
        return float(np.clip(hits, 0, K).mean() / K)

    def map10(self, found: Rows) -> float:
        """By labels."""
        return graded(np.maximum(found, 0), self.known, self.asked)


# ── the process of one index ──────────────────────────────────────────────────────────────────────────────────


def serve(pipe: Connection, task: Task, name: str, build: Settings, threads: tuple[int, int]) -> None:
    """Build one index, then answer until told to stop."""
    engine, database, queries = ENGINES[name], task.database_vectors(), task.asked_vectors()
    use_threads(threads[0])
    before = memory()["held_bytes"]
    begin = time.perf_counter()
    built = engine.build(database, threads[0], **build)
    seconds = time.perf_counter() - begin
    use_threads(threads[1])
    built.threads(threads[1])
    now = memory()
    now["held_bytes"] -= before
    pipe.send({"build_seconds": seconds, "index_bytes": built.nbytes, **now, "version": engine.version})
    while (order := pipe.recv()) is not None:
        kind, ask, some = order
        asked = queries[some]
        if kind == "read":
            pipe.send(built.read(asked[:100], K, **ask))
            continue
        built.ask(queries[some.start - 1 :][:1] if kind == "one" else asked[:2], K, **ask)   # wakes caches
        times, found, cpu = [], [], time.process_time()
        for part in (asked[i : i + 1] for i in range(len(asked))) if kind == "one" else (asked,):
            begin = time.perf_counter()
            found.append(built.ask(part, K, **ask))
            times.append(time.perf_counter() - begin)
        pipe.send((times, time.process_time() - cpu, np.concatenate(found)))


def memory() -> dict[str, int]:
    """Bytes that this process holds itself, and the most it ever had, with libraries and mapped files."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = {key: int(value) * 1024 for key, value in re.findall(r"(\w+):\s+(\d+) kB", text)}
    return {"held_bytes": found["RssAnon"], "peak_bytes": found["VmHWM"]}


class Indexed:
    """An index in its process, as seen from outside."""

    def __init__(self, task: Task, engine: Engine, build: Settings, threads: tuple[int, int]) -> None:
        self.engine, self.build, self.about = engine, build, dict[str, Any]()
        self.asks = engine.asks(task.database_vectors(), build)
        self.times: list[list[list[float]]] = [[] for _ in self.asks]   # by ask, by turn, by query
        self.cpu = [0.0] * len(self.asks)
        self.batches: list[list[float]] = [[] for _ in self.asks]
        self.found: list[dict[int, Rows]] = [{} for _ in self.asks]   # by ask, by the first query
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, task, engine.name, build, threads), daemon=True)
        self.process.start()
        theirs.close()
        self.about = self.pipe.recv()   # EOFError where it died

    def turn(self, turn: int, size: int, count: int) -> None:
        """One query at a time, with every setting, each on others than the one before it: else what that one read
        would still lie in the processor's cache.
        """
        for number, ask in enumerate(self.asks):
            start = (turn + number) * size % count
            self.pipe.send(("one", ask, slice(start, start + size)))
            times, cpu, found = self.pipe.recv()
            self.times[number].append(times)
            self.cpu[number] += cpu
            self.found[number][start] = found

    def batch(self, some: slice) -> None:
        """All at once, with every setting."""
        for number, ask in enumerate(self.asks):
            self.pipe.send(("batch", ask, some))
            times, _, _ = self.pipe.recv()
            self.batches[number] += times

    def forget(self) -> None:
        """Start a new measurement."""
        for kept in (self.times, self.batches):
            kept[:] = [[] for _ in self.asks]
        self.found = [{} for _ in self.asks]
        self.cpu = [0.0] * len(self.asks)

    def figures(self, number: int, truth: Truth) -> dict[str, Any]:
        """The measurements of one setting."""
        times = np.array(self.times[number])
        found = np.concatenate([part for _, part in sorted(self.found[number].items())])
        self.pipe.send(("read", self.asks[number], slice(0, len(found))))
        read, turns, batches = self.pipe.recv(), times.mean(1), self.batches[number]
        return {
            "engine": self.engine.name, "build": self.build, "ask": self.asks[number], **self.about,
            "recall@10": truth.recall(found), "map@10": truth.map10(found),
            "qps": 1 / float(np.median(turns)), "batch_qps": len(found) / float(np.median(batches)),
            "milliseconds": {f"p{p}": 1e3 * float(np.percentile(times, p)) for p in (20, 50, 80)},
            "cpu_milliseconds": 1e3 * self.cpu[number] / len(found), "bytes_read": read,
            "turns": [round(1e3 * float(turn), 5) for turn in turns],
        }  # fmt: skip

    def stop(self) -> None:
        """End the process."""
        self.pipe.send(None)
        self.process.join(10)


# ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────


def measure(group: list[Indexed], truth: Truth, turn: int) -> list[dict[str, Any]]:
    """Every index of a group in turns; the figures of every setting."""
    turn = min(turn, len(truth.queries))
    count = len(truth.queries) // turn * turn
    for number in tqdm(range(count // turn), desc="turns", unit="turn"):
        for one in group:
            one.turn(number, turn, count)
    for _ in range(ROUNDS):
        for one in group:
            one.batch(slice(0, count))
    found = [one.figures(number, truth) for one in group for number in range(len(one.asks))]
    for one in group:
        one.forget()
    return found


def run(task: Task, names: list[str], args: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Build and measure, a group at a time, and give its figures; the first index is in every group."""
    truth, threads = Truth.of(task), (args.build_threads, args.threads)
    variants = [(ENGINES[name], build) for name in names for build in ENGINES[name].builds(task.database_vectors())
                if not any(text in str(build) for text in args.skip)]  # fmt: skip
    group: list[Indexed] = []
    number = 0

    def finish() -> list[dict[str, Any]]:
        nonlocal group, number
        rows = [figures | {"group": number} for figures in measure(group, truth, args.turn)]
        print(*map(line, rows), sep="\n", flush=True)
        for one in group[1:]:
            one.stop()
        group, number = group[:1], number + 1
        return rows

    for engine, build in variants:
        print(f"build {engine.name} {build}", flush=True)
        try:
            one = Indexed(task, engine, build, threads)
        except EOFError:
            print(f"{engine.name} {build}: its process died while it built", flush=True)
            continue
        group.append(one)
        if len(group) > 1 and sum(member.about["held_bytes"] for member in group) > args.memory * 2**30:
            yield finish()
    if len(group) > 1 or not number:
        yield finish()
    for one in group:
        one.stop()


def worth_keeping(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each index the settings that no other of it beats, by recall or by mAP, and those of the paper's protocol."""
    kept = []
    for row in rows:
        same = [other for other in rows if all(other[name] == row[name] for name in ("group", "engine", "build"))]
        beaten = [any(other["qps"] > row["qps"] and other[metric] >= row[metric] for other in same)
                  for metric in ("recall@10", "map@10")]  # fmt: skip
        first = row["ask"].get("plan", {}).get("stages", [{}])[0]
        if not all(beaten) or "shortlist" in row["ask"] or (first.get("dim") in SHORT and first["keep"] == PAPER):
            kept.append(row)
    return kept


def line(figures: dict[str, Any]) -> str:
    """One setting, for those who wait."""
    about = f"{figures['engine']} {figures['build']} {figures['ask']}"
    found = f"recall {figures['recall@10']:.4f} mAP {100 * figures['map@10']:.2f} {figures['qps']:9.0f}/s"
    return f"{about[:110]:110} {found} {figures['build_seconds']:7.1f} s {figures['index_bytes'] / 2**20:7.0f} MiB"


def tasks(args: argparse.Namespace) -> list[Task]:
    """The databases to search, one a count."""
    if args.generated:
        model, most = Generator.load(args.generated), max(args.count)
        database, queries = write(model, (most, 10_000), args.classes, args.seed, args.work / args.generated.stem)
    else:
        database, queries = args.database, args.queries
    sets = EmbeddingSet.open(database), EmbeddingSet.open(queries)
    asked = min(args.asked, sets[1].count - LEARN)
    counts, dim = args.count or [sets[0].count], args.dim or sets[0].dim
    return [Task(database, queries, min(count, sets[0].count), asked, dim, args.seed) for count in counts]


def main() -> None:
    """Measure, print, store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, metavar="EMB", help="an embeddings folder")
    parser.add_argument("--queries", type=Path, metavar="EMB")
    parser.add_argument("--generated", type=Path, metavar="MODEL", help="instead: draw from a fitted generator")
    parser.add_argument("--classes", type=int, default=1000, help="classes to draw")
    parser.add_argument("--count", type=int, nargs="+", help="vectors in the database; several are measured in turn")
    parser.add_argument("--dim", type=int, help="use the first columns only (default: all)")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), metavar="NAME", help="default: all installed")
    parser.add_argument("--skip", nargs="+", default=[], metavar="TEXT", help="builds to leave out: 'dim': 16")
    parser.add_argument("--asked", type=int, default=1000, help="queries")
    parser.add_argument("--turn", type=int, default=50, help="queries of one turn")
    parser.add_argument("--threads", type=int, default=1, help="threads that search")
    parser.add_argument("--build-threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", type=float, default=6.0, help="GiB that the indexes of a group may hold")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "matryo-generated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/retrieval.jsonl"))
    args = parser.parse_args()
    if bool(args.generated) == bool(args.database and args.queries) or (args.generated and not args.count):
        parser.error("give --database and --queries, or --generated and --count")
    names = [name for name in args.engines or ENGINES if ENGINES[name].version]
    print("not installed:", ", ".join(sorted({*(args.engines or ENGINES)} - {*names})) or "none")
    for task in tasks(args):
        title = f"{task.sets[0].manifest.title}, {task.count:,} × {task.dim}"
        print(title, flush=True)
        about = {"count": task.count, "dim": task.dim, "queries": task.asked, "threads": args.threads,
                 "build_threads": args.build_threads, "run": time.strftime("%Y%m%dT%H%M%S")}  # fmt: skip
        for found in run(task, names, args):
            rows = [stamp("retrieval", title, about | figures, seed=args.seed) for figures in worth_keeping(found)]
            append_rows(args.out, rows)


if __name__ == "__main__":
    main()
