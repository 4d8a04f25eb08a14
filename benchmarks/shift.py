"""Plans that meet queries of another kind: what they find, whether a warning is issued, and what planning again finds.

For each set and target, the planner sees queries of one kind. Other queries of that kind and of other kinds are then
searched one by one. ``robust`` is one plan for all kinds, with their names as groups. False alarms are counted over
draws: half of the usual queries take the place of the planning queries, and the others are searched.

    python benchmarks/shift.py --wordllama …/site-packages/wordllama --wordnet /usr/share/wordnet \\
        --packages Translation-en --fashion /usr/share/datasets/fashion-mnist --imdb imdb_unsup.json.xz \\
        --out docs/results/shift.jsonl
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from support.shift_sets import QUERIES, SETS, Shifts
from support.unseen_sets import Sources, Vectors

from matryo import Index, Plan
from matryo.errors import ShiftWarning
from matryo.results import append_rows, stamp
from matryo.retrieve.plan.choice import Choice, outline
from matryo.retrieve.plan.promise import Promise
from matryo.retrieve.plan.shift import Watch, Watches

K, DRAWS = 10, 1000
USUAL, ROWS = "the usual kind", "rows of the index"


def measure(index: Index, made: Shifts, target: float, name: str) -> dict[str, Any]:
    """The figures of one set at one target."""
    kinds = {USUAL: made.usual, **made.others}
    seen, unseen = ({kind: vectors[part] for kind, vectors in kinds.items()}
                    for part in (slice(QUERIES), slice(QUERIES, None)))   # fmt: skip
    choice = plan(index, target, seen[USUAL])
    names = np.repeat(list(seen), [len(vectors) for vectors in seen.values()])
    robust = plan(index, target, np.concatenate(list(seen.values())), robust=names)
    from_rows = plan(index, target, None)
    lines = []
    for kind, queries in unseen.items():
        result = index.check(queries, choice)
        lines.append({
            "kind": kind, "warned_after": warned_after(index, queries, choice), "verdict": result.verdict,
            "recall": result.recall, "lower": result.lower, "upper": result.upper, "distance": result.distance,
            "again": recall(index, queries, choice if kind == USUAL else plan(index, target, seen[kind])),
            "robust": recall(index, queries, robust), "robust_warned_after": warned_after(index, queries, robust),
            "from_rows": recall(index, queries, from_rows),
            "from_rows_warned_after": warned_after(index, queries, from_rows),
            "correlations": correlations(index, queries, choice),
        })  # fmt: skip
        print(lines[-1], flush=True)
    return {
        "set": name, "count": len(index), "dim": index.nesting.dim, "target": target, "k": K, "queries": QUERIES,
        "draws": DRAWS, "false_alarms": false_alarms(index, made.usual, choice),
        "watch_microseconds": watch_microseconds(index, unseen[USUAL], choice), "kinds": lines,
        "plans": {"usual": costs(choice), "robust": costs(robust), "from_rows": costs(from_rows)},
    }  # fmt: skip


def plan(index: Index, target: float, queries: Vectors | None, **options: Any) -> Choice:
    """The choice of the planner."""
    choice: Choice = index.plan(target, K, queries, progress=False, **options)
    return choice


def costs(choice: Choice) -> dict[str, Any]:
    """The chosen plan and its milliseconds per query."""
    assert choice.plan is not None and choice.point is not None   # no budget forbids
    return {"plan": outline(choice.plan, K), "ms": choice.point.latency, "exact_ms": choice.frontier[0].latency}


def recall(index: Index, queries: Vectors, choice: Choice) -> float:
    """The share of the hits of exact search that the plan finds."""
    assert choice.plan is not None
    bare: Plan = replace(choice.plan, promise=None)   # these searches are not to warn
    true, hits = index.search(queries, K, exact=True).ids, index.search(queries, K, bare).ids
    return float((hits[:, :, None] == true[:, None]).any(axis=1).mean())


def correlations(index: Index, queries: Vectors, choice: Choice) -> dict[str, float]:
    """The rank correlations of the recall of a query with the scores that its search yields."""
    assert choice.plan is not None
    hits = index.search(queries, K, replace(choice.plan, promise=None))
    true = index.search(queries, K, exact=True).ids
    found = (hits.ids[:, :, None] == true[:, None]).any(axis=1).mean(axis=1)
    first, kth = hits.scores[:, 0], hits.scores[:, -1]
    statistics = {"first": first, "k-th": kth, "difference": first - kth}
    return {name: float(spearmanr(values, found).statistic) for name, values in statistics.items()}


def warned_after(index: Index, queries: Vectors, choice: Choice) -> int | None:
    """The number of searches until the warning, one at a time; None if there is none."""
    with Index.open(index.path) as fresh, warnings.catch_warnings():
        warnings.simplefilter("error", ShiftWarning)
        for number, query in enumerate(queries, start=1):
            try:
                fresh.search(query, K, choice)
            except ShiftWarning:
                return number
    return None


def false_alarms(index: Index, queries: Vectors, choice: Choice) -> int:
    """How many draws of usual queries warn, each divided into planning queries and searches."""
    assert choice.plan is not None and choice.plan.promise is not None
    scores = index.search(queries, K, replace(choice.plan, promise=None)).scores
    random, alarms = np.random.default_rng(0), 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", ShiftWarning)
        for _ in range(DRAWS):
            order = random.permutation(len(scores))
            watch = Watch(Promise.of([scores[order[:QUERIES], -1]], recall=choice.target, k=K, confidence=0.95))
            try:
                for row in order[QUERIES:]:
                    watch.see(scores[row, None])
            except ShiftWarning:
                alarms += 1
    return alarms


def watch_microseconds(index: Index, queries: Vectors, choice: Choice) -> float:
    """The mean time that comparing scores adds to a search, one query at a time, tests included; the best of 5 rounds.

    The mean of one round also counts what else the machine did.
    """
    assert choice.plan is not None and choice.plan.promise is not None
    bare, rounds = replace(choice.plan, promise=None), []
    for _ in range(5):
        watches, nanoseconds = Watches(), 0
        for query in queries:
            scores = index.search(query, K, bare).scores
            start = time.perf_counter_ns()
            watches.see(choice.plan.promise, scores)
            nanoseconds += time.perf_counter_ns() - start
        rounds.append(nanoseconds / len(queries) / 1000)
    return min(rounds)


def main() -> None:
    """Make each set, measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="NAME")
    parser.add_argument("--targets", type=float, nargs="+", default=[0.95, 0.99], help="recall@10")
    parser.add_argument("--wordllama", type=Path, metavar="PATH", help="the folder of the package")
    parser.add_argument("--wordnet", type=Path, metavar="PATH", help="the folder with data.noun")
    parser.add_argument("--packages", type=Path, nargs="+", default=(), metavar="PATH", help="their descriptions")
    parser.add_argument("--fashion", type=Path, metavar="PATH", help="the folder of Fashion-MNIST")
    parser.add_argument("--imdb", type=Path, metavar="PATH", help="packed reviews (.json.xz)")
    parser.add_argument("--out", type=Path, metavar="ROWS", help="add the rows to this file")
    args = parser.parse_args()
    sources = Sources(wordllama=args.wordllama, wordnet=args.wordnet, fashion=args.fashion, packages=args.packages)
    for name in args.sets:
        made = SETS[name](sources, args.imdb)
        with tempfile.TemporaryDirectory() as folder, Index.create(f"{folder}/index", made.nesting) as index:
            index.add(made.database)
            index.build()
            for target in args.targets:
                figures = measure(index, made, target, name)
                if args.out:
                    subject = f"{name}, {figures['count']:,} × {figures['dim']}"
                    append_rows(args.out, [stamp("shift", subject, figures, seed=0)])


if __name__ == "__main__":
    main()
