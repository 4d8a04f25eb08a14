"""Search with defaults only, on kinds of vectors that no default was tuned on, beside tuned peers.

``make`` writes the sets. ``run`` builds every index in a process of its own, one thread each. matryo gets the recall
only: ``Index.create``, ``add``, ``build``, ``plan(recall=…, queries=tuning)``. A peer gets the fastest settings whose
recall@10 of the same tuning queries reaches the target. Other queries measure: recall@10, and queries per second by CPU
time and by wall time, one query at a time. The processes answer in turns, so that all meet the same disturbances;
figures are medians over ``--rounds`` turns. ``table`` prints stored rows, of several files if need be.

    python benchmarks/unseen.py make --data unseen --wordllama …/site-packages/wordllama --wordnet /usr/share/wordnet
    python benchmarks/unseen.py run --data unseen --cache unseen/cache --out docs/results/unseen.jsonl
    python benchmarks/unseen.py table docs/results/unseen.jsonl
"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from support.unseen_peers import variants
from support.unseen_sets import SETS, Sources
from support.unseen_task import Task
from support.unseen_worker import OURS, BuildError, Job, Worker, clean

from matryo.results import append_rows, read_rows, stamp

TARGETS = (0.95, 0.99)
BY = {"cosine": "", "ip": " by inner product", "l2": " by distance"}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def make(args: argparse.Namespace) -> None:
    """Write the sets."""
    sources = Sources(**{field.name: getattr(args, field.name) for field in fields(Sources)})
    for name in args.sets:
        made = SETS[name](sources)
        made.save(args.data / name)
        print(f"{name}: {made.database.shape}, {len(made.tuning)} + {len(made.test)} queries", flush=True)


def run(args: argparse.Namespace) -> None:
    """Measure, print and store, one set at a time."""
    for name in THREADS:
        os.environ[name] = "1"   # for the processes, which start afresh
    clean(args.cache)
    for name in args.sets:
        if not (args.data / name / "about.json").exists():
            print(f"{name}: not made, skipped", flush=True)
            continue
        rows = measure(Task(args.data / name), args)
        print(table(rows), flush=True)
        if args.out:
            subject = f"{name}, {rows[0]['count']:,} × {rows[0]['dim']}{BY[rows[0]['metric']]}" if rows else name
            append_rows(args.out, [stamp("unseen", subject, figures, seed=0) for figures in rows])


def measure(task: Task, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of every engine at every target."""
    most = [len(task.kth(part)) for part in ("tuning", "test")][1]   # also computes what the processes share
    titles = [*OURS, *(variant.title for variant in variants(task.database))]
    wanted = [title for title in titles if any(chosen(title, name) for name in args.engines)]
    workers = []
    for title in wanted:
        too_slow = args.cache / task.name / f"{title.replace(' ', '-')}.slow"
        if too_slow.exists():
            print(f"{task.name}: {title} skipped: its build was too slow before", flush=True)
            continue
        try:
            worker = Worker(Job(task, title, args.cache, args.peers, args.build_limit), args.targets)
        except BuildError as error:
            reason, slow = error.args
            print(f"{task.name}: {title} skipped: {reason}", flush=True)
            if slow:
                too_slow.parent.mkdir(parents=True, exist_ok=True)
                too_slow.touch()
            continue
        workers.append(worker)
        reached = {target: figures["settings"] for target, figures in worker.figures.items()}
        print(f"{task.name}: {title}, built in {worker.about['build_cpu_seconds']:.0f} s, {reached}", flush=True)
    for _ in range(args.rounds):
        for target in args.targets:
            for worker in workers:
                if target in worker.figures:
                    worker.turn(target, args.seconds, most)
    about = {"set": task.name, "count": task.about["counts"]["database"], "dim": task.about["dim"],
             "nesting": task.about["nesting"], "metric": task.metric, "queries": most, "threads": 1}   # fmt: skip
    rows = [about | figures_of(worker, target) for target in args.targets for worker in workers
            if target in worker.figures]  # fmt: skip
    for worker in workers:
        worker.stop()
    return rows


