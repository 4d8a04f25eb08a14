"""Planned search on databases, beside each database's own index of all dims, at equal recall.

Each step writes into ``--work`` or appends a row:

    python benchmarks/engines.py sets --work W [--glosses FOLDER]
    python benchmarks/engines.py build --work W --set generated-512 --engine postgresql
    python benchmarks/engines.py plan --work W --set generated-512 --engine postgresql
    python benchmarks/engines.py promise --work W --set generated-512 --engine postgresql --count 10000

``build`` loads the rows and makes the index of all dims and the suggested ones of first dims, timing each. ``plan``
chooses, on queries that are not measured, the fastest setting of a grid that reaches a recall: on the index of all
dims, and on that of first dims. Then it measures both: recall@10 against exact search, time per query with one client,
and with eight. ``search`` measures them again.
``promise`` repeats the planning with draws of queries, and counts how often the true recall reached the target.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.engine_servers import baseline, serving, version
from support.engine_sets import SPREADS, generate, take

from matryo import Plan, engines
from matryo.engines.scan import scan
from matryo.results import append_rows, stamp

K, CLIENTS = 10, 8
RECALLS, SPARE = (0.95, 0.99), 0.2
EFS, KEEPS = (20, 40, 70, 100, 150, 220, 320), (30, 50, 80, 120, 180, 270, 400)
SHARES = (0.5, 0.01, 0.001)   # of rows that a filter matches
Array = np.ndarray[Any, np.dtype[Any]]


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["sets", "build", "plan", "search", "promise"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--set", default="generated-512")
    parser.add_argument("--engine", default="postgresql")
    parser.add_argument("--glosses", type=Path, help="sets: a folder of benchmarks/unseen.py")
    parser.add_argument("--dims", type=int, nargs="*", help="the first dims to index, or to use [the suggested ones]")
    parser.add_argument("--learn", type=int, default=300, help="plan: queries that choose the settings")
    parser.add_argument("--count", type=int, help="rows, for a small trial [all]")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=8, help="promise: begin no draw after this time")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/engines.jsonl"))
    args = parser.parse_args()
    {"sets": sets, "build": build, "plan": plan, "search": search, "promise": promise}[args.step](args)


def sets(args: argparse.Namespace) -> None:
    """Write the sets."""
    for dim in SPREADS:
        generate(dim, args.work / f"generated-{dim}", Path("docs/results/generator.jsonl"))
    if args.glosses is not None:
        take(args.glosses, args.work / "glosses-256")


def arrays(args: argparse.Namespace) -> dict[str, Array]:
    """The arrays of the set."""
    found = {name: np.load(args.work / args.set / f"{name}.npy") for name in ("database", "learn", "asked")}
    return found | {"database": found["database"][: args.count]}


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[engines.Engine]:
    """The table of this set."""
    with serving(args.engine, args.work) as url, engines.open(url, table=table(args), metric="cosine") as engine:
        yield engine


def table(args: argparse.Namespace) -> str:
    """The name of the table."""
    return f"{args.set}-{args.count or 'all'}".replace("-", "_")


def shares(count: int) -> Array:
    """The field that filters are on."""
    return np.random.default_rng(7).random(count)


def store(args: argparse.Namespace, step: str, figures: dict[str, Any]) -> None:
    """Print and append a row."""
    about = json.loads((args.work / args.set / "about.json").read_text(encoding="utf-8"))
    subject = f"{args.engine}, {args.set}"
    append_rows(args.rows, [stamp(f"engines-{step}", subject, {"set": about, **figures}, seed=0)])
    print(json.dumps(figures, indent=1))


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────


def build(args: argparse.Namespace) -> None:
    """Load, and make the indexes."""
    vectors = arrays(args)["database"]
    with opened(args) as engine:
        start = time.perf_counter()
        engine.load(vectors, payload=[{"share": share} for share in shares(len(vectors)).tolist()])
        loaded = time.perf_counter() - start
        full, made = engine.nesting.dim, []
        if args.dims is None:
            plans = engine.suggest(0.99, K, arrays(args)["learn"][:200])
            args.dims = [plan.stages[0].dim for plan in plans if plan.stages[0].dim < full][:2]
        for dim in (*args.dims, full):
            work = engine.work(dim)
            start = time.perf_counter()
            if dim < full or not baseline(engine):
                engine.prepare(dim)
            seconds = time.perf_counter() - start
            size = next((index.bytes for index in engine.prepared() if index.dim == dim), 0)
            made.append({"dim": dim, "bytes": size, "seconds": seconds,
                         "estimated": {"bytes": work.bytes, "seconds": work.seconds}})
            print(made[-1], flush=True)
        store(args, "build", {"engine": version(engine), "rows": len(vectors), "dim": full, "load_seconds": loaded,
                              "indexes": made})


def plan(args: argparse.Namespace) -> None:
    """Choose plans on the index of all dims, and on that of first dims, then measure them."""
    some, found = arrays(args), {}
    learn, vectors = some["learn"][: args.learn], some["database"]
    true = scan([(np.arange(len(vectors)), vectors)], learn, K, "cosine", [vectors.shape[1]])[vectors.shape[1]].ids
    with opened(args) as engine:
        full = engine.nesting.dim
        there = {index.dim for index in engine.prepared() if index.dim < full}
        short = args.dims or sorted(there)
        for name, plans in (("full", settings(engine, full)),
                            ("planned", [plan for dim in short for plan in settings(engine, dim)])):
            tried = [(plan, measured(engine, plan, learn, true, warm=10)) for plan in plans]
            for recall in RECALLS:
                # A part of the misses that are allowed is left to chance: other queries are measured.
                good = [pair for pair in tried if pair[1]["recall"] >= recall + SPARE * (1 - recall)] or tried[-1:]
                chosen, figures = min(good, key=lambda pair: pair[1]["p50_ms"])
                found[f"{name} {recall:g}"] = chosen.to_dict()
                print(name, recall, chosen.to_dict(), figures, flush=True)
    path = args.work / f"plans-{args.engine}-{table(args)}.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    search(args)


def settings(engine: engines.Engine, dim: int) -> list[Plan]:
    """Plans whose first stage is at ``dim``, from the cheapest to the safest."""
    full = engine.nesting.dim
    if dim == full:
        return [Plan.single(full, k=K, ef=ef) for ef in EFS] if engine.needs_index else [Plan.single(full, k=K)]
    if not engine.needs_index:
        return [Plan.adaptive(dim, full, keep=keep, k=K) for keep in KEEPS]
    return [Plan.adaptive(dim, full, keep=keep, k=K, ef=round(keep * effort)) for keep in KEEPS for effort in (1, 1.6)]


def search(args: argparse.Namespace) -> None:
    """Measure the chosen plans."""
    chosen = json.loads((args.work / f"plans-{args.engine}-{table(args)}.json").read_text(encoding="utf-8"))
    some = arrays(args)
    vectors, asked = some["database"], some["asked"][:500]
    true = scan([(np.arange(len(vectors)), vectors)], asked, K, "cosine", [vectors.shape[1]])[vectors.shape[1]].ids
    figures: dict[str, Any] = {"rows": len(vectors), "dim": vectors.shape[1], "plans": {}, "filtered": {}}
    with opened(args) as engine:
        figures["engine"] = version(engine)
        figures["exact_ms"] = float(np.median([_timed(engine, query, None, None)[0] for query in asked[:10]]))
        for name, fields in chosen.items():
            same = [other for other, known in chosen.items() if known == fields and other in figures["plans"]]
            if same:
                figures["plans"][name] = figures["plans"][same[0]]
                continue
            found = measured(engine, Plan.from_dict(fields), asked, true)
            found |= {"plan": {key: value for key, value in fields.items() if key != "promise"}}
            found["qps_8"] = _together(engine, Plan.from_dict(fields), asked)
            figures["plans"][name] = found
            print(name, found, flush=True)
        for share in SHARES:
            figures["filtered"][f"{share:g}"] = filtered(engine, chosen, vectors, asked[:100], share)
    store(args, "search", figures)


def measured(
    engine: engines.Engine, plan: Plan, asked: Array, true: Array, where: Any = None, warm: int = 100
) -> dict[str, Any]:
    """Recall and time per query, one at a time; the first ``warm`` queries also warm up."""
    for query in asked[:warm]:
        _timed(engine, query, plan, where)
    times, hits = zip(*(_timed(engine, query, plan, where) for query in asked), strict=True)
    there = true >= 0
    recall = (np.stack(hits)[:, :, None] == true[:, None]).any(axis=1)[there].mean()
    p50, p99 = np.percentile(times, [50, 99])
    return {"recall": float(recall), "p50_ms": float(p50), "p99_ms": float(p99), "qps": float(1000 / np.mean(times))}


def filtered(
    engine: engines.Engine, chosen: dict[str, Any], vectors: Array, asked: Array, share: float
) -> dict[str, Any]:
    """The plans for recall 0.95 under a filter that ``share`` of the rows match."""
    rows = np.flatnonzero(shares(len(vectors)) < share)
    true = scan([(rows, vectors[rows])], asked, K, "cosine", [vectors.shape[1]])[vectors.shape[1]].ids
    return {name.split()[0]: measured(engine, Plan.from_dict(fields), asked, true, {"share": {"$lt": share}})
            for name, fields in chosen.items() if name.endswith("0.95")}


def _timed(engine: engines.Engine, query: Array, plan: Plan | None, where: Any) -> tuple[float, Array]:
    start = time.perf_counter()
    hits = engine.search(query, K, plan, where)
    return 1000 * (time.perf_counter() - start), hits.ids[0]


def _together(engine: engines.Engine, plan: Plan, asked: Array) -> float:
    """Queries per second of eight clients, each with a connection of its own."""
    clients = [engine.another() for _ in range(CLIENTS)]
    ready = threading.Barrier(CLIENTS + 1)

    def ask(client: engines.Engine, part: Array) -> None:
        client.search(part[0], K, plan)
        ready.wait()
        for query in part:
            client.search(query, K, plan)
        ready.wait()

    threads = [threading.Thread(target=ask, args=(client, part))
               for client, part in zip(clients, np.array_split(asked, CLIENTS), strict=True)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    ready.wait()
    taken = time.perf_counter() - start
    for thread, client in zip(threads, clients, strict=True):
        thread.join()
        client.close()
    return len(asked) / taken


def promise(args: argparse.Namespace) -> None:
    """How often a promised recall of 0.95 is true, over draws of queries."""
    some, recall, seen = arrays(args), 0.95, 160
    vectors, pool = some["database"], np.concatenate([some["learn"], some["asked"]])
    true = scan([(np.arange(len(vectors)), vectors)], pool, K, "cosine", [vectors.shape[1]])[vectors.shape[1]].ids
    recalls: list[float] = []
    known: dict[Plan, Any] = {}
    end = time.monotonic() + args.minutes * 60
    with opened(args) as engine:
        for draw in range(args.draws):
            if time.monotonic() > end:
                break
            rng = np.random.default_rng([0, draw])
            drawn = rng.permutation(len(pool))
            choice = engine.plan(recall, K, pool[drawn[:seen]], seed=draw, progress=False)
            assert choice.plan is not None
            if choice.plan not in known:
                judged = drawn[seen : seen + 1000]
                hits = engine.search(pool[judged], K, choice.plan).ids
                known[choice.plan] = (hits[:, :, None] == true[judged][:, None]).any(axis=1).mean()
            recalls.append(float(known[choice.plan]))
            print(draw, recalls[-1], flush=True)
    store(args, "promise", {"rows": len(vectors), "target": recall, "draws": len(recalls), "seen": seen, "judged": 1000,
                            "kept": sum(value >= recall for value in recalls), "least": min(recalls),
                            "recall": float(np.mean(recalls)), "plans": len(known)})


if __name__ == "__main__":
    main()
