"""Check a plan on other queries: does the recall that `matryo plan` promised hold for them?

The check compares the plan with exact search, and prints its recall with bounds, whether the promise holds, how long a
query takes, and whether the queries differ from those that the plan was made for. If the promise is broken, the exit
code is 1. A plan that `matryo plan` did not write needs --recall.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from matryo.cli.parts.reading import add_source_arguments, open_queries
from matryo.errors import InputError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, QUERIES, the plan and its promise."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="an index")
    parser.add_argument("queries", metavar="QUERIES", help="query vectors; - is standard input")
    parser.add_argument("--plan", required=True, metavar="FILE", help="a plan that `matryo plan --out` wrote, or its "
                        "JSON")  # fmt: skip
    parser.add_argument("--recall", type=float, metavar="X", help="the recall to test [the one that the plan promises]")
    parser.add_argument("-k", type=int, metavar="K", help="hits per query [those that the plan was made for, or 10]")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="X", help="confidence of each bound [0.95]")
    add_source_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the check as a JSON object instead of text")


def run(args: argparse.Namespace) -> None:
    """Check the plan, and print the result."""
    from matryo.retrieve.shards import open_index

    with open_index(args.folder) as index:
        queries = np.concatenate([batch.vectors for batch in open_queries(args, args.queries, index).batches()])
        result = index.check(queries, args.plan, args.k, recall=args.recall, confidence=args.confidence)
    print(json.dumps(result.to_figures(), ensure_ascii=False) if args.json else result)
    if result.verdict == "broken":
        bound, kinds = f"at most {result.upper:.4f}", "a sample of all kinds of queries"
        cure = f"plan again: matryo plan {args.folder} --recall {result.target:g} --queries SOURCE, with {kinds}"
        raise InputError(f"the recall on these queries is below {result.target:g}", got=bound, cure=cure)
