"""Choose a search plan: the cheapest plan that reaches the recall you ask for.

The planner tries plans with many dims, shortlist lengths and first stages, and tests them on held-out queries. The
chosen plan reaches --recall with --confidence on new queries like those of --queries. Without --queries, rows of the
index are used as queries; real queries are better. `matryo search FOLDER QUERIES --plan FILE` uses the plan that --out
writes, and `matryo check` tests it on other queries. While the index and the queries are unchanged, the result of an
earlier run with the same options is printed at once, unless --again is given.

FOLDER may also be the URL of a table in a database, such as postgresql://host/db?table=docs&column=embedding (see
`matryo engines`). Plans are then measured on the database, and the statement to paste is printed. Nothing is built
there without --prepare.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.cli.parts.engine import folder_or_url, plan_on_engine
from matryo.cli.parts.reading import add_source_arguments, open_queries
from matryo.errors import InputError
from matryo.files import check_may_write, write_json

if TYPE_CHECKING:
    from matryo.arrays import Array
    from matryo.retrieve.plan.choice import Choice
    from matryo.retrieve.shards.manifest import AnyIndex

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, the target of the plan, and the output."""
    parser.add_argument("folder", type=folder_or_url, metavar="FOLDER", help="an index, or the URL of a table")
    parser.add_argument("--queries", metavar="SOURCE", help="a sample of real queries; - is standard input")
    parser.add_argument("--recall", type=float, default=0.99, metavar="X",
                        help="the share of the hits of exact search to find [0.99]")  # fmt: skip
    parser.add_argument("-k", type=int, default=10, metavar="K", help="hits per query [10]")
    parser.add_argument("--cost", choices=["latency", "bytes", "mflops"], default="latency",
                        help="cost to minimise: milliseconds on one thread, bytes or MFLOPs [latency]")  # fmt: skip
    parser.add_argument("--budget", type=float, metavar="X", help="the maximum cost per query")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the plan as JSON, for matryo search --plan")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw recall against cost: FILE.svg or FILE.png")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="X", help="confidence of the recall [0.95]")
    parser.add_argument("--where", metavar="JSON", help="URL: plan for searches with this filter")
    parser.add_argument("--prepare", nargs="?", const="auto", metavar="DIM", help="URL: first build the index of the "
                        "first DIM dims [the suggested one]")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="plan anew, even if an earlier result is stored")
    add_source_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the frontier as a JSON object instead of a table")
    parser.add_argument("--force", action="store_true", help="overwrite --out and --figure, whatever they hold")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Choose a plan, print the frontier, and write --out and --figure."""
    from matryo.retrieve.plan.picture import is_picture, save
    from matryo.retrieve.shards import open_index

    if args.figure is not None and args.figure.suffix not in (".svg", ".png"):
        raise InputError("--figure must end in .svg or .png", got=args.figure.name, cure="change the suffix")
    if isinstance(args.folder, str) and (args.figure is not None or args.again):
        raise InputError("--figure and --again apply to an index", got="a URL", cure="drop them")
    if not isinstance(args.folder, str) and (args.where is not None or args.prepare is not None):
        raise InputError("--where and --prepare apply to the URL of a database", got=args.folder, cure="drop them")
    for path, is_ours in ((args.out, _is_plan), (args.figure, is_picture)):
        if path is not None:
            check_may_write(path, force=args.force, is_ours=is_ours)
    if isinstance(args.folder, str):
        plan_on_engine(args)
        return
    with open_index(args.folder) as index:
        choice, is_stored = _choice(args, index)
        has_guides = bool(index.wanted())
    notes = ["this is the stored result of an earlier run (--again plans anew)"] if is_stored else []
    notes += [] if has_guides or args.json else [f"guides allow faster plans: matryo index {args.folder} --build"]
    if args.figure is not None:
        save(choice, args.figure)
        notes += [f"wrote the figure to {args.figure}"]
    if args.out is not None and choice.plan is not None:
        write_json(args.out, choice.plan.to_dict())
        notes += [f"wrote the plan to {args.out}: matryo search {args.folder} QUERIES --plan {args.out}"]
    print(json.dumps(choice.to_figures(), ensure_ascii=False) if args.json else choice)
    if notes:
        print("\n".join(notes), file=sys.stderr if args.json else sys.stdout)
    if choice.plan is None:
        cure = "raise --budget or lower --recall"
        raise InputError("no plan within the budget reaches the recall", got=args.budget, cure=cure)


def _choice(args: argparse.Namespace, index: AnyIndex) -> tuple[Choice, bool]:
    """The choice of the planner, and whether it is that of an earlier run."""
    from matryo.retrieve.plan.cache import load_choice, plan_key, store_choice

    queries, state = _queries(args, index), index.state
    options = {name: getattr(args, name) for name in ("recall", "k", "cost", "budget", "confidence")}
    key = plan_key(state, queries, **options)
    stored = None if args.again else load_choice(index.path, key)
    if stored is not None:
        return stored, True
    choice = index.plan(queries=queries, progress=not args.quiet, **options)
    if index.state == state:   # no other process has changed the index meanwhile
        store_choice(index.path, key, choice)
    return choice, False


def _queries(args: argparse.Namespace, index: AnyIndex) -> Array | None:
    if args.queries is not None:
        return np.concatenate([batch.vectors for batch in open_queries(args, args.queries, index).batches()])
    for name in ("format", "id_column", "vector_column"):
        if getattr(args, name) is not None:
            rule = f"--{name.replace('_', '-')} applies to --queries"
            raise InputError(rule, got="no --queries", cure="pass --queries SOURCE")
    return None


def _is_plan(path: Path) -> bool:
    """Whether ``path`` is a plan that an earlier run wrote."""
    from matryo.retrieve.plan.choice import as_plan

    try:
        as_plan(path)
    except InputError:
        return False
    return True
