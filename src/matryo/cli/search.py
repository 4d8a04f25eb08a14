"""Search an index: the nearest vectors of each query, with their payloads.

QUERIES is what `matryo index` takes as a SOURCE; --like asks with a row of the index instead. The nearest at full dim
are found, unless a plan says which dims are read and how many rows are kept: --plan FILE (of `matryo plan`), or --dims
16,512 --keep 200 (a shortlist of 200 at 16 dims, ranked again at 512). --where takes payloads that match, as JSON:
'{"year": {"$gte": 2020}, "lang": "en"}'.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.retrieve import Hits, Index, Plan, Stage

__all__ = ["add_arguments", "run"]

_KEEP = 200   # the paper's shortlist


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, QUERIES, by which plan, among what, and where the hits go."""
    from matryo.cli.reading import add_source_arguments

    parser.add_argument("folder", type=Path, metavar="FOLDER", help="an index")
    parser.add_argument("queries", nargs="?", metavar="QUERIES", help="vectors that ask; - is standard input")
    parser.add_argument("--like", nargs="+", metavar="ID", help="rows that ask; none finds itself")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="how many are found for each query [10]")
    parser.add_argument("--where", metavar="JSON", help="search among payloads that match")
    how = parser.add_argument_group("how to search (default: exactly, at full dim)")
    how.add_argument("--plan", type=Path, metavar="FILE", help="the plan that `matryo plan --out` wrote")
    how.add_argument("--dims", metavar="M,M,…", help="the dim of each stage; one is a search at that dim")
    how.add_argument("--keep", metavar="K,K,…", help=f"what each stage but the last keeps [{_KEEP}, then half, …]")
    how.add_argument("--funnel", action="store_true", help="halve what is kept while the dim doubles")
    how.add_argument("--int8", action="store_true", help="the first stage reads the copies in 8 bits")
    how.add_argument("--probe", type=float, metavar="X", help="the first stage reads this share of the rows: 0.05")
    how.add_argument("--ef", type=int, metavar="N", help="the first stage walks a graph with N candidates at hand")
    how.add_argument("--exact", action="store_true", help="the default, said aloud: no plan")
    add_source_arguments(parser)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads that share the queries [1]")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each query, and no table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the hits to FILE.npz or FILE.jsonl")


class _Answer(NamedTuple):
    """What was found for some queries."""

    queries: Sequence[int | str]
    """Their ids, or numbers."""
    hits: Hits


def run(args: argparse.Namespace) -> None:
    """Search, and print or write what was found."""
    from matryo.retrieve import Index

    _check_options(args)
    with Index.open(args.folder) as index:
        plan = _plan(args)
        where = _where(args.where)
        found = _like(args, index, plan, where) if args.like else _ask(args, index, plan, where)
        if args.out is not None:
            count = _write(args.out, index, found)
            print(f"hits of {count:,} quer{'y' if count == 1 else 'ies'} in {args.out}")
            return
        for number, (query, hits) in enumerate(_told(index, found)):
            if args.json:
                print(json.dumps({"query": query, "hits": hits}, ensure_ascii=False))
            else:
                print(("\n" if number else "") + _table(query, hits, index.metric))


def _check_options(args: argparse.Namespace) -> None:
    """Raise where nobody asks, or one option would silently make another idle."""
    from matryo.errors import InputError

    if (args.queries is None) == (args.like is None):
        got = "neither" if args.queries is None else "both"
        raise InputError("either QUERIES or --like must say what to look for", got=got, cure="name one of them")
    if args.out is not None and args.out.suffix not in (".npz", ".jsonl"):
        raise InputError("--out must end in .npz or .jsonl", got=args.out.name, cure="that says how it is written")
    if args.out is not None and args.json:
        raise InputError("hits go to one place", got="--out and --json", cure="drop one")
    stages = ("dims", "keep", "funnel", "int8", "probe", "ef")
    for option, idle, rule in (
        ("exact", ("plan", *stages), "--exact has no plan"),
        ("plan", stages, "--plan brings its stages with it"),
    ):
        given = [f"--{name}" for name in idle if getattr(args, name)]
        if getattr(args, option) and given:
            raise InputError(rule, got=" ".join(given), cure="drop one")
    given = [f"--{name}" for name in stages if getattr(args, name)]
    if given and not args.dims:
        raise InputError("a plan needs its dims", got=" ".join(given), cure="say for example --dims 16,512")


def _plan(args: argparse.Namespace) -> Plan | None:
    """The plan that was asked for; None searches exactly."""
    from matryo.cli.evaluate import parse_dims
    from matryo.errors import InputError
    from matryo.retrieve import Plan, Stage

    if args.plan:
        return _read_plan(args.plan)
    dims = parse_dims(args.dims)
    if dims is None:
        return None
    k, keeps = max(args.k, 1), _keeps(args.keep)
    if args.funnel:
        stages = _funnel(args, dims, keeps, k)
    else:
        if len(keeps) == 1:
            keeps = [keeps[0], *(max(keeps[0] >> place, k) for place in range(1, len(dims) - 1))][: len(dims) - 1]
        if len(keeps) != len(dims) - 1:
            rule = "--keep must say what the first stage keeps, or each but the last"
            raise InputError(rule, got=f"{len(keeps)} for {len(dims)} dims", cure="the last one keeps -k")
        if keeps and min(keeps) < k:
            raise InputError("keep must be at least k", got=f"keep={min(keeps)}, k={k}", cure="keep more")
        stages = tuple(Stage(dim, keep) for dim, keep in zip(dims, [*keeps, k], strict=True))
    if args.int8:
        stages = (replace(stages[0], precision="int8"), *stages[1:])
    return Plan(stages, probe=args.probe, ef=args.ef)


