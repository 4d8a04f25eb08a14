"""Make an index of vectors, or add to one, and say what is in it.

SOURCE is a .npy, .parquet, .arrow, .feather or .jsonl file, an embeddings folder, another index, or - for standard
input (JSON lines or .npy bytes). A JSON line is {"id": …, "vector": […], "payload": {…}}; "embedding" is read too, and
other keys are payload, as the other columns of a table are. Without SOURCE, the index in FOLDER is described.

Each batch is on the disk before the next is read: stopped at any moment, the index holds what was added, and the
command that goes on is named. What is asked for is done in this order: --delete, SOURCE …, --compact, --build (or
--sketch, --partition, --graph), --verify.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.errors import InputError
    from matryo.nesting import Nesting
    from matryo.retrieve import Index
    from matryo.retrieve.sources import Source
    from matryo.retrieve.store import Batch

__all__ = ["add_arguments", "run"]

_CREATED = ("dims", "metric", "dtype", "int8_up_to")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, SOURCE …, how a new index is made, and what is done to one."""
    from matryo.cli.reading import add_source_arguments

    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the index: a new folder, or one that has it")
    parser.add_argument("sources", nargs="*", default=[], metavar="SOURCE", help="vectors to add; - is standard input")
    new = parser.add_argument_group("a new index")
    new.add_argument("--dims", metavar="M,M,…", help="dims a search may read, the vectors' own last (default: those of "
                     "embeddings or an index, else 8, 16, 32, …)")  # fmt: skip
    new.add_argument("--metric", choices=["cosine", "ip", "l2"], help="how vectors are compared [cosine]")
    new.add_argument("--dtype", choices=["float32", "float16"], help="precision on disk [float32]")
    new.add_argument("--int8-up-to", type=int, metavar="M", help="keep dims up to M in 8 bits too [0]")
    add_source_arguments(parser)
    adding = parser.add_argument_group("adding")
    adding.add_argument("--ids", type=Path, metavar="FILE", help="ids of the rows in order: text, one a line, or .npy")
    adding.add_argument("--payload", metavar="NAME,…", help="columns or keys to keep as payload, or none [all others]")
    adding.add_argument("--upsert", action="store_true", help="replace rows whose ids are there")
    adding.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N rows [0]")
    adding.add_argument("--batch", type=int, metavar="N", help="rows added at a time [64 MB of them]")
    care = parser.add_argument_group("an index that is there")
    care.add_argument("--delete", nargs="+", metavar="ID", help="remove these rows")
    care.add_argument("--compact", action="store_true", help="give back the space of what was deleted or replaced")
    care.add_argument("--build", action="store_true", help="build what speeds searches up: what was built before, else "
                      "a sketch and partitions")  # fmt: skip
    care.add_argument("--sketch", action="store_true", help="build a sketch, with which exact search reads less")
    care.add_argument("--partition", nargs="?", type=int, const=True, metavar="DIM",
                      help="build partitions, for plans with a probe or in int8 (default: at a dim that suits)")
    care.add_argument("--graph", type=int, metavar="DIM", help="build a graph, for plans with ef; needs faiss")
    care.add_argument("--verify", action="store_true", help="read every byte; a flipped one is named with its file")
    parser.add_argument("--json", action="store_true", help="print what is there as a JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Open or create, change what was asked for, describe."""
    from matryo.cli.reading import open_sources, parse_ids
    from matryo.errors import InputError
    from matryo.retrieve import Index

    _check_options(args)
    payload = None if args.payload is None else [] if args.payload == "none" else args.payload.split(",")
    sources = open_sources(args, args.sources, payload)
    new = not _is_there(args.folder)
    if new and (not sources or args.delete):
        cure = "check the path, or name a SOURCE to make one of"
        raise InputError("there is no index to describe or change", got=args.folder, cure=cure)
    reading = _parts(args, sources)
    if new:
        first = next(reading, None)   # where it cannot be read, nothing is created
        if first is None:
            raise InputError("there must be a row to add", got=f"none after --skip {args.skip}", cure="skip fewer")
        reading = chain([first], reading)
    changing = bool(sources or args.delete or args.compact or _guides(args) is not None)
    with _create(args, sources) if new else Index.open(args.folder, writable=changing) as index:
        if not new:
            _check_as_created(args, index, sources)
        if args.delete:
            index.delete(parse_ids(index, args.delete))
        added = _add(args, index, sources, reading) if sources else 0
        _settle(args, index, new)
        if args.verify:
            index.verify()
    with Index.open(args.folder) as index:   # closed in between, the log of the writer is in the file
        facts = _facts(index)
    if args.json:
        print(json.dumps(facts | {"added": added}, ensure_ascii=False))
    else:
        print(_described(facts, args, added, new))


def _is_there(folder: Path) -> bool:
    """Whether there is an index, and not just what a creation that was killed leaves."""
    from matryo.retrieve.store.sql import records
    from matryo.retrieve.store.sql.database import DATABASE, Database

    if not (folder / DATABASE).exists():
        return False
    database = Database(folder / DATABASE, "ro")
    try:
        with database.reading():
            return records.exists(database)
    finally:
        database.close()


def _settle(args: argparse.Namespace, index: Index, new: bool) -> None:
    """Compact and build, where that is asked for."""
    guides = _guides(args)
    try:
        if args.compact or new:   # an index made in one go is searched in as few pieces as can be
            index.compact()
        if guides is not None:
            index.build(**guides)
    except KeyboardInterrupt:
        way = f"--compact{' --build' if guides is not None else ''}"
        raise KeyboardInterrupt(f"{_counted(len(index), 'vector')} in {args.folder}, all of them: go on with {way} and "
                                "no SOURCE") from None  # fmt: skip


def _guides(args: argparse.Namespace) -> dict[str, Any] | None:
    """What is to be built, as the index takes it; None for nothing."""
    asked = {"sketch": args.sketch or None, "partition": args.partition, "graph": args.graph}
    return asked if args.build or any(asked.values()) else None


# ── what was asked for ────────────────────────────────────────────────────────────────────────────────────────


def _check_options(args: argparse.Namespace) -> None:
    """Raise where an option would silently do nothing."""
    from matryo.errors import InputError

    names = (*_CREATED, "ids", "upsert", "skip", "batch", "format", "id_column", "vector_column", "payload")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, False, 0)]
    if given and not args.sources:
        raise InputError(f"{given[0]} says how rows are added", got="no SOURCE", cure="name the vectors to add")
    if args.ids and (args.id_column or len(args.sources) > 1):
        rule = "--ids is for one SOURCE, whose ids it is instead of"
        raise InputError(rule, got="--id-column" if args.id_column else f"{len(args.sources)}", cure="drop one")
    for name in ("partition", "graph"):
        dim = getattr(args, name)
        if dim is not None and dim < 1:
            raise InputError(f"--{name} must name a dim of the index", got=dim, cure="one of --dims")


