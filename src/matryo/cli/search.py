"""Search an index: print the nearest vectors of each query, with their payloads.

QUERIES is any SOURCE of `matryo index`. If the index knows the model of its vectors, QUERIES may also be texts in
quotes, images, folders of images, or .txt files with one text per line; the model encodes them. --like uses rows of the
index as queries instead. By default the search is exact at full dim. A plan makes it faster: --plan FILE (from
`matryo plan`), or --dims 16,512 --keep 200 (a shortlist of 200 at 16 dims, re-ranked at 512). --where restricts the
search to matching payloads, as JSON: '{"year": {"$gte": 2020}, "lang": "en"}'. With the URL of a table (see
`matryo engines`), QUERIES are vectors, and the database runs the plan.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.cli.parts.engine import EngineIndex, folder_or_url, read_where
from matryo.cli.parts.model import are_vectors, encode_queries
from matryo.cli.parts.reading import add_source_arguments, open_queries, parse_ids
from matryo.cli.parts.subjects import parse_dims
from matryo.errors import InputError, ShiftWarning, one_line
from matryo.files import check_may_write, replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.retrieve import Hits, Plan
    from matryo.retrieve.shards.manifest import AnyIndex

    Answers = Iterator[tuple[Sequence[int | str], Hits]]
    """The ids or numbers of a batch of queries, and their hits."""

__all__ = ["add_arguments", "run"]

_KEEP = 200   # the shortlist length of the paper
_PAYLOADS = 100_000   # payloads in memory at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, QUERIES, the plan, the filter and the output."""
    parser.add_argument("folder", type=folder_or_url, metavar="FOLDER", help="an index, or the URL of a "
                        "table in a database")  # fmt: skip
    parser.add_argument("queries", nargs="*", metavar="QUERIES", help="query vectors (- is standard input), "
                        "texts or images")  # fmt: skip
    parser.add_argument("--like", nargs="+", metavar="ID", help="use these rows as queries; a row does not find itself")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="hits per query, at most all vectors [10]")
    parser.add_argument("--model", type=Path, metavar="RUN", help="the run folder of the model that encodes texts and "
                        "images [the one that the index recorded]")  # fmt: skip
    parser.add_argument("--where", metavar="JSON", help="search only among matching payloads")
    how = parser.add_argument_group("plan (default: exact search at full dim)")
    how.add_argument("--plan", type=Path, metavar="FILE", help="a plan that `matryo plan --out` wrote, or its JSON")
    how.add_argument("--dims", metavar="M,M,…", help="the dim of each stage")
    how.add_argument("--keep", metavar="K,K,…", help=f"shortlist of each stage but the last [{_KEEP}, then half, …]")
    how.add_argument("--funnel", action="store_true", help="halve the shortlist while the dim doubles")
    how.add_argument("--int8", action="store_true", help="the first stage reads the 8-bit copies")
    how.add_argument("--probe", type=float, metavar="X", help="IVF: the first stage reads this share of the rows")
    how.add_argument("--ef", type=int, metavar="N", help="HNSW: the first stage walks the graph with N candidates")
    how.add_argument("--exact", action="store_true", help="exact search (the default)")
    add_source_arguments(parser)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads that share the queries [1]")
    parser.add_argument("--json", action="store_true", help="print one JSON object per query instead of tables")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the hits to FILE.npz or FILE.jsonl")
    parser.add_argument("--force", action="store_true", help="overwrite --out, whatever it holds")


