"""Speed of the compiled core by instruction set, beside numpy and beside an older installation of matryo.

Each variant opens the same index in a fresh process, in turns; a ratio is the median of the ratios within a round. An
older installation builds an index of its own, because it cannot read guides of a newer format. The
vectors are random: classes with a spectrum that decays as embeddings' does. *First* is the wall time of the command
``matryo search``, from the start of the interpreter and with empty caches.

    python benchmarks/search_core.py --rows 100000 --dim 512
    python benchmarks/search_core.py --rows 100000 --dim 512 --before old/.venv/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from matryo import Index, Nesting, Plan
from matryo.results import append_rows, stamp
from matryo.retrieve import Stage

K, BATCH = 10, 1000
VARIANTS = ("", "avx2", "baseline", "numpy")   # MATRYO_ISA; the first is what the processor has


def main() -> None:
    """Build the index, run every variant in turns, print the table, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="vectors in the index")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--count", type=int, default=3, help="rounds")
    parser.add_argument("--before", type=Path, metavar="PYTHON", help="the interpreter of an older installation")
    parser.add_argument("--variants", nargs="*", default=VARIANTS, metavar="ISA", help="'' is the best one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/search-core.jsonl"))
    parser.add_argument("--worker", nargs=2, metavar=("INDEX", "QUERIES"), help=argparse.SUPPRESS)
    parser.add_argument("--build", nargs=2, metavar=("INDEX", "VECTORS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.build:
        build(*args.build)
        return
    if args.worker:
        print(json.dumps(measure(*args.worker)))
        return
    with tempfile.TemporaryDirectory() as folder:
        queries, every = Path(folder) / "queries.npy", Path(folder) / "vectors.npy"
        made = vectors(np.random.default_rng(args.seed), args.rows + BATCH, args.dim)
        np.save(queries, made[args.rows :])
        np.save(every, made[: args.rows])
        for name, builder in {"index": sys.executable, **({"before": str(args.before)} if args.before else {})}.items():
            script = str(Path(__file__).resolve())
            subprocess.run([builder, script, "--build", str(Path(folder) / name), str(every)], check=True)
        one = Path(folder) / "one.npy"
        np.save(one, made[args.rows : args.rows + 1])
        rounds: dict[str, list[dict[str, float]]] = {}
        recalls: dict[str, dict[str, float]] = {}
        for _ in range(args.count):
            for isa in (*args.variants, *(["before"] if args.before else [])):
                python = str(args.before) if isa == "before" else sys.executable
                index = Path(folder) / ("before" if isa == "before" else "index")
                name, figures, found = run(python, "" if isa == "before" else isa, index, queries, one, Path(folder))
                name = "before" if isa == "before" else name
                rounds.setdefault(name, []).append(figures)
                recalls[name] = found
    summary = {
        name: {key: median(one[key] for one in figures) for key in figures[0]} for name, figures in rounds.items()
    }
    ours = next(iter(rounds))
    ratios = {
        name: {key: median(a[key] / b[key] for a, b in zip(figures, rounds[ours], strict=True)) for key in figures[0]}
        for name, figures in rounds.items()
    }
    for name, figures in summary.items():
        print(name, {key: f"{value:.4g} ({ratios[name][key]:.2f} ×)" for key, value in figures.items()})
    subject = f"{args.rows} rows, dim {args.dim}, k {K}"
    print("recall", recalls)
    about = {"rows": args.rows, "dim": args.dim, "rounds": args.count, "microseconds": summary, "ratios": ratios,
             "recall": recalls}   # fmt: skip
    append_rows(args.out, [stamp("search-core", subject, about, seed=args.seed)])


def build(index: str, vectors: str) -> None:
    """Build an index with all guides."""
    rows = np.load(vectors, mmap_mode="r")
    with Index.create(index, Nesting.halving(rows.shape[1])) as new:
        new.add(rows)
        new.compact()
        new.build()


def vectors(rng: np.random.Generator, count: int, dim: int) -> Any:
    """Random vectors of 200 classes, whose spectrum decays."""
    centres, spectrum = rng.standard_normal((200, dim)), np.arange(1, dim + 1) ** -0.5
    made = np.empty((count, dim), np.float32)
    for start in range(0, count, 10_000):
        part = made[start : start + 10_000]
        part[:] = (centres[rng.integers(0, 200, len(part))] + 0.7 * rng.standard_normal(part.shape)) * spectrum
    return made


def run(
    python: str, isa: str, index: Path, queries: Path, one: Path, folder: Path
) -> tuple[str, dict[str, float], dict[str, float]]:
    """Measure one variant in fresh processes; return its instruction set, its times and its recalls."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    caches = tempfile.mkdtemp(dir=folder)
    environment = {**os.environ, **threads, "NUMBA_CACHE_DIR": caches, "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"MATRYO_ISA": isa} if isa else {}
    begin = time.perf_counter()
    subprocess.run([python, "-m", "matryo", "search", str(index), str(one), "--json"], env=environment, check=True,
                   stdout=subprocess.DEVNULL, cwd=folder)   # fmt: skip
    first = time.perf_counter() - begin
    program = [python, str(Path(__file__).resolve()), "--worker", str(index), str(queries)]
    done = subprocess.run(program, env=environment, check=True, stdout=subprocess.PIPE, text=True, cwd=folder)
    name, figures, recalls = json.loads(done.stdout.splitlines()[-1])
    return name, {"first": 1e6 * first, **figures}, recalls


def measure(index: str, queries: str) -> tuple[str, dict[str, float], dict[str, float]]:
    """Microseconds per query of each search, one by one and all at once, also with two threads; recall@10 of plans."""
    try:
        from matryo.compiled import isa
    except ImportError:   # an older installation
        name, tile = "before", {512: 64, 2048: 128}   # its plans begin at the dim of the tiles
    else:
        name, tile = isa(), {}
    vectors = np.load(queries)
    figures: dict[str, float] = {}
    recalls: dict[str, float] = {}
    true = np.empty((0, K))
    with Index.open(index) as opened:
        dim = opened.nesting.dim
        stages = Stage(tile.get(dim, dim), 100, "int8"), Stage(dim, 15, "int8"), Stage(dim, K)
        probes = {f"probe {str(probe)[1:]}": Plan(stages, probe=probe) for probe in (0.0025, 0.01, 0.04)}
        for search, plan in {"exact": None, **probes}.items():
            found = np.array(opened.search(vectors, K, plan).ids)   # also loads what is loaded on first use
            if plan is None:
                true = found
            else:
                recalls[search] = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, true, strict=True)]))
            alone, begin = [], time.perf_counter()
            for i in range(BATCH):
                start = time.perf_counter()
                opened.search(vectors[i : i + 1], K, plan)
                alone.append(time.perf_counter() - start)
                if time.perf_counter() - begin > 10:
                    break
            figures[search] = 1e6 * median(alone)
            for threads in (1, 2):
                times = []
                for _ in range(3):
                    start = time.perf_counter()
                    opened.search(vectors, K, plan, threads=threads)
                    times.append(time.perf_counter() - start)
                figures[f"{search}, batch{', two threads' * (threads == 2)}"] = 1e6 * min(times) / BATCH
    return name, figures, recalls


if __name__ == "__main__":
    main()
