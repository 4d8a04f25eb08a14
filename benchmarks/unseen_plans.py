"""Plans with defaults only, on kinds of vectors that no default was tuned on: their speed, and their promises.

``grid`` compares the plan of ``index.plan(recall=…, queries=tuning)`` with the fastest plan that an exhaustive grid
finds by hand on the same index and the same tuning queries. Other queries measure, one at a time on one thread, and the
plans take turns. ``promise`` plans for many draws of the queries without a filter, and counts how often the others have
the promised recall: among all rows, and under filters. Both read the sets of ``unseen.py make``. ``table`` prints
stored rows.

    python benchmarks/unseen_plans.py grid --data unseen --out docs/results/unseen-plans.jsonl
    python benchmarks/unseen_plans.py promise --data unseen --draws 100 --out docs/results/unseen-plans.jsonl
    python benchmarks/unseen_plans.py table docs/results/unseen-plans.jsonl
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from support.unseen_grid import Grid, compare, ratio
from support.unseen_promise import SHARES, Judge, numbered, promises
from support.unseen_sets import SETS
from support.unseen_task import Task

from matryo import Index
from matryo.results import append_rows, read_rows, stamp

KINDS = "unseen-plans-grid", "unseen-plans-promise"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
Figures = dict[str, Any]


def run(args: argparse.Namespace) -> None:
    """Measure and store, one set at a time, each in a process of its own."""
    for name in THREADS:
        os.environ[name] = "1"   # for the processes, which start afresh
    for name in args.sets:
        if not (args.data / name / "about.json").exists():
            print(f"{name}: not made, skipped", flush=True)
            continue
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found: list[Figures] = process.submit(args.measure, Task(args.data / name), args).result()
        if args.out:
            subject = f"{name}, {found[0]['count']:,} × {found[0]['dim']}"
            append_rows(args.out, [stamp(args.kind, subject, figures, seed=args.seed) for figures in found])


def grid(task: Task, args: argparse.Namespace) -> list[Figures]:
    """The chosen plan beside plans by hand, at every target."""
    found = []
    with tempfile.TemporaryDirectory() as work:
        index = Index.create(Path(work) / "index", task.about["nesting"], metric=task.metric)
        index.add(np.array(task.raw))
        index.build()
        plans = Grid(task, index, args.threads)
        for target in args.targets:
            figures = compare(task, index, target, plans, args.rounds, args.seconds)
            found.append(about(task) | {"queries": len(task.queries("test"))} | figures)
            print(grid_table(found[-1:]), flush=True)
    return found


def promise(task: Task, args: argparse.Namespace) -> list[Figures]:
    """How often promises hold for the queries outside the draw."""
    queries = np.concatenate([task.queries("tuning"), task.queries("test")])
    with tempfile.TemporaryDirectory() as work:
        vectors = np.array(task.raw)
        index, numbers = numbered(Path(work) / "index", vectors, task.about["nesting"], args.seed)
        judge = Judge(vectors, queries, numbers, args.shares)
        found = promises(
            index, judge, args.targets, confidence=args.confidence, seen=args.seen, judged=args.judged,
            draws=args.draws, seed=args.seed, threads=args.threads,
            say=lambda line: print(f"{task.name} {line}", flush=True),
        )  # fmt: skip
    rows = [about(task) | figures for figures in found]
    print(promise_table(rows), flush=True)
    return rows


def about(task: Task) -> Figures:
    """The set, for a stored row."""
    return {"set": task.name, "count": task.about["counts"]["database"], "dim": task.about["dim"],
            "nesting": task.about["nesting"]}   # fmt: skip


def grid_table(rows: list[Figures]) -> str:
    """One line per set and target: times of the chosen plan, and how many times as long as the others it takes."""
    heads = "recall", "µs", "by hand", "µs", "ratio", "as safe", "plans"
    lines = [f"{'chosen | by hand':24}" + "".join(f"{head:>9}" for head in heads)]
    for row in rows:
        times = {name: median(row[name]["cpu_microseconds"]) for name in ("chosen", "hand")}
        lines.append(
            f"{row['set']} at {row['target']:g}".ljust(24) + f"{row['chosen']['recall@10']:9.4f}{times['chosen']:9.1f}"
            + f"{row['hand']['recall@10']:9.4f}{times['hand']:9.1f}{ratio(row, 'chosen', 'hand'):9.3f}"
            + f"{ratio(row, 'chosen', 'safe'):9.3f}{row['grid_plans']:9,}"
        )  # fmt: skip
        lines += [f"    {name}: {row[name]['plan']}" for name in ("chosen", "hand", "safe")]
    return "\n".join(lines)


def promise_table(rows: list[Figures]) -> str:
    """One line per set, target and filter."""
    heads = "rows", "kept", "draws", "recall", "least"
    lines = [f"{'promise':32}" + "".join(f"{head:>10}" for head in heads)]
    for row in rows:
        lines += [
            f"{row['set']} at {row['target']:g}, {part['share']:.1%} of rows".ljust(32)
            + f"{part['rows']:10,}{part['kept']:10}{row['draws']:10}{part['recall']:10.4f}{part['least']:10.4f}"
            for part in row["filters"]
        ]
    return "\n".join(lines)


def show(args: argparse.Namespace) -> None:
    """Print stored rows, of each set and target the latest."""
    tables: list[Callable[[list[Figures]], str]] = [grid_table, promise_table]
    for kind, table in zip(KINDS, tables, strict=True):
        rows = [row for path in args.rows for row in read_rows(path) if row.kind == kind]
        newest = {(row.figures["set"], row.figures["target"]): row.figures for row in rows}
        if newest:
            print(table(list(newest.values())))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--data", type=Path, required=True, metavar="DIR", help="the sets of unseen.py make")
    both.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="NAME")
    both.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of what is not timed")
    both.add_argument("--seed", type=int, default=0)
    both.add_argument("--out", type=Path, metavar="ROWS", help="add the rows to this file")
    first = verbs.add_parser("grid", parents=[both], help="compare with the best plan by hand")
    first.set_defaults(do=run, measure=grid, kind=KINDS[0])
    first.add_argument("--targets", type=float, nargs="+", default=[0.95, 0.99], help="recall@10")
    first.add_argument("--rounds", type=int, default=9, help="turns of every plan")
    first.add_argument("--seconds", type=float, default=1.0, help="of one turn, about")
    second = verbs.add_parser("promise", parents=[both], help="count promises that hold")
    second.set_defaults(do=run, measure=promise, kind=KINDS[1])
    second.add_argument("--targets", type=float, nargs="+", default=[0.95], help="recall@10")
    second.add_argument("--confidence", type=float, default=0.95)
    second.add_argument("--seen", type=int, default=1000, help="queries that the planner sees")
    second.add_argument("--judged", type=int, default=3000, help="queries that judge a plan, at most")
    second.add_argument("--draws", type=int, default=100)
    second.add_argument("--shares", type=float, nargs="+", default=list(SHARES), help="of rows that filters leave")
    third = verbs.add_parser("table", help="print stored rows")
    third.set_defaults(do=show)
    third.add_argument("rows", type=Path, nargs="+")
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