def run(args: argparse.Namespace) -> None:
    """Search, and print or write the hits; a warning is one line, without the place in the code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ShiftWarning)
        try:
            _run(args)
        finally:
            for warning in caught:
                print(f"matryo: warning: {one_line(str(warning.message))}", file=sys.stderr)


def _run(args: argparse.Namespace) -> None:
    from matryo.retrieve.plan.plan import check_count
    from matryo.retrieve.shards import open_index

    check_count("k", args.k, example=10)
    _check_options(args)
    if isinstance(args.folder, str):
        _check_engine_options(args)
    opened: Any = EngineIndex(args.folder) if isinstance(args.folder, str) else open_index(args.folder)
    with opened as index:
        if not len(index):
            cure = f"add some first: matryo index {args.folder} SOURCE"
            raise InputError(f"{args.folder} holds no vectors", cure=cure)
        args.k = min(args.k, len(index))   # more hits would all be empty
        plan = _plan(args)
        where = read_where(args.where)
        answers = _like(args, index, plan, where) if args.like else _search(args, index, plan, where)
        if args.out is not None:
            count = _write(args.out, answers)
            print(f"wrote the hits of {count:,} quer{'y' if count == 1 else 'ies'} to {args.out}")
            return
        for number, (query, hits) in enumerate(_by_query(answers)):
            if args.json:
                print(json.dumps({"query": query, "hits": hits}, ensure_ascii=False))
            else:
                print(("\n" if number else "") + _table(query, hits, index.metric))


def _check_options(args: argparse.Namespace) -> None:
    """Refuse missing queries, contradictory options and an output that may not be replaced."""
    if bool(args.queries) == (args.like is not None):
        got = "both" if args.queries else "neither"
        raise InputError("pass either QUERIES or --like", got=got, cure="for example --like ID")
    vectors = [word for word in args.queries if are_vectors(word, args.format)]
    if vectors and len(args.queries) > 1:
        got, cure = f"{len(args.queries)} QUERIES", f"search for {vectors[0]} alone"
        raise InputError("only texts and images can be several QUERIES", got=got, cure=cure)
    if args.model is not None and (vectors or args.like):
        cure = "drop --model"
        raise InputError("--model encodes texts and images", got=f"vectors of {(vectors or args.like)[0]}", cure=cure)
    if args.out is not None and args.out.suffix not in (".npz", ".jsonl"):
        raise InputError("--out must end in .npz or .jsonl", got=args.out.name, cure="change the suffix")
    if args.out is not None and args.json:
        raise InputError("hits are either written or printed", got="--out and --json", cure="drop one")
    if args.out is not None:
        check_may_write(args.out, force=args.force, is_ours=_holds_hits)
    stages = ("dims", "keep", "funnel", "int8", "probe", "ef")
    for option, idle, rule in (
        ("exact", ("plan", *stages), "--exact takes no plan"),
        ("plan", stages, "--plan already has stages"),
    ):
        given = [f"--{name}" for name in idle if getattr(args, name)]
        if getattr(args, option) and given:
            raise InputError(rule, got=" ".join(given), cure="drop one")
    given = [f"--{name}" for name in stages if getattr(args, name)]
    if given and not args.dims:
        raise InputError("a plan needs --dims", got=" ".join(given), cure="for example --dims 16,512")


def _check_engine_options(args: argparse.Namespace) -> None:
    """Refuse what only an index can do."""
    for name in ("like", "model"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} applies to an index", got="the URL of a table", cure="pass query vectors")
    if not are_vectors(args.queries[0], args.format):
        raise InputError("a table in a database is searched with vectors", got=args.queries[0],
                         cure="encode the queries first: matryo encode")


def _plan(args: argparse.Namespace) -> Plan | None:
    """The plan of the options; None for exact search."""
    from matryo.retrieve import Plan, Stage
    from matryo.retrieve.plan.choice import as_plan

    if args.plan:
        return as_plan(args.plan)
    dims = parse_dims(args.dims)
    if dims is None:
        return None
    k, keeps = args.k, _keeps(args.keep)
    if args.funnel:
        if len(dims) != 2 or len(keeps) != 1:
            rule = "a funnel needs a short dim, a long dim and the first shortlist length"
            got = f"--dims {args.dims} --keep {args.keep or _KEEP}"
            raise InputError(rule, got=got, cure="for example --dims 16,512 --keep 200")
        stages = Plan.funnel(dims[0], dims[1], keep=keeps[0], k=k).stages
    else:
        if len(keeps) == 1:
            keeps = [keeps[0], *(max(keeps[0] >> place, k) for place in range(1, len(dims) - 1))][: len(dims) - 1]
        if len(keeps) != len(dims) - 1:
            rule = "--keep must have one number, or one per stage but the last"
            raise InputError(rule, got=f"{len(keeps)} for {len(dims)} dims", cure="the last stage keeps -k")
        if keeps and min(keeps) < k:
            raise InputError("keep must be at least k", got=f"keep={min(keeps)}, k={k}", cure="raise --keep")
        stages = tuple(Stage(dim, keep) for dim, keep in zip(dims, [*keeps, k], strict=True))
    if args.int8:
        stages = (replace(stages[0], precision="int8"), *stages[1:])
    return Plan(stages, probe=args.probe, ef=args.ef)


def _keeps(text: str | None) -> list[int]:
    try:
        return [int(part) for part in (text or str(_KEEP)).split(",")]
    except ValueError:
        raise InputError("--keep must be numbers of rows", got=repr(text), cure="for example --keep 200") from None


# ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────


def _search(args: argparse.Namespace, index: AnyIndex, plan: Plan | None, where: Any) -> Answers:
    """The hits of queries from a source, in batches."""
    from matryo.retrieve.search_arguments import MOST_HITS

    payload = _wants_payloads(args)
    step = max(1, (_PAYLOADS if payload else MOST_HITS) // args.k)
    for queries, vectors in _queries(args, index):
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            yield queries[part], index.search(vectors[part], args.k, plan, args.exact, where, args.threads, payload)


def _queries(args: argparse.Namespace, index: AnyIndex) -> Iterator[tuple[Sequence[int | str], Any]]:
    """The ids or numbers of the queries with their vectors, in batches; texts and images are encoded."""
    if not are_vectors(args.queries[0], args.format):
        yield encode_queries(args.queries, index, args.model)
        return
    first = 0
    for batch in open_queries(args, args.queries[0], index).batches():
        yield batch.ids or range(first, first + len(batch.vectors)), batch.vectors
        first += len(batch.vectors)


def _like(args: argparse.Namespace, index: AnyIndex, plan: Plan | None, where: Any) -> Answers:
    """The hits of rows of the index, without the rows themselves."""
    from matryo.retrieve import Hits

    ids, payload = parse_ids(index, args.like), _wants_payloads(args)
    hits = index.search(index.get(ids)[0], args.k + 1, plan, args.exact, where, args.threads, payload)
    others = np.argsort(hits.ids == np.array(ids)[:, None], axis=1, kind="stable")[:, : args.k]   # itself last
    payloads = hits.payloads and [[row[at] for at in places] for row, places in zip(hits.payloads, others, strict=True)]
    yield ids, Hits(np.take_along_axis(hits.ids, others, 1), np.take_along_axis(hits.scores, others, 1), payloads)


def _wants_payloads(args: argparse.Namespace) -> bool:
    return args.out is None or args.out.suffix == ".jsonl"


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────


def _by_query(answers: Answers) -> Iterator[tuple[int | str, list[dict[str, Any]]]]:
    """Each query with its hits: id, score and payload."""
    for queries, hits in answers:
        yield from zip(queries, hits.to_dicts(), strict=True)


def _table(query: int | str, hits: Sequence[dict[str, Any]], metric: str) -> str:
    """The hits of one query as aligned text; payloads are truncated at the width of the terminal."""
    room = shutil.get_terminal_size((120, 24)).columns
    rows = [("id", metric, "payload")]
    for hit in hits:
        payload = json.dumps(hit["payload"], ensure_ascii=False) if hit.get("payload") else ""
        rows.append((str(hit["id"]), f"{hit['score']:.4f}", payload))
    if not any(payload for *_, payload in rows[1:]):
        rows = [(id, score, "") for id, score, _ in rows]
    wide, narrow = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {id:<{wide}}  {score:>{narrow}}  {payload}".rstrip() for id, score, payload in rows]
    lines = [line if len(line) <= room else line[: room - 1] + "…" for line in lines]
    return "\n".join([f"query {query}", *(lines if hits else ["  nothing found"])])


def _write(out: Path, answers: Answers) -> int:
    """Write all hits to one file atomically, and return the number of queries."""
    count = 0
    with replacing(out) as file:
        if out.suffix == ".jsonl":
            for query, hits in _by_query(answers):
                file.write((json.dumps({"query": query, "hits": hits}, ensure_ascii=False) + "\n").encode())
                count += 1
            return count
        parts = list(answers)
        queries = [query for batch, _ in parts for query in batch]
        ids, scores = (np.concatenate([getattr(hits, name) for _, hits in parts]) for name in ("ids", "scores"))
        plain = ids.astype(np.str_) if ids.dtype == np.object_ else ids   # a file must hold no pickled objects
        np.savez(file, queries=np.array(queries), ids=plain, scores=scores)
    return len(queries)


def _holds_hits(path: Path) -> bool:
    """Whether ``path`` is a file of hits that an earlier search wrote."""
    if path.suffix == ".npz":
        names = zipfile.ZipFile(path).namelist() if zipfile.is_zipfile(path) else []
        return set(names) == {"queries.npy", "ids.npy", "scores.npy"}
    with path.open("rb") as file:
        return file.read(9) == b'{"query":'