def _create(args: argparse.Namespace, sources: Sequence[Source]) -> Index:
    from matryo.retrieve import Index

    return Index.create(
        args.folder,
        _nesting(args.dims, sources),
        metric=args.metric or "cosine",
        dtype=args.dtype or "float32",
        int8_up_to=args.int8_up_to or 0,
    )


def _nesting(dims: str | None, sources: Sequence[Source]) -> Nesting:
    from matryo.cli.evaluate import parse_dims
    from matryo.errors import NestingError
    from matryo.nesting import Nesting

    dim = sources[0].dim
    given = parse_dims(dims)
    if given is None:
        known = next((source.nesting.dims for source in sources if source.nesting is not None), None)
        powers = (2**power for power in range(3, dim.bit_length()))
        given = sorted({*(one for one in known or powers if one < dim), dim})
    elif given[-1] != dim:
        raise NestingError(
            f"--dims must end with {dim}, the dim of the vectors",
            got=dims,
            cure=f"say --dims {','.join(map(str, [*(one for one in given if one < dim), dim]))}",
        )
    return Nesting(given)


def _check_as_created(args: argparse.Namespace, index: Index, sources: Sequence[Source]) -> None:
    """Raise where options ask for another index than the one that is there."""
    from matryo.errors import InputError

    about = index.store.about
    there: dict[str, Any] = {"metric": about.metric, "dtype": about.dtype, "int8_up_to": about.int8_up_to}
    there["dims"] = ",".join(map(str, about.nesting.dims))
    for name in _CREATED:
        asked = getattr(args, name)
        if asked is not None and asked != there[name]:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{args.folder} was created with {option} {there[name]}, and stays so",
                got=f"{option} {asked}",
                cure="drop that option, or make another index",
            )
    if sources and sources[0].dim != index.nesting.dim:
        raise InputError(
            f"the vectors of {args.folder} have {index.nesting.dim} dims",
            got=f"{sources[0].dim} in {sources[0].name}",
            cure="encode every row with one model, or make another index",
        )


# ── adding ────────────────────────────────────────────────────────────────────────────────────────────────────


class _Part(NamedTuple):
    """Rows of a source, the first of which is number ``first``."""

    source: Source
    first: int
    batch: Batch


