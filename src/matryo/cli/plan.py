"""Choose the plan of a search: the cheapest that finds what exact search finds, as often as you name.

Plans of many dims, keeps and first stages are tried on held-out queries; the chosen one keeps the recall on queries
it did not see, with the --confidence you ask for. Without --queries, rows of the index stand in for them: give real
ones if you can. `matryo search FOLDER QUERIES --plan FILE` searches by the plan that --out writes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from matryo.retrieve import Index

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, what is asked of the plan, and where it goes."""
    from matryo.cli.reading import add_source_arguments

    parser.add_argument("folder", type=Path, metavar="FOLDER", help="an index")
    parser.add_argument("--queries", metavar="SOURCE", help="queries like those to come; - is standard input")
    parser.add_argument("--recall", type=float, default=0.99, metavar="X",
                        help="the share of exact search's hits to find [0.99]")  # fmt: skip
    parser.add_argument("-k", type=int, default=10, metavar="K", help="how many hits a query [10]")
    parser.add_argument("--cost", choices=["latency", "bytes", "mflops"], default="latency",
                        help="what is to be little: milliseconds on one thread, bytes or MFLOPs [latency]")  # fmt: skip
    parser.add_argument("--budget", type=float, metavar="X", help="the most of it that a query may cost")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the plan as JSON, for matryo search --plan")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw recall against cost: FILE.svg or FILE.png")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="X", help="how surely [0.95]")
    add_source_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the frontier as a JSON object, and no table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Plan, print the frontier, write what was asked for."""
    from matryo.errors import InputError
    from matryo.files import write_json
    from matryo.retrieve import Index
    from matryo.retrieve.plan.picture import save

    if args.figure is not None and args.figure.suffix not in (".svg", ".png"):
        raise InputError("--figure must end in .svg or .png", got=args.figure.name, cure="that says how it is drawn")
    with Index.open(args.folder) as index:
        choice = index.plan(
            recall=args.recall, k=args.k, queries=_queries(args, index), cost=args.cost,
            budget=args.budget, confidence=args.confidence, progress=not args.quiet,
        )  # fmt: skip
        bare = not index.store.wanted()
    wrote = [f"faster plans may be had after: matryo index {args.folder} --build"] if bare and not args.json else []
    if args.figure is not None:
        save(choice, args.figure)
        wrote += [f"drawn in {args.figure}"]
    if args.out is not None and choice.plan is not None:
        write_json(args.out, choice.plan.to_dict())
        wrote += [f"plan in {args.out}: matryo search {args.folder} QUERIES --plan {args.out}"]
    print(json.dumps(choice.to_figures(), ensure_ascii=False) if args.json else choice)
    if wrote:
        print("\n".join(wrote), file=sys.stderr if args.json else sys.stdout)
    if choice.plan is None:
        raise InputError("no plan that holds is within the budget", got=args.budget, cure="raise it, or ask for less")


def _queries(args: argparse.Namespace, index: Index) -> Array | None:
    import numpy as np

    from matryo.cli.reading import open_queries
    from matryo.errors import InputError

    if args.queries is not None:
        return np.concatenate([batch.vectors for batch in open_queries(args, index).batches()])
    for name in ("format", "id_column", "vector_column"):
        if getattr(args, name) is not None:
            rule = f"--{name.replace('_', '-')} says how queries are read"
            raise InputError(rule, got="no --queries", cure="drop it, or give some")
    return None