def _funnel(args: argparse.Namespace, dims: Sequence[int], keeps: Sequence[int], k: int) -> tuple[Stage, ...]:
    from matryo.errors import InputError
    from matryo.retrieve import Plan

    if len(dims) != 2 or len(keeps) != 1:
        raise InputError(
            "a funnel has a short dim, a long one and what it keeps at first",
            got=f"--dims {args.dims} --keep {args.keep or _KEEP}",
            cure="say for example --dims 16,512 --keep 200",
        )
    return Plan.funnel(dims[0], dims[1], keep=keeps[0], k=k).stages


def _keeps(text: str | None) -> list[int]:
    from matryo.errors import InputError

    try:
        return [int(part) for part in (text or str(_KEEP)).split(",")]
    except ValueError:
        raise InputError("--keep must be numbers of rows", got=repr(text), cure="say for example --keep 200") from None


def _read_plan(path: Path) -> Plan:
    from matryo.errors import InputError
    from matryo.retrieve import Plan

    try:
        return Plan.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        rule = f"{path} must be a plan in JSON"
        raise InputError(rule, got=error, cure=f"write one: matryo plan FOLDER --out {path.name}") from error


def _where(text: str | None) -> dict[str, Any] | None:
    from matryo.errors import InputError

    try:
        where: dict[str, Any] | None = None if text is None else json.loads(text)
    except ValueError as error:
        example = """--where '{"year": {"$gte": 2020}}'"""
        raise InputError("--where must be JSON", got=f"{text:.60}: {error}", cure=f"for example {example}") from error
    return where   # what it says is checked by the search


# ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────


def _ask(args: argparse.Namespace, index: Index, plan: Plan | None, where: Any) -> Iterator[_Answer]:
    """The hits of queries from a source, a batch at a time."""
    from matryo.cli.reading import open_queries

    first = 0
    for batch in open_queries(args, index).batches():
        numbers = list(range(first, first + len(batch.vectors)))
        hits = index.search(batch.vectors, args.k, plan, args.exact, where, args.threads)
        yield _Answer(batch.ids or numbers, hits)
        first += len(numbers)


def _like(args: argparse.Namespace, index: Index, plan: Plan | None, where: Any) -> Iterator[_Answer]:
    """The hits of rows of the index, but for themselves."""
    import numpy as np

    from matryo.cli.reading import parse_ids
    from matryo.retrieve import Hits

    ids = parse_ids(index, args.like)
    more = args.k + 1 if args.k > 0 else args.k   # a k that is none is told by the search
    hits = index.search(index.get(ids)[0], more, plan, args.exact, where, args.threads)
    others = np.argsort(hits.ids == np.array(ids)[:, None], axis=1, kind="stable")[:, : args.k]   # itself comes last
    yield _Answer(ids, Hits(np.take_along_axis(hits.ids, others, 1), np.take_along_axis(hits.scores, others, 1)))


# ── telling ───────────────────────────────────────────────────────────────────────────────────────────────────


def _told(index: Index, found: Iterator[_Answer]) -> Iterator[tuple[int | str, list[dict[str, Any]]]]:
    """Each query with its hits: id, score and payload."""
    import numpy as np

    for answer in found:
        for query, ids, scores in zip(answer.queries, answer.hits.ids, answer.hits.scores, strict=True):
            there = np.isfinite(scores)
            known = ids[there].tolist()
            payloads = index.get(known)[1] if known else []
            # The shortest text that is this number in float32, not its sixteen digits in float64.
            worth = [float(str(score)) for score in scores[there]]
            yield query, [
                {"id": id, "score": score, "payload": payload}
                for id, score, payload in zip(known, worth, payloads, strict=True)
            ]


def _table(query: int | str, hits: Sequence[dict[str, Any]], metric: str) -> str:
    """The hits of one query, aligned; payloads are cut at the edge of the terminal."""
    room = shutil.get_terminal_size((120, 24)).columns
    rows = [("id", metric, "payload")]
    for hit in hits:
        payload = json.dumps(hit["payload"], ensure_ascii=False) if hit["payload"] else ""
        rows.append((str(hit["id"]), f"{hit['score']:.4f}", payload))
    if not any(payload for *_, payload in rows[1:]):
        rows = [(id, score, "") for id, score, _ in rows]
    wide, narrow = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {id:<{wide}}  {score:>{narrow}}  {payload}".rstrip() for id, score, payload in rows]
    lines = [line if len(line) <= room else line[: room - 1] + "…" for line in lines]
    return "\n".join([f"query {query}", *(lines if hits else ["  nothing found"])])


def _write(out: Path, index: Index, found: Iterator[_Answer]) -> int:
    """All hits into one file, which appears whole; returns how many queries there were."""
    import numpy as np

    from matryo.files import replacing

    count = 0
    with replacing(out) as file:
        if out.suffix == ".jsonl":
            for query, hits in _told(index, found):
                file.write((json.dumps({"query": query, "hits": hits}, ensure_ascii=False) + "\n").encode())
                count += 1
            return count
        answers = list(found)
        queries = [query for answer in answers for query in answer.queries]
        ids, scores = (np.concatenate([getattr(one.hits, name) for one in answers]) for name in ("ids", "scores"))
        np.savez(file, queries=np.array(queries), ids=ids, scores=scores)
    return len(queries)