def chosen(title: str, name: str) -> bool:
    """Whether ``--engines`` names this one: all of "peers", or a title from its beginning on."""
    return title not in OURS if name == "peers" else title == name or (title not in OURS and title.startswith(name))


def figures_of(worker: Worker, target: float) -> dict[str, Any]:
    """The medians of one engine."""
    known = {key: value for key, value in worker.figures[target].items() if not key.startswith("first_")}
    turns = worker.turns[target]
    return {
        "target": target, "engine": worker.title, **known, **worker.about,
        "qps": 1 / median(cpu for _, cpu in turns), "wall_qps": 1 / median(wall for wall, _ in turns),
        "cpu_microseconds": [round(1e6 * cpu, 3) for _, cpu in turns],
        "wall_microseconds": [round(1e6 * wall, 3) for wall, _ in turns],
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The fastest first, for each set and target; the ratio is how many times as fast matryo is."""
    lines = []
    for name, target in dict.fromkeys((row["set"], row["target"]) for row in rows):
        group = [row for row in rows if (row["set"], row["target"]) == (name, target)]
        ours = next((row["qps"] for row in group if row["engine"] == "matryo"), None)
        about = f"{name}: {group[0]['count']:,} × {group[0]['dim']}, recall@10 ≥ {target:g}"
        heads = "recall", "queries/s", "by wall", "matryo is", "build s", "MiB"
        lines += ["", f"{about:72}" + "".join(f"{head:>11}" for head in heads)]
        for row in sorted(group, key=lambda row: -row["qps"]):
            ratio = "" if ours is None else f"{ours / row['qps']:.2f} ×"
            lines.append(
                f"{row['engine']} {short(row['settings'])}"[:71].ljust(72)
                + f"{row['recall@10']:11.4f}{row['qps']:11,.0f}{row['wall_qps']:11,.0f}{ratio:>11}"
                + f"{row['build_cpu_seconds']:11.1f}{row['index_bytes'] / 2**20:11.0f}"
            )
    return "\n".join(lines)


def short(settings: dict[str, Any]) -> str:
    """The settings of a search in few characters."""
    if "stages" not in settings:
        return " ".join(f"{name}={value}" for name, value in settings.items())
    stages = ", ".join(":".join(str(stage[name]) for name in ("dim", "keep")) for stage in settings["stages"])
    guides = (f"{name}={value}" for name, value in settings.items() if name != "stages" and value is not None)
    return " ".join([stages, *guides])


def show(args: argparse.Namespace) -> None:
    """Print stored rows, of each engine the latest."""
    latest = {}
    for path in args.rows:
        for row in read_rows(path):
            latest[row.figures["set"], row.figures["target"], row.figures["engine"]] = row.figures
    print(table(list(latest.values())))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder per set")
    both.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="NAME")
    maker = verbs.add_parser("make", parents=[both], help="write the sets")
    maker.set_defaults(do=make)
    for field in fields(Sources):
        many: dict[str, Any] = {"nargs": "+", "default": ()} if field.name == "packages" else {}
        maker.add_argument(f"--{field.name}", type=Path, metavar="PATH", **many)
    runner = verbs.add_parser("run", parents=[both], help="measure")
    runner.set_defaults(do=run)
    runner.add_argument("--engines", nargs="+", default=[*OURS, "peers"], metavar="NAME",
                        help='matryo, "matryo exact", peers, or the beginnings of their names: hnswlib')  # fmt: skip
    runner.add_argument("--targets", type=float, nargs="+", default=list(TARGETS), help="recall@10")
    runner.add_argument("--cache", type=Path, required=True, metavar="DIR", help="keeps the indexes of the peers")
    runner.add_argument("--peers", type=Path, metavar="DIR", help="a further folder of installed packages")
    runner.add_argument("--rounds", type=int, default=7, help="turns of every engine")
    runner.add_argument("--seconds", type=float, default=1.0, help="of one turn, about")
    runner.add_argument("--build-limit", type=int, default=600, help="seconds of CPU time; slower builds are skipped")
    runner.add_argument("--out", type=Path, metavar="ROWS", help="add the rows to this file")
    printer = verbs.add_parser("table", help="print stored rows")
    printer.set_defaults(do=show)
    printer.add_argument("rows", type=Path, nargs="+")
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