def _parts(args: argparse.Namespace, sources: Sequence[Source]) -> Iterator[_Part]:
    """The rows of all sources in turn, after those to skip, with the ids of --ids."""
    from matryo.errors import InputError
    from matryo.retrieve.sources import read_ids
    from matryo.retrieve.store import Batch

    ids = None if args.ids is None else read_ids(args.ids)
    for number, source in enumerate(sources):
        if ids is not None and source.count not in (None, len(ids)):
            raise _other_count(args.ids, len(ids), source, f"{source.count:,}")
        first = args.skip if number == 0 else 0
        for batch in source.batches(args.batch, first):
            after = first + len(batch.vectors)
            if ids is not None:
                if after > len(ids):
                    raise _other_count(args.ids, len(ids), source, f"{after:,} or more")
                batch = Batch(batch.vectors, ids[first:after], batch.payload)
            if args.upsert and batch.ids is None:
                raise InputError("--upsert needs ids", got=f"none in {source.name}", cure="give them: --ids FILE")
            yield _Part(source, first, batch)
            first = after
        if ids is not None and first < len(ids):
            raise _other_count(args.ids, len(ids), source, f"{first:,}")


def _other_count(path: Path, count: int, source: Source, rows: str) -> InputError:
    from matryo.errors import InputError

    rule = f"{path} must have an id for each row of {source.name}"
    return InputError(rule, got=f"{count:,} ids for {rows} rows", cure="check both")


def _add(args: argparse.Namespace, index: Index, sources: Sequence[Source], reading: Iterator[_Part]) -> int:
    """Add everything; where that ends early, say what is there and how to go on."""
    from tqdm import tqdm

    from matryo.errors import InputError, MatryoError

    counts = [source.count for source in sources]
    total = None if None in counts else sum(count or 0 for count in counts) - args.skip
    before, done, source, row = len(index), 0, sources[0], args.skip
    with tqdm(desc="index", total=total, unit="row", unit_scale=True, delay=2, disable=args.quiet) as bar:
        try:
            for part in reading:
                source, row, count = part.source, part.first, len(part.batch.vectors)
                _store(args, index, part)
                done, row = done + count, row + count
                bar.update(count)
        except (MatryoError, KeyboardInterrupt) as error:
            bar.close()
            if not args.upsert:
                row += len(index) - before - done   # a commit that the interrupt kept from being counted
            rest = [] if source is sources[0] else [one.name for one in sources[sources.index(source) :]]
            way = " ".join([*rest, *([f"--skip {row}"] if row else [])])
            told = f"{_counted(len(index), 'vector')} in {args.folder}" + (f": go on with {way}" if way else "")
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(told) from None
            raise InputError(f"{error}; {told}") from error
    return done


def _store(args: argparse.Namespace, index: Index, part: _Part) -> None:
    """Add or replace the rows of a part, durably; what the index refuses is told with where it comes from."""
    from matryo.errors import InputError

    try:
        (index.upsert if args.upsert else index.add)(*part.batch)
    except InputError as error:
        last = part.first + len(part.batch.vectors) - 1
        raise InputError(f"{part.source.name}, rows {part.first} to {last}: {error}") from error


# ── what is there ─────────────────────────────────────────────────────────────────────────────────────────────


def _facts(index: Index) -> dict[str, Any]:
    """The index in names and numbers."""
    about, snapshot, wanted = index.store.about, index.store.snapshot(), index.store.wanted()
    files = [path for path in index.store.path.rglob("*") if path.is_file()]
    return {
        "folder": str(index.store.path),
        "count": len(index),
        "dims": list(about.nesting.dims),
        "metric": about.metric,
        "dtype": about.dtype,
        "int8_up_to": about.int8_up_to,
        "ids": "strings" if snapshot.text_ids else "integers",
        "segments": len(snapshot.segments),
        "guides": {kind: fields.get("dim") for kind, fields in wanted.items()},
        "unguided": sum(len(one) for one in snapshot.segments if wanted.keys() - one.guides.keys()),
        "bytes": sum(path.stat().st_size for path in files),
    }


def _described(facts: dict[str, Any], args: argparse.Namespace, added: int, new: bool) -> str:
    done = [f"{added:,} added"] if args.sources else []
    done += [f"{len(args.delete):,} deleted"] if args.delete else []
    done += ["every checksum matches"] if args.verify else []
    small = f", int8 up to {facts['int8_up_to']}" if facts["int8_up_to"] else ""
    built = ", ".join(f"{kind} at {dim}" if dim else kind for kind, dim in facts["guides"].items())
    lines = [
        f"{args.folder}: {_counted(facts['count'], 'vector')}, {_size(facts['bytes'])} on disk"
        + (f" ({', '.join(done)})" if done else ""),
        f"  dims {', '.join(map(str, facts['dims']))}; {facts['metric']}; {facts['dtype']}{small}; "
        f"ids are {facts['ids']}{f'; {built}' if built else ''}",
    ]
    if facts["unguided"]:
        lines += [f"  {_counted(facts['unguided'], 'vector')} without these: matryo index {args.folder} --compact"]
    if new:
        way = "" if built else f"faster: matryo index {args.folder} --build, then "
        lines += [f"next: matryo search {args.folder} QUERIES; {way}matryo plan {args.folder}"]
    return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
