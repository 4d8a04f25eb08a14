"""Shared by the verbs that take a URL instead of a folder: planning and searching on a database."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.files import parse_json, write_json

if TYPE_CHECKING:
    from matryo.arrays import Array
    from matryo.engines import Engine
    from matryo.nesting import Nesting
    from matryo.retrieve import Hits

__all__ = ["EngineIndex", "folder_or_url", "plan_on_engine", "read_where"]

_SHOWN = 3   # suggestions


def folder_or_url(text: str) -> Any:
    """A path, or the URL of an engine unchanged: a path would lose one of its slashes."""
    return text if "://" in text else Path(text)


def read_where(text: str | None) -> dict[str, Any] | None:
    """The filter of --where; the search checks its content."""
    try:
        where: dict[str, Any] | None = None if text is None else parse_json(text)
    except ValueError as error:
        example = """--where '{"year": {"$gte": 2020}}'"""
        raise InputError("--where must be JSON", got=f"{text:.60}: {error}", cure=f"for example {example}") from error
    return where


def plan_on_engine(args: argparse.Namespace) -> None:
    """`matryo plan URL`: prepare an index if asked to, choose a plan, and print the statement to paste."""
    from matryo.cli.parts.reading import open_sources
    from matryo.engines import open as open_engine

    with open_engine(args.folder) as engine:
        queries: Array | None = None
        if args.queries is not None:
            [source] = open_sources(args, [args.queries])
            queries = np.concatenate([batch.vectors for batch in source.batches()])
        where = read_where(args.where)
        if args.prepare is not None:
            _prepare(args, engine, queries)
        elif not any(index.dim < engine.nesting.dim for index in engine.prepared()) and engine.needs_index:
            _suggest(args, engine, queries)
            if not engine.prepared():
                return
        choice = engine.plan(args.recall, args.k, queries, where=where, cost=args.cost, budget=args.budget,
                             confidence=args.confidence, progress=not args.quiet)
        if args.json:
            print(json.dumps(choice.to_figures(), ensure_ascii=False))
            return
        print(f"{choice}\n{engine.advice(choice)}")
        if args.out is not None and choice.plan is not None:
            write_json(args.out, choice.plan.to_dict())
            print(f"wrote the plan to {args.out}")
        if choice.plan is not None:
            print(f"\n{engine.explain(choice.plan, args.k, where)}")


def _suggest(args: argparse.Namespace, engine: Engine, queries: Any) -> None:
    """Print what could be built, with its cost; nothing is built."""
    print("no index of first dims yet. By one pass over the vectors, these look best (nothing was built):")
    short = [plan for plan in engine.suggest(args.recall, args.k, queries) if plan.stages[0].dim < engine.nesting.dim]
    for plan in short[:_SHOWN]:
        first = plan.stages[0]
        print(f"\nthe first {first.dim} dims, re-ranking about {first.keep}: {engine.work(plan)}")
    if short:
        print("\nbuild one and measure it: add --prepare, or --prepare DIM")
    else:
        print("\nnone: every prefix misses too many neighbours; use the full-dim index")


def _prepare(args: argparse.Namespace, engine: Engine, queries: Any) -> None:
    if args.prepare != "auto":
        try:
            wanted: Any = int(args.prepare)
        except ValueError:
            rule, cure = "--prepare must be a dim", "for example --prepare 64"
            raise InputError(rule, got=repr(args.prepare), cure=cure) from None
    else:
        plans = engine.suggest(args.recall, args.k, queries)
        short = [plan for plan in plans if plan.stages[0].dim < engine.nesting.dim]
        if not short:
            raise InputError("no prefix of these vectors finds enough neighbours", got=f"recall={args.recall:g}",
                             cure="use the full-dim index")
        wanted = short[0]
    work = engine.work(wanted)
    if work.statements and not args.json:
        print(work, flush=True)
    engine.prepare(wanted)


class EngineIndex:
    """An engine with the members of an index that `matryo search` uses."""

    def __init__(self, url: str) -> None:
        from matryo.engines import open as open_engine

        self.engine = open_engine(url)
        self.metric = self.engine.metric

    @property
    def nesting(self) -> Nesting:
        """The dims of the engine."""
        return self.engine.nesting

    def search(
        self, queries: Any, k: int, plan: Any, exact: bool, where: Any, threads: int, payload: bool
    ) -> Hits:
        """Search the engine; ``threads`` and ``payload`` are for indexes."""
        del threads, payload
        return self.engine.search(queries, k, None if exact else plan, where)

    def __len__(self) -> int:
        return self.engine.count

    def __enter__(self) -> EngineIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
