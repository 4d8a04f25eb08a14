"""Adaptive retrieval on a GPU: milliseconds per query of plans, of exact search, and of hand-written torch.

All contenders search the same vectors, stored in float16, in turns, from queries in memory to hits in memory, for one
query at a time and for many; a ratio is that of the medians. By hand it is a product with all vectors, normalised
before, and topk, in float16 and in float32. Hits are compared with the nearest by scores in float64: exact search must
find exactly these. The vectors are random with a spectrum that decays, so the recall of a plan says only that it finds
what it should.

    python benchmarks/retrieval_gpu.py --out docs/results/retrieval-gpu.jsonl
    python benchmarks/retrieval_gpu.py --profile      # where the time goes
    python benchmarks/retrieval_gpu.py --quick        # a small one, on the processor
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
from matryo.retrieve.engines.torch.engine import torch_engine

if TYPE_CHECKING:
    import torch

    Array = np.ndarray[Any, np.dtype[Any]]
    Search = Callable[[Array], Array]

K = 10
WARM = 5   # turns that do not count: a search is recorded in its third
TILE = 32_768   # vectors compared with in float64 at a time
EQUAL = 2.0**-22   # cosines in float32 closer than this may change places


def main() -> None:
    """Measure every contender with one query and with many, print the table, store the row."""
    args = _arguments()
    import torch

    database = _vectors(args.count, args.dim, 1, args.device, torch.float16)
    queries = _vectors(max(args.sizes), args.dim, 2, args.device, torch.float32)
    stored, asked = database.cpu().numpy(), queries.cpu().numpy()
    plans = _plans(args.dim)
    searches = _ours(stored, plans, args.device) | _by_hand(database, args.device)
    if args.profile:
        for name in searches:
            for size in args.sizes:
                _profile(name, searches[name], asked[:size])
        return
    true = _true(database, queries)
    entries = {}
    for name, search in searches.items():
        found = _compared(database, queries, search(asked), *true)
        entries[name] = {**found, "mflops": plans.get(name, plans["exact"]).mflops(args.count)}
        if name == "exact" and found["short"] > EQUAL:
            raise SystemExit(f"exact search missed a hit: {found}")
    for size in args.sizes:
        _measure(entries, searches, asked, size, args.rounds)
    if args.out:
        about = {"count": args.count, "dim": args.dim, "batch": max(args.sizes), "sizes": args.sizes}
        hardware = f"1 × {torch.cuda.get_device_name()}" if args.device.startswith("cuda") else ""
        figures, subject = {**about, "plans": entries}, f"{args.count} × {args.dim}"
        append_rows(args.out, [stamp("retrieval-gpu", subject, figures, hardware=hardware, seed=1)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300_000, help="vectors in the database")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 32, 1024], help="queries at a time")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few vectors on the processor, to see that it runs")
    parser.add_argument("--profile", action="store_true", help="print what takes the time of each plan, and no more")
    parser.add_argument("--out", type=Path, help="append the row here")
    args = parser.parse_args()
    if args.quick:
        args.count, args.dim, args.sizes, args.rounds, args.device = 20_000, 256, [1, 32, 64], 3, "cpu"
    return args


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


def _by_hand(database: torch.Tensor, device: str) -> dict[str, Search]:
    import torch

    # Normalised in float32, and only then rounded.
    wide = torch.nn.functional.normalize(database.float(), dim=1)
    half = wide.half()

    def search(matrix: torch.Tensor) -> Search:
        def found(queries: Array) -> Array:
            asked = torch.from_numpy(queries).to(device).to(matrix.dtype)
            scores = (matrix @ asked[0])[None] if len(asked) == 1 else asked @ matrix.T
            rows: Array = scores.topk(K, dim=1).indices.cpu().numpy()
            return rows

        return found

    return {"torch float16": search(half), "torch float32": search(wide)}


def _measure(
    entries: dict[str, dict[str, float]], searches: dict[str, Search], queries: Array, size: int, rounds: int
) -> None:
    times = _times(searches, queries, size, rounds)
    for name, entry in entries.items():
        entry[f"ms_{size}"] = 1000 * times[name] / size
        entry[f"faster_{size}"] = times["exact"] / times[name]
        told = f"{entry[f'ms_{size}']:9.4f} ms per query  ×{entry[f'faster_{size}']:6.2f}"
        speed = f"{2e-6 * size * entry['mflops'] / times[name]:7.2f} TFLOP/s"
        hits = f"recall {entry['recall']:.4f}  same {entry['same']:.4f}  short {entry['short']:.1e}"
        print(f"{name:24} {size:5} queries  {told}  {speed}  {hits}", flush=True)


def _times(searches: dict[str, Search], queries: Array, size: int, rounds: int) -> dict[str, float]:
    """The median seconds of each, in turns; few queries are others in every turn."""
    times: dict[str, list[float]] = {name: [] for name in searches}
    for turn in range(rounds + WARM):
        first = turn * size % (len(queries) - size + 1)
        for name, search in searches.items():
            start = time.perf_counter()
            search(queries[first : first + size])
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[WARM:]) for name, taken in times.items()}


def _true(database: torch.Tensor, queries: torch.Tensor) -> tuple[Array, Array]:
    """The nearest by cosines in float64, smaller rows first where they are equal: rows and cosines."""
    import torch

    unit = torch.nn.functional.normalize(queries.double(), dim=1)
    best = torch.full((len(queries), 0), 0.0, dtype=torch.float64, device=queries.device)
    rows = torch.zeros_like(best, dtype=torch.int64)
    for start in range(0, len(database), TILE):
        some = torch.nn.functional.normalize(database[start : start + TILE].double(), dim=1)
        both = torch.cat([best, unit @ some.T], 1)
        numbers = torch.arange(start, start + len(some), device=queries.device).expand(len(queries), -1)
        every = torch.cat([rows, numbers], 1)
        best, at = both.topk(min(2 * K, both.shape[1]), dim=1)
        rows = every.gather(1, at)
    order = rows.argsort(dim=1)
    order = order.gather(1, (-best).gather(1, order).argsort(dim=1, stable=True))[:, :K]
    return rows.gather(1, order).cpu().numpy(), best.gather(1, order).cpu().numpy()


def _compared(
    database: torch.Tensor, queries: torch.Tensor, found: Array, rows: Array, cosines: Array
) -> dict[str, float]:
    """Recall, the share of queries with the same hits in the same order, and how much a hit's cosine is short."""
    import torch

    here = torch.from_numpy(found).to(database.device)
    unit = torch.nn.functional.normalize(queries.double(), dim=1)
    read = torch.nn.functional.normalize(database[here.flatten()].double(), dim=1).unflatten(0, here.shape)
    got = torch.einsum("nkd,nd->nk", read, unit).cpu().numpy()
    recall = np.mean([np.isin(a, b).mean() for a, b in zip(rows, found, strict=True)])
    same = (rows == found).all(1).mean()
    return {"recall": float(recall), "same": float(same), "short": float(np.max(cosines - got, initial=0))}


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


def _vectors(count: int, dim: int, seed: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """Made on the device, where it takes no time."""
    import torch

    random = torch.Generator(device).manual_seed(seed)
    decay = (1 + torch.arange(dim, device=device) / 16).rsqrt()
    out = torch.empty(count, dim, dtype=dtype, device=device)
    for some in out.split(65_536):
        some.copy_(torch.randn(some.shape, generator=random, device=device) * decay)
    return out


if __name__ == "__main__":
    main()
