"""Recall and nDCG@10 by bytes per vector: truncation, PCA, faiss and ``Compression.choose`` on real vectors.

``make`` writes the sets of ``support/compress_sets.py``; SciFact and CLINC150 need what
``retrofit.py encode`` writes.
``measure`` fits every method to the rows of a set, without its queries, encodes the rows and searches them with other
queries in float32. ``times`` measures one budget again, in seconds, on a machine that does nothing else.

    python benchmarks/compress.py make --data ../shared/data --wordllama site-packages/wordllama --vectors minilm sets
    python benchmarks/compress.py measure sets/scifact sets/clinc sets/tiny sets/captions
    python benchmarks/compress.py times sets/clinc --bytes 64
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.compress_methods import BY_NDCG, METHODS, Outcome, ours_by_ndcg, unit
from support.compress_sets import DEVELOPMENT, SETS, Files

from matryo.results import append_rows, read_rows, stamp
from matryo.retrieve.compress.codes.scoring import best_of
from matryo.retrieve.compress.trial import ndcg

OUT = Path("docs/results/compress.jsonl")
BUDGETS = (8, 16, 32, 64, 128, 256, 512, 1024)
K, SHORTLIST = 10, 100
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


if __name__ == "__main__":
    main()
