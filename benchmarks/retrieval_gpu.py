"""Adaptive retrieval on a GPU: milliseconds a query of exact search at full dim, and of plans that read less.

All contenders search the same vectors, in turns; a ratio is that of the medians. The vectors are random with a
spectrum that decays, so recall says only that the plans find what they should.

    python benchmarks/retrieval_gpu.py --count 500000 --dim 2048 --out docs/results/retrieval-gpu.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Nesting
from matryo.results import append_rows, stamp
from matryo.retrieve import Blocks, Plan, execute
from matryo.retrieve.gpu import torch_engine


def main() -> None:
    """Measure every plan with one query and with many, print the table, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500_000, help="vectors in the database")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1024, help="queries at a time, beside one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="append the row here")
    args = parser.parse_args()
    import torch

    nesting = Nesting.halving(args.dim)
    database, queries = _vectors(args.count, args.dim, 1), _vectors(args.batch, args.dim, 2)
    blocks, engine = Blocks.of(database, nesting, dtype="float16"), torch_engine(args.device)
    short = max(16, args.dim // 32)
    plans = {
        "exact": Plan.single(args.dim),
        f"adaptive {short}, keep 200": Plan.adaptive(short, args.dim, keep=200),
        f"adaptive {short}, keep 2000": Plan.adaptive(short, args.dim, keep=2000),
        f"funnel {short}, keep 2000": Plan.funnel(short, args.dim, keep=2000),
    }
    true = execute(blocks, queries, plans["exact"], 10, engine=engine)[0]
    figures: dict[str, Any] = {"count": args.count, "dim": args.dim, "batch": args.batch, "plans": {}}
    for size in (1, args.batch):
        times: dict[str, list[float]] = {name: [] for name in plans}
        for turn in range(args.rounds + 2):
            for name, plan in plans.items():
                some = queries[:size] if size > 1 else queries[turn : turn + 1]
                start = time.perf_counter()
                execute(blocks, some, plan, 10, engine=engine)
                if turn >= 2:
                    times[name].append(time.perf_counter() - start)
        for name, plan in plans.items():
            found = execute(blocks, queries, plan, 10, engine=engine)[0]
            recall = float(np.mean([np.isin(a, b).mean() for a, b in zip(true, found, strict=True)]))
            entry = figures["plans"].setdefault(name, {"recall": recall, "mflops": plan.mflops(args.count)})
            entry[f"ms_{size}"] = 1000 * statistics.median(times[name]) / size
            ratio = statistics.median(times["exact"]) / statistics.median(times[name])
            entry[f"faster_{size}"] = ratio
            told = f"{entry[f'ms_{size}']:9.4f} ms a query  ×{ratio:6.1f}  recall {recall:.4f}"
            print(f"{name:28} {size:5} queries  {told}", flush=True)
    if args.out:
        hardware = f"1 × {torch.cuda.get_device_name()}" if args.device.startswith("cuda") else ""
        row = stamp("retrieval-gpu", f"{args.count} × {args.dim}", figures, hardware=hardware, seed=1)
        append_rows(args.out, [row])


def _vectors(count: int, dim: int, seed: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    random, decay = np.random.default_rng(seed), 1 / np.sqrt(1 + np.arange(dim, dtype=np.float32) / 16)
    out = np.empty((count, dim), np.float16)
    for start in range(0, count, 65_536):
        some = random.standard_normal((min(65_536, count - start), dim), np.float32)
        out[start : start + len(some)] = some * decay
    return out


if __name__ == "__main__":
    main()
