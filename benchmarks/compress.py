"""Recall and nDCG@10 by bytes per vector: truncation, PCA, faiss and ``Compression.choose`` on real vectors.

``make`` writes the sets of ``support/compress_sets.py``; SciFact and CLINC150 need what
``retrofit.py encode`` writes.
``measure`` fits every method to the rows of a set, without its queries, encodes the rows and searches them with other
queries in float32. ``times`` measures one budget again, in seconds, on a machine that does nothing else. ``index``
fills an index of codes with sums of two random rows of a set, until it has so many, and searches it.

    python benchmarks/compress.py make --data ../shared/data --wordllama site-packages/wordllama --vectors minilm sets
    python benchmarks/compress.py measure sets/scifact sets/clinc sets/tiny sets/captions
    python benchmarks/compress.py times sets/clinc --bytes 64
    python benchmarks/compress.py index sets/captions --rows 1000000
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support.compress_methods import BY_NDCG, METHODS, Outcome, ours_by_ndcg, unit
from support.compress_sets import DEVELOPMENT, SETS, Files

from matryo.results import append_rows, read_rows, stamp
from matryo.retrieve import Index
from matryo.retrieve.coded import SCANNED
from matryo.retrieve.compress import Compression
from matryo.retrieve.compress.codes.scoring import best_of
from matryo.retrieve.compress.trial import ndcg

OUT = Path("docs/results/compress.jsonl")
BUDGETS = (8, 16, 32, 64, 128, 256, 512, 1024)
K, SHORTLIST = 10, 100
QUERIES, BATCH = 200, 50_000
Array = np.ndarray[Any, np.dtype[Any]]
TIMED = ("matryo", "matryo product", "faiss PQ", "faiss OPQ", "PCA + int8")


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("make")
    make.add_argument("folder", type=Path)
    make.add_argument("--sets", nargs="+", choices=[*SETS, *DEVELOPMENT], default=[*SETS])
    for name in ("data", "wordllama", "vectors"):
        make.add_argument(f"--{name}", type=Path)
    make.set_defaults(run=run_make)
    measure = commands.add_parser("measure")
    measure.add_argument("sets", nargs="+", type=Path)
    measure.add_argument("--methods", nargs="+", choices=[BY_NDCG, *METHODS], default=[BY_NDCG, *METHODS])
    measure.add_argument("--bytes", nargs="+", type=int, choices=BUDGETS, default=[*BUDGETS], metavar="N")
    measure.set_defaults(run=run_measure)
    times = commands.add_parser("times")
    times.add_argument("sets", nargs="+", type=Path)
    times.add_argument("--bytes", type=int, default=64)
    times.set_defaults(run=run_times)
    large = commands.add_parser("index")
    large.add_argument("set", type=Path)
    large.add_argument("--rows", type=int, default=1_000_000)
    large.add_argument("--bytes", type=int, default=64)
    large.set_defaults(run=run_index)
    args = parser.parse_args()
    args.run(args)


def run_make(args: argparse.Namespace) -> None:
    """Write the sets."""
    files = Files(args.data, args.wordllama, args.vectors)
    for name in args.sets:
        {**SETS, **DEVELOPMENT}[name](files).save(args.folder / name)


def run_measure(args: argparse.Namespace) -> None:
    """One row per set and method, with the figures of every budget; what exists is skipped."""
    have: set[tuple[str, str, int]] = set()
    for row in read_rows(args.out) if args.out.exists() else []:
        have |= {(row.figures["set"], row.figures["method"], int(budget)) for budget in row.figures.get("budgets", ())}
    for folder in args.sets:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        rows, queries = (unit(np.load(folder / f"{part}.npy")) for part in ("database", "queries"))
        truth = best_of(queries @ rows.T, K)
        full = float(ndcg(truth, about["relevant"], K).mean())
        for name in args.methods:
            found = {}
            for budget in (budget for budget in args.bytes if (folder.name, name, budget) not in have):
                if name == BY_NDCG:
                    asked = unit(np.load(folder / "choosing.npy"))
                    outcome: Outcome | None = ours_by_ndcg(rows, queries, budget, asked, about["choosing"])
                else:
                    outcome = METHODS[name](rows, queries, budget)
                if outcome is not None:
                    found[str(budget)] = figures = measured(outcome, truth, about["relevant"])
                    print(folder.name, name, budget, json.dumps(figures), flush=True)
            about_set = {"set": folder.name, "source": about["source"], "trained": about["trained"], "full": full}
            about_set |= {"method": name, "budgets": found, "queries": len(queries)}
            subject = f"{folder.name}, {len(rows):,} × {rows.shape[1]}"
            if found:
                append_rows(args.out, [stamp("compress-bytes", subject, about_set, seed=0)])


def measured(outcome: Outcome, truth: Any, relevant: list[list[int]]) -> dict[str, Any]:
    """Recall@10 with and without a re-rank, nDCG@10 and their standard errors."""
    best = outcome.best(SHORTLIST)
    first = (best[:, :K, None] == truth[:, None]).any(axis=2).mean(axis=1)
    later = (truth[:, :, None] == best[:, None]).any(axis=2).mean(axis=1)
    gains = ndcg(best[:, :K], [np.asarray(some) for some in relevant], K)
    error = {name: float(each.std() / np.sqrt(len(each))) for name, each in (("recall", first), ("ndcg", gains))}
    return {"bytes": outcome.bytes, "recall": float(first.mean()), "reranked": float(later.mean()),
            "ndcg": float(gains.mean()), "error": error["recall"], "ndcg_error": error["ndcg"],
            "note": outcome.note}  # fmt: skip


def run_times(args: argparse.Namespace) -> None:
    """Seconds of fitting and of encoding at one budget, on one thread."""
    for folder in args.sets:
        rows, queries = (unit(np.load(folder / f"{part}.npy")) for part in ("database", "queries"))
        for name in TIMED:
            begin = time.perf_counter()
            outcome = METHODS[name](rows, queries[:2], args.bytes)
            if outcome is not None:
                whole = time.perf_counter() - begin
                figures = {"set": folder.name, "method": name, "bytes": args.bytes, "fit": outcome.fit,
                           "encode": outcome.encode, "whole": whole, "rows": len(rows)}  # fmt: skip
                print(json.dumps(figures), flush=True)
                append_rows(args.out, [stamp("compress-times", f"{folder.name}, {len(rows):,} × {rows.shape[1]}",
                                             figures, seed=0)])  # fmt: skip


def run_index(args: argparse.Namespace) -> None:
    """The time and the size of an index of codes, its recall, and milliseconds per search."""
    known, asked = (unit(np.load(args.set / f"{part}.npy")) for part in ("database", "queries"))
    queries = sums_of(asked, QUERIES, seed=-1)
    best = np.empty((QUERIES, 0), np.float32)
    numbers = np.empty((QUERIES, 0), np.int64)
    with tempfile.TemporaryDirectory() as work:
        begin = time.perf_counter()
        chosen = Compression.choose(batches_of(known, args.rows), args.bytes, kinds=SCANNED, progress=False)
        seconds = {"choose": time.perf_counter() - begin, "add": 0.0}
        with Index.create(Path(work) / "small", compression=chosen) as index:
            for start, rows in zip(range(0, args.rows, BATCH), batches_of(known, args.rows), strict=True):
                begin = time.perf_counter()
                index.add(rows, payload=[{"part": (start + row) % 100} for row in range(len(rows))])
                seconds["add"] += time.perf_counter() - begin
                scores = queries @ rows.T
                near = best_of(scores, K)
                best = np.concatenate([best, np.take_along_axis(scores, near, axis=1)], axis=1)
                numbers = np.concatenate([numbers, near + start], axis=1)
                kept = best_of(best, K)
                best, numbers = np.take_along_axis(best, kept, axis=1), np.take_along_axis(numbers, kept, axis=1)
            index.compact()
            size = sum(path.stat().st_size for path in index.path.rglob("*") if path.is_file())
            found = {"exact": index.search(queries, K).ids, "short": index.search(queries, SHORTLIST).ids}
            recall = {name: np.mean([np.isin(right, some).mean() for right, some in zip(numbers, ids, strict=True)])
                      for name, ids in found.items()}   # fmt: skip
            times = {name: [searched(index, query, where) for query in queries]
                     for name, where in (("plain", None), ("filtered", {"part": 7}))}   # fmt: skip
    taken = next(entry for entry in chosen.table if entry.taken)
    figures = {"set": args.set.name, "rows": args.rows, "dim": known.shape[1], "bytes": chosen.bytes_per_vector,
               "code": f"{chosen.fitted.rotation} {chosen.code}", "seconds": seconds, "disk": size,
               "recall": float(recall["exact"]), "among": float(recall["short"]),
               "sample": chosen.provenance["database"],
               "promised": taken.lower, "expected": taken.quality, "queries": QUERIES,
               "milliseconds": {name: 1000 * float(np.median(each)) for name, each in times.items()}}  # fmt: skip
    print(json.dumps(figures, indent=1), flush=True)
    subject = f"sums of two rows of {args.set.name}, {args.rows:,} × {known.shape[1]}"
    append_rows(args.out, [stamp("compress-index", subject, figures, seed=0)])


def sums_of(rows: Array, count: int, seed: int) -> Array:
    """Unit sums of two random rows, the second with half the weight."""
    random = np.random.default_rng([seed + 1])
    first, second = random.integers(0, len(rows), (2, count))
    return unit(rows[first] + rows[second] / 2)


def batches_of(rows: Array, count: int) -> Iterator[Array]:
    """Batches of such sums."""
    for start in range(0, count, BATCH):
        yield sums_of(rows, min(BATCH, count - start), seed=start)


def searched(index: Index, query: Array, where: dict[str, Any] | None) -> float:
    """Seconds of CPU time of one search."""
    begin = time.process_time()
    index.search(query[None], K, where=where)
    return time.process_time() - begin


if __name__ == "__main__":
    main()
