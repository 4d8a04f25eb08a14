"""Search in an index larger than the memory it may have: what a query costs, and what it reads from disk.

The index's files are mapped, so the system keeps in memory what is read again and again. Here no more of them than
``--limits`` GiB is left there: every few queries, between the clock's ticks, pages drawn at random are given back until
that holds. A system under pressure gives back those that were not used for long, which is kinder. Each limit has a
process of its own, which begins with nothing in memory. Needs Linux, whose ``/proc`` tells what is mapped and read; no
rights are needed, and nobody else's memory is touched.

    python benchmarks/retrieval_memory.py --database emb/train --queries emb/val --index idx --limits 1 2
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import multiprocessing
import os
import re
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.retrieval_peers import size

from matryo import EmbeddingSet, Index, Plan
from matryo.evaluation.knn.search import search
from matryo.results import append_rows, stamp
from matryo.retrieve import Stage

K = 10
EVERY = 10   # queries after which memory is given back
CHUNK = 1 << 18   # bytes of a file that are given back together
PICKED = ("blocks/", "codes.npy")   # files of which single rows are picked
ADVICE = {"default": None, "normal": mmap.MADV_NORMAL, "random": mmap.MADV_RANDOM}
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Mapped:
    """A file in this process's memory."""

    starts: tuple[int, ...]
    """Where; one that is scanned and picked from is there twice, with the same pages."""
    length: int
    path: str

    def advise(self, advice: int, first: int = 0, length: int | None = None) -> None:
        """Tell the system how it is read, or a part of it."""
        for start in self.starts:
            _call("madvise", start + first, self.length if length is None else length, advice)

    def present(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of its pages are in memory."""
        pages = np.empty(-(-self.length // mmap.PAGESIZE), np.uint8)
        _call("mincore", self.starts[0], self.length, pages.ctypes.data)
        return (pages & 1).astype(bool)

    def drop(self, first: int, length: int) -> None:
        """Release a part of the pages; later reads come from disk."""
        length = min(length, self.length - first)
        self.advise(mmap.MADV_DONTNEED, first, length)
        _forget(Path(self.path), first, length)


def _call(name: str, start: int, length: int, last: int) -> None:
    failed = getattr(_LIBC, name)(ctypes.c_void_p(start), ctypes.c_size_t(length),
                                  ctypes.c_void_p(last) if name == "mincore" else ctypes.c_int(last))  # fmt: skip
    if failed:
        raise OSError(ctypes.get_errno(), f"{name} of {length} bytes")


def _forget(path: Path, first: int = 0, length: int = 0) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, first, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _read(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def mapped(folder: Path) -> list[Mapped]:
    """The files of a folder that are in this process's memory, each from its beginning."""
    pattern = re.compile(r"^(\w+)-(\w+) \S+ 0+ \S+ \d+\s+(/.+\.npy)$", re.MULTILINE)
    found: dict[str, list[tuple[int, int]]] = {}
    for start, end, path in pattern.findall(Path("/proc/self/maps").read_text(encoding="utf-8")):
        if Path(path).is_relative_to(folder):
            found.setdefault(path, []).append((int(start, 16), int(end, 16)))
    return [Mapped(tuple(start for start, _ in places), places[0][1] - places[0][0], path)
            for path, places in found.items()]  # fmt: skip


class Room:
    """The part of an index that may be in memory."""

    def __init__(self, folder: Path, limit: float, seed: int) -> None:
        self.folder, self.limit, self.most = folder, limit, 0
        self.random = np.random.default_rng(seed)

    def keep(self) -> None:
        """Give back pages at random while there are more; the parts of a file go together."""
        files = mapped(self.folder)
        present = [one.present() for one in files]
        held = sum(int(pages.sum()) for pages in present) * mmap.PAGESIZE
        self.most = max(self.most, held)
        parts = [(number, first) for number, one in enumerate(files) for first in range(0, one.length, CHUNK)]
        step = CHUNK // mmap.PAGESIZE
        for pick in self.random.permutation(len(parts)) if held > self.limit else ():
            number, first = parts[pick]
            here = int(present[number][first // mmap.PAGESIZE :][:step].sum())
            if here:
                files[number].drop(first, CHUNK)
                held -= here * mmap.PAGESIZE
            if held <= 0.9 * self.limit:
                return


@dataclass(frozen=True)
class Found:
    """The measurements under one limit, per query."""

    limit: float | None
    """GiB of the index's files that may be in memory; all if None."""
    advice: str
    present: int
    """The most bytes of the index's files that were in memory."""
    held: int
    """Bytes that the process held beside them."""
    read: float
    """Bytes read from disk."""
    faults: float
    """Reads that it had to wait for."""
    p50: float
    p95: float
    """Milliseconds."""
    recall: float


def ask(folder: Path, queries: Any, true: Any, plan: Plan | None, room: Room, advice: str) -> dict[str, Any]:
    """Search one query at a time; the first half only fills the memory."""
    for file in folder.rglob("*.npy"):
        _forget(file)
        if np.isinf(room.limit):
            _read(file)
    index, times, found, before = Index.open(folder), [], [], (0, 0)
    warm = len(queries) - len(true)
    for number, query in enumerate(queries):
        if number == 1 and ADVICE[advice] is not None:   # all that is needed is mapped
            for one in mapped(folder):
                if any(name in one.path for name in PICKED):
                    one.advise(ADVICE[advice] or 0)
        if number % EVERY == 0:
            room.keep()
        if number == warm:
            before = disk()
        begin = time.perf_counter()
        hits = index.search(query, K, plan)
        times.append(time.perf_counter() - begin)
        found.append(hits.ids[0])
    read, faults = ((now - then) / len(true) for now, then in zip(disk(), before, strict=True))
    room.keep()
    hit = (np.array(found[warm:])[:, :, None] == true[:, None]).any(1).mean()
    held = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    p50, p95 = 1e3 * np.percentile(times[warm:], (50, 95))
    return asdict(Found(
        None if np.isinf(room.limit) else room.limit / 2**30, advice, room.most, 1024 * int(held[1]) if held else 0,
        read, faults, float(p50), float(p95), float(hit),
    ))  # fmt: skip


def disk() -> tuple[int, int]:
    """Bytes that this process had read from disk, and how often it waited for some."""
    told = re.search(r"read_bytes: (\d+)", Path("/proc/self/io").read_text())
    return int(told[1]) if told else 0, resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def plans(dim: int, tiles: int) -> dict[str, Plan]:
    """A plan through partitions, in 8 bits until ten are left, and the paper's two stages."""
    stages = Stage(tiles, 100, "int8"), Stage(dim // 4, 40, "int8"), Stage(dim, 15, "int8"), Stage(dim, K)
    return {"8 bits between": Plan(stages, probe=0.01),
            "two stages": Plan((Stage(tiles, 200, "int8"), Stage(dim, K)), probe=0.01)}  # fmt: skip


def main() -> None:
    """Build the index if there is none, search with every limit, print, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, metavar="EMB", required=True, help="an embeddings folder")
    parser.add_argument("--queries", type=Path, metavar="EMB", required=True)
    parser.add_argument("--index", type=Path, required=True, help="its folder; made where there is none")
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0], help="GiB; beside them, no limit")
    parser.add_argument("--advice", choices=list(ADVICE), nargs="+", default=["default"],
                        help="how the system is advised that rows are picked one by one; default: as matryo does")
    parser.add_argument("--asked", type=int, default=1000, help="queries, as many of them not counted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/retrieval.jsonl"))
    args = parser.parse_args()
    database, asked = EmbeddingSet.open(args.database), EmbeddingSet.open(args.queries)
    if not args.index.exists():
        with Index.create(args.index, database.nesting, dtype=str(database.vectors.dtype)) as index:
            index.add(database.vectors)
            index.build(partition=True)
    chosen = np.random.default_rng(args.seed).permutation(asked.count)[: 2 * args.asked]
    queries = np.asarray(asked.vectors[chosen], np.float32)
    true = search(database.vectors, queries[args.asked :], (database.dim,), K, progress=True)[database.dim]
    with Index.open(args.index) as index:
        tiles = index.wanted()["partition"]["dim"]
    folder, bytes_ = args.index.resolve(), size(args.index)
    context = multiprocessing.get_context("spawn")
    title = f"{database.manifest.title}, {database.count:,} × {database.dim}"
    for name, plan in plans(database.dim, tiles).items():
        rows = []
        for limit in (*args.limits, np.inf):
            for advice in args.advice:
                room = Room(folder, limit * 2**30, args.seed)
                with context.Pool(1) as pool:
                    rows.append(pool.apply(ask, (folder, queries, true, plan, room, advice)))
                print(name, rows[-1], flush=True)
        figures = {"count": database.count, "dim": database.dim, "asked": args.asked, "index_bytes": bytes_,
                   "name": name, "plan": plan.to_dict(), "limits": rows}  # fmt: skip
        append_rows(args.out, [stamp("retrieval-memory", title, figures, seed=args.seed)])


if __name__ == "__main__":
    main()
