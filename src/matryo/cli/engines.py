"""Run plans on a database: load vectors into a table, list and drop indexes, and print the statement of a search.

URL is postgresql://user@host/database?table=docs&column=embedding. `list` without URL shows the engines. `load URL
SOURCE` creates the table and copies vectors into it; run it again to resume after an interruption. `list URL` shows the
indexes that plans can use. `explain URL --plan FILE` prints the statement to paste into other code. `drop URL` drops
the indexes that matryo made, and with --table a table that matryo made. `matryo plan URL` chooses a plan and builds its
index.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import InputError

if TYPE_CHECKING:
    from matryo.engines import Engine

__all__ = ["add_arguments", "run"]

_ACTIONS = ("list", "load", "explain", "drop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """ACTION, URL, and the options of the actions."""
    from matryo.cli.parts.reading import add_source_arguments

    parser.add_argument("action", metavar="ACTION", choices=_ACTIONS, help=f"one of {', '.join(_ACTIONS)}")
    parser.add_argument("url", nargs="?", metavar="URL", help="the table; without it, list shows the engines")
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="load: embeddings, an index or a file, as for "
                        "`matryo index`; rows without ids are numbered from 0")
    parser.add_argument("--overwrite", action="store_true", help="load: replace rows whose id is there already")
    parser.add_argument("--into-existing", action="store_true", help="load: also into a table that matryo did not make")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="explain: a plan that `matryo plan --out` wrote")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="explain: hits per query [10]")
    parser.add_argument("--where", metavar="JSON", help="explain: a filter, as for `matryo search`")
    parser.add_argument("--table", action="store_true", help="drop: the table too, if matryo made it")
    parser.add_argument("--json", action="store_true", help="list: print JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Do one action."""
    from matryo.engines import open as open_engine

    if args.url is None:
        if args.action != "list":
            raise InputError(f"{args.action} needs a URL", got="none", cure="for example postgresql://host/db?table=docs")
        _list_engines(args)
        return
    if args.source and args.action != "load":
        raise InputError(f"{args.action} takes no SOURCE", got=args.source, cure="drop it")
    with open_engine(args.url) as engine:
        {"list": _list, "load": _load, "explain": _explain, "drop": _drop}[args.action](args, engine)


def _list_engines(args: argparse.Namespace) -> None:
    from matryo.engines import installed

    rows = installed()
    if args.json:
        print(json.dumps(rows))
    for name, cure in ({} if args.json else rows).items():
        print(f"{name:<12} {'installed' if cure is None else cure}")


def _list(args: argparse.Namespace, engine: Engine) -> None:
    indexes = engine.prepared()
    if args.json:
        print(json.dumps([vars(index) for index in indexes], ensure_ascii=False))
        return
    print(engine)
    for index in indexes:
        made = "made by matryo" if index.ours else "not made by matryo"
        print(f"  the first {index.dim} dims: {index.name}, {index.bytes / 1e6:,.1f} MB, {made}")
    if not indexes:
        print("  no index that plans can use: matryo plan URL suggests one")


def _load(args: argparse.Namespace, engine: Engine) -> None:
    from matryo.cli.parts.reading import open_sources

    if args.source is None:
        raise InputError("load needs a SOURCE", got="none", cure="pass an embeddings folder, an index or a file")
    [source] = open_sources(args, [args.source], payload=None)
    written = engine.load(source, overwrite=args.overwrite, into_existing=args.into_existing, progress=not args.quiet)
    print(f"loaded {written:,} rows of {source.name}\n{engine}")


def _explain(args: argparse.Namespace, engine: Engine) -> None:
    from matryo.cli.parts.engine import read_where

    print(engine.explain(args.plan, args.k, read_where(args.where)))


def _drop(args: argparse.Namespace, engine: Engine) -> None:
    names = engine.drop(table=args.table)
    print(f"dropped {', '.join(names)}" if names else "nothing to drop: matryo made no index here")
