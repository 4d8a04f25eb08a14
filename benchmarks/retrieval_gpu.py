"""Adaptive retrieval on a GPU: milliseconds a query of plans, of exact search, and of what one writes by hand in torch.

All contenders search the same vectors, in turns, from queries in memory to hits in memory; a ratio is that of the
medians. By hand it is a product with all vectors, normalised before, and topk, in float16 and in float32. The vectors
are random with a spectrum that decays, so recall says only that the plans find what they should.

    python benchmarks/retrieval_gpu.py --count 300000 --dim 2048 --out docs/results/retrieval-gpu.jsonl
    python benchmarks/retrieval_gpu.py --count 300000 --dim 2048 --profile      # where the time goes
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo import Nesting
from matryo.results import append_rows, stamp
from matryo.retrieve import Blocks, Plan, execute
from matryo.retrieve.gpu import torch_engine

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]
    Search = Callable[[Array], Array]

K = 10
WARM = 5   # turns that do not count: a search is recorded in its third


def main() -> None:
    """Measure every contender with one query and with many, print the table, store the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300_000, help="vectors in the database")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1024, help="queries at a time, beside one")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", action="store_true", help="print what takes the time of each plan, and no more")
    parser.add_argument("--out", type=Path, help="append the row here")
    args = parser.parse_args()
    import torch

    database, queries = _vectors(args.count, args.dim, 1), _vectors(args.batch, args.dim, 2)
    plans = _plans(args.dim)
    searches = _ours(database, plans, args.device) | _by_hand(database, args.device)
    if args.profile:
        for name in searches:
            for size in (1, args.batch):
                _profile(name, searches[name], queries[:size])
        return
    mflops = {name: plans.get(name, plans["exact"]).mflops(args.count) for name in searches}
    true = searches["exact"](queries)
    entries = {name: {"recall": _recall(true, search(queries)), "mflops": mflops[name]}
               for name, search in searches.items()}  # fmt: skip
    for size in (1, args.batch):
        times = _times(searches, queries, size, args.rounds)
        for name, entry in entries.items():
            entry[f"ms_{size}"] = 1000 * times[name] / size
            entry[f"faster_{size}"] = times["exact"] / times[name]
            told = f"{entry[f'ms_{size}']:9.4f} ms a query  ×{entry[f'faster_{size}']:6.2f}"
            print(f"{name:28} {size:5} queries  {told}  recall {entry['recall']:.4f}", flush=True)
    if args.out:
        figures = {"count": args.count, "dim": args.dim, "batch": args.batch, "plans": entries}
        hardware = f"1 × {torch.cuda.get_device_name()}" if args.device.startswith("cuda") else ""
        row = stamp("retrieval-gpu", f"{args.count} × {args.dim}", figures, hardware=hardware, seed=1)
        append_rows(args.out, [row])


def _plans(dim: int) -> dict[str, Plan]:
    short = max(16, dim // 32)
    return {
        "exact": Plan.single(dim),
        f"adaptive {short}, keep 200": Plan.adaptive(short, dim, keep=200),
        f"adaptive {short}, keep 2000": Plan.adaptive(short, dim, keep=2000),
        f"funnel {short}, keep 2000": Plan.funnel(short, dim, keep=2000),
    }


def _ours(database: Array, plans: dict[str, Plan], device: str) -> dict[str, Search]:
    blocks = Blocks.of(database, Nesting.halving(database.shape[1]), dtype="float16")
    engine = torch_engine(device)

    def search(plan: Plan) -> Search:
        return lambda queries: execute(blocks, queries, plan, K, engine=engine)[0]

    return {name: search(plan) for name, plan in plans.items()}


def _by_hand(database: Array, device: str) -> dict[str, Search]:
    import torch

    # Normalised in float32, and only then rounded.
    wide = torch.nn.functional.normalize(torch.from_numpy(database).to(device).float(), dim=1)
    half = wide.half()

    def search(matrix: torch.Tensor) -> Search:
        def found(queries: Array) -> Array:
            asked = torch.from_numpy(queries).to(device, matrix.dtype)
            scores = (matrix @ asked[0])[None] if len(asked) == 1 else asked @ matrix.T
            rows: Array = scores.topk(K, dim=1).indices.cpu().numpy()
            return rows

        return found

    return {"torch float16": search(half), "torch float32": search(wide)}


def _times(searches: dict[str, Search], queries: Array, size: int, rounds: int) -> dict[str, float]:
    """The median seconds of each, in turns; one query is another one in every turn."""
    times: dict[str, list[float]] = {name: [] for name in searches}
    for turn in range(rounds + WARM):
        first = turn % len(queries) if size == 1 else 0
        for name, search in searches.items():
            start = time.perf_counter()
            search(queries[first : first + size])
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[WARM:]) for name, taken in times.items()}


def _recall(true: Array, found: Array) -> float:
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(true, found, strict=True)]))


def _profile(name: str, search: Search, queries: Array, times: int = 20) -> None:
    from torch.profiler import profile

    for _ in range(WARM):
        search(queries)
    start = time.perf_counter()
    for _ in range(times):
        search(queries)
    taken = (time.perf_counter() - start) / times
    with profile() as seen:
        for _ in range(times):
            search(queries)
    # Not the calls that launched them, which carry the same time again.
    steps = [event for event in seen.key_averages() if event.device_type.name == "CUDA"]
    busy = sum(event.self_device_time_total for event in steps) / times
    number = sum(event.count for event in steps) / times
    print(f"\n{name}, {len(queries)} queries: {1e6 * taken:.0f} µs, of which the device is busy for {busy:.0f} µs in "
          f"{number:.0f} steps")  # fmt: skip
    for event in sorted(steps, key=lambda event: -event.self_device_time_total)[:12]:
        each = event.self_device_time_total / times
        print(f"  {each:9.1f} µs  {event.count / times:5.1f} ×  {event.key[:110]}", flush=True)


def _vectors(count: int, dim: int, seed: int) -> Array:
    random, decay = np.random.default_rng(seed), 1 / np.sqrt(1 + np.arange(dim, dtype=np.float32) / 16)
    out = np.empty((count, dim), np.float16)
    for start in range(0, count, 65_536):
        some = random.standard_normal((min(65_536, count - start), dim), np.float32)
        out[start : start + len(some)] = some * decay
    return out


if __name__ == "__main__":
    main()
