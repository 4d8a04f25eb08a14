"""Create an index of vectors, add to it, change it, or describe it.

SOURCE is a .npy, .csv, .tsv, .parquet, .arrow, .feather or .jsonl file, an embeddings folder, another index, or - for
standard input (JSON lines or .npy bytes). A JSON line is {"id": …, "vector": […], "payload": {…}}; "embedding" works
too. Other keys, and other columns of tables, are payload. Without SOURCE, the index in FOLDER is described.

Each batch is durable before the next one is read. If interrupted, the index keeps all added vectors, and the message
shows the command that resumes. A file whose rows have no ids is not added twice, unless --again is given. The index
records the model that encoded an embeddings folder, or that --model names, and `matryo search` encodes texts and images
with it. Actions run in this order: --delete, SOURCE …, --rotate, --compact, --build (or
--sketch, --partition, --graph), --verify, --backup.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from matryo.arguments import as_number
from matryo.cli.parts.added import Numbered, check_not_added, numbered_sources, record_added
from matryo.cli.parts.compressing import add_code_arguments, check_code_options, check_codes, code_of, filling_of
from matryo.cli.parts.model import common_model, record_model
from matryo.cli.parts.reading import add_source_arguments, open_sources, parse_ids
from matryo.cli.parts.subjects import parse_dims
from matryo.errors import InputError, MatryoError, NestingError
from matryo.nesting import Nesting
from matryo.progress import tqdm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.retrieve.compress.filling import Filling
    from matryo.retrieve.description import Description
    from matryo.retrieve.shards.manifest import AnyIndex
    from matryo.retrieve.sources import Source
    from matryo.retrieve.store import Batch

__all__ = ["add_arguments", "run"]

_SETTINGS = ("dims", "metric", "dtype", "int8_up_to", "shards")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, SOURCE …, the settings of a new index, and the actions on an existing one."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the index: a new or existing folder")
    parser.add_argument("sources", nargs="*", default=[], metavar="SOURCE", help="vectors to add; - is standard input")
    new = parser.add_argument_group("a new index")
    new.add_argument("--dims", metavar="M,M,…", help="dims that searches can read, the last one that of the vectors "
                     "(default: the nesting of the source, else 8, 16, 32, …)")  # fmt: skip
    new.add_argument("--metric", choices=["cosine", "ip", "l2"], help="how vectors are compared [cosine]")
    new.add_argument("--dtype", choices=["float32", "float16"], help="precision on disk [float32]")
    new.add_argument("--shards", type=int, metavar="N", help="divide the rows between N folders, by a hash of their "
                     "ids: for an index that is to be served by several machines [one folder]")  # fmt: skip
    new.add_argument("--int8-up-to", type=int, metavar="M", help="also store 8-bit copies of the dims up to M [0]")
    add_code_arguments(new)
    parser.add_argument("--model", type=Path, metavar="RUN", help="the run folder of the model that made the vectors, "
                        "for queries that are texts or images [the run around an embeddings folder]")  # fmt: skip
    add_source_arguments(parser)
    adding = parser.add_argument_group("adding")
    adding.add_argument("--ids", type=Path, metavar="FILE", help="ids of the rows: text with one id per line, or .npy")
    adding.add_argument("--payload", metavar="NAME,…", help="columns or keys to store as payload, or none [all others]")
    adding.add_argument("--upsert", action="store_true", help="replace rows with existing ids")
    adding.add_argument("--again", action="store_true", help="add a SOURCE without ids although its rows are there")
    adding.add_argument("--skip", type=int, default=0, metavar="N", help="skip the first N rows [0]")
    adding.add_argument("--batch", type=int, metavar="N", help="rows per commit [64 MB]")
    adding.add_argument("--migrate", type=Path, metavar="MAP", help="map the vectors of an old model into the space of "
                        "a new one, by a map of matryo retrofit --migrate")  # fmt: skip
    care = parser.add_argument_group("an existing index")
    care.add_argument("--delete", nargs="+", metavar="ID", help="remove these rows")
    care.add_argument("--compact", action="store_true", help="free the space of deleted and replaced rows")
    care.add_argument("--share", type=float, metavar="S", help="with --compact: use this share of one core, for "
                      "example 0.25; other processes can search meanwhile")  # fmt: skip
    care.add_argument("--rotate", nargs="?", const="auto", metavar="MAP", help="store the vectors rotated, so that "
                      "their first dims hold most of every score: by a map of matryo retrofit, or one fitted to them")
    care.add_argument("--build", action="store_true", help="build guides, which speed up searches: those built before, "
                      "else a sketch and partitions")  # fmt: skip
    care.add_argument("--sketch", action="store_true", help="build a sketch, for faster exact search")
    care.add_argument("--partition", nargs="?", type=int, const=True, metavar="DIM",
                      help="build partitions (IVF), for plans with probe [DIM: chosen from the vectors]")  # fmt: skip
    care.add_argument("--graph", type=int, metavar="DIM", help="build a graph (HNSW), for plans with ef; needs faiss")
    care.add_argument("--verify", action="store_true", help="read every byte and check all checksums")
    care.add_argument("--backup", type=Path, metavar="COPY", help="write a verified copy to the new folder COPY")
    parser.add_argument("--json", action="store_true", help="print the description as a JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Open or create the index, change it, and describe it."""
    from matryo.retrieve import Index
    from matryo.retrieve.shards import index_there, open_index

    _check_options(args)
    payload = None if args.payload is None else [] if args.payload == "none" else args.payload.split(",")
    sources = _migrated(args, open_sources(args, args.sources, payload))
    new = not index_there(args.folder)
    if new and (not sources or args.delete):
        cure = f"check the path, or create an index: matryo index {args.folder} SOURCE"
        raise InputError("there is no index to describe or change", got=args.folder, cure=cure)
    model, numbered = common_model(args, sources), numbered_sources(args, sources)
    parts = _parts(args, sources)
    if new:
        head: list[_Part | _End] = []   # read before the folder is created: a bad source leaves no empty index
        while not head or isinstance(head[-1], _End):
            head += [next(parts, None) or _nothing_to_add(args)]
        parts = chain(head, parts)
    changing = bool(sources or args.delete or args.compact or args.model or args.rotate or _guides(args) is not None)
    filling = filling_of(args, new=new)
    with _create(args, sources, filling) if new else open_index(args.folder, writable=changing) as index:
        if not new:
            _check_settings(args, index, sources)
            check_not_added(args, index, numbered)
        record_model(args, index, model)
        if args.delete:
            index.delete(parse_ids(index, args.delete))
        added = _add(args, index, sources, parts, numbered, filling) if sources else 0
        if filling is not None and isinstance(index, Index) and (recall := filling.recall(index)) is not None:
            index.record_recall(recall)
        if args.rotate:
            index.rotate(args.rotate, progress=not args.quiet)
        _compact_and_build(args, index, new)
        if args.verify:
            index.verify()
        if args.backup:
            index.backup(args.backup)
    with open_index(args.folder) as index:   # reopened, so that the writer's log is in the file and its size counts
        description = index.describe()
    if args.json:
        print(json.dumps(description.to_dict() | {"added": added}, ensure_ascii=False))
    else:
        print(_text(description, args, added, new))


def _migrated(args: argparse.Namespace, sources: list[Source]) -> list[Source]:
    """The sources, mapped by --migrate, whose metric becomes that of a new index."""
    if args.migrate is None:
        return sources
    from matryo.cli.parts.migrating import migrated
    from matryo.retrofit import Migration

    migration = Migration.load(args.migrate)
    if args.metric not in (None, migration.metric):
        cure = f"drop --metric, or fit the map with --metric {args.metric}"
        raise InputError(f"{args.migrate} was fitted for metric {migration.metric}", got=args.metric, cure=cure)
    args.metric = migration.metric
    return [migrated(source, migration, args.migrate) for source in sources]


def _compact_and_build(args: argparse.Namespace, index: AnyIndex, new: bool) -> None:
    guides = _guides(args)
    try:
        if args.compact or new:   # a new index ends with as few segments as possible
            index.compact(share=args.share)
        if guides is not None:
            index.build(**guides)
    except KeyboardInterrupt:
        share = f" --share {args.share:g}" if args.share is not None else ""
        options = f"--compact{share}{' --build' if guides is not None else ''}"
        command = f"matryo index {args.folder} {options}"
        message = f"all {_counted(len(index))} are in {args.folder}: to resume, run {command}"
        raise KeyboardInterrupt(message) from None


def _guides(args: argparse.Namespace) -> dict[str, Any] | None:
    """The arguments of ``Index.build``; None if no guide is requested."""
    guides = {"sketch": args.sketch or None, "partition": args.partition, "graph": args.graph}
    return guides if args.build or any(guides.values()) else None


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────


def _check_options(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect, or would be refused after the work."""
    from matryo.retrieve.store.backup import check_new

    names = (*_SETTINGS, "ids", "upsert", "again", "skip", "batch", "format", "id_column", "vector_column", "payload",
             "migrate", "bytes", "codes")  # fmt: skip
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, False, 0)]
    if given and not args.sources:
        raise InputError(f"{given[0]} applies to a SOURCE", got="no SOURCE", cure="add the path of the vectors")
    if args.ids and (args.id_column or len(args.sources) > 1):
        got = "--ids and --id-column" if args.id_column else f"{len(args.sources)} sources"
        raise InputError("--ids replaces the ids of a single SOURCE", got=got, cure="drop one")
    if args.share is not None:
        as_number(args.share, "--share", 0.01, 1, cure="use --share 0.25")
        if not args.compact:
            raise InputError("--share applies to --compact", got="no --compact", cure="add --compact")
    check_code_options(args)
    if args.backup is not None:
        check_new(args.backup)
    for name in ("partition", "graph"):
        dim = getattr(args, name)
        if dim is not None and dim < 1:
            raise InputError(f"--{name} must be a dim of the index", got=dim, cure="use one of --dims")


def _create(args: argparse.Namespace, sources: Sequence[Source], filling: Filling | None) -> AnyIndex:
    from matryo.retrieve import Index
    from matryo.retrieve.shards import ShardedIndex

    given = {name: getattr(args, name) for name in ("metric", "dtype", "int8_up_to")}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    code = code_of(args, sources, filling)
    nesting = _nesting(args.dims, sources) if code is None else None
    if args.shards is not None:
        return ShardedIndex.create(args.folder, nesting, shards=args.shards, **settings)
    return Index.create(args.folder, nesting, compression=code, **settings)


def _nesting(text: str | None, sources: Sequence[Source]) -> Nesting:
    dim = sources[0].dim
    dims = parse_dims(text)
    if dims is None:
        own = next((source.nesting.dims for source in sources if source.nesting is not None), None)
        powers = (2**power for power in range(3, dim.bit_length()))
        dims = sorted({*(m for m in own or powers if m < dim), dim})
    elif dims[-1] != dim:
        raise NestingError(
            f"--dims must end with {dim}, the dim of the vectors",
            got=text,
            cure=f"use --dims {','.join(map(str, [*(m for m in dims if m < dim), dim]))}",
        )
    return Nesting(dims)


def _check_settings(args: argparse.Namespace, index: AnyIndex, sources: Sequence[Source]) -> None:
    """Raise if an option or a source contradicts the settings of the existing index."""
    check_codes(args, index)
    about = index.about
    settings: dict[str, Any] = {"metric": about.metric, "dtype": about.dtype, "int8_up_to": about.int8_up_to}
    settings["dims"] = ",".join(map(str, about.nesting.dims))
    settings["shards"] = len(getattr(index, "shards", ())) or None
    for name in _SETTINGS:
        value = getattr(args, name)
        if value is not None and value != settings[name]:
            option = f"--{name.replace('_', '-')}"
            created = f"with {option} {settings[name]}" if settings[name] is not None else f"without {option}"
            raise InputError(
                f"{args.folder} was created {created}, which cannot change",
                got=f"{option} {value}",
                cure="drop the option, or create another index",
            )
    if sources and sources[0].dim != index.nesting.dim:
        raise InputError(
            f"the vectors of {args.folder} have {index.nesting.dim} dims",
            got=f"{sources[0].dim} in {sources[0].name}",
            cure="encode every row with the same model, or create another index",
        )


# ── adding ────────────────────────────────────────────────────────────────────────────────────────────────────


class _Part(NamedTuple):
    """A batch of a source; ``first`` is the row number of its first row."""

    source: Source
    first: int
    batch: Batch


class _End(NamedTuple):
    """The end of a source, of which all rows are durable, with its number of rows."""

    source: Source
    rows: int


def _nothing_to_add(args: argparse.Namespace) -> NoReturn:
    raise InputError("there must be a row to add", got=f"none after --skip {args.skip}", cure="skip fewer rows")


def _parts(args: argparse.Namespace, sources: Sequence[Source]) -> Iterator[_Part | _End]:
    """The batches of all sources after the skipped rows, with the ids of --ids, and the end of each source."""
    from matryo.retrieve.sources import read_ids

    ids = None if args.ids is None else read_ids(args.ids)
    for number, source in enumerate(sources):
        if ids is not None and source.count not in (None, len(ids)):
            raise _wrong_count(args.ids, len(ids), source, f"{source.count:,}")
        first = args.skip if number == 0 else 0
        for batch in source.batches(args.batch, first):
            after = first + len(batch.vectors)
            if ids is not None:
                if after > len(ids):
                    raise _wrong_count(args.ids, len(ids), source, f"{after:,} or more")
                batch = batch._replace(ids=ids[first:after])
            if args.upsert and batch.ids is None:
                raise InputError("--upsert needs ids", got=f"none in {source.name}", cure="pass them: --ids FILE")
            yield _Part(source, first, batch)
            first = after
        if ids is not None and first < len(ids):
            raise _wrong_count(args.ids, len(ids), source, f"{first:,}")
        yield _End(source, first)


def _wrong_count(path: Path, count: int, source: Source, rows: str) -> InputError:
    rule = f"{path} must have one id per row of {source.name}"
    return InputError(rule, got=f"{count:,} ids for {rows} rows", cure="check both files")


def _add(
    args: argparse.Namespace, index: AnyIndex, sources: Sequence[Source], parts: Iterator[_Part | _End],
    numbered: Sequence[Numbered], filling: Filling | None,
) -> int:  # fmt: skip
    """Add all rows and return their number; after an error or an interrupt, show how to resume."""
    counts = [source.count for source in sources]
    total = None if None in counts else sum(count or 0 for count in counts) - args.skip
    before, done, source, row = len(index), 0, sources[0], args.skip
    with tqdm(desc="index", total=total, unit="row", unit_scale=True, delay=2, disable=args.quiet) as bar:
        try:
            for part in parts:
                if isinstance(part, _End):
                    record_added(index, part.source, part.rows, numbered)
                    continue
                source, row, count = part.source, part.first, len(part.batch.vectors)
                ids = _store(args, index, part)
                if filling is not None and ids is not None:
                    filling.see(part.batch.vectors, ids)
                done, row = done + count, row + count
                bar.update(count)
        except (MatryoError, KeyboardInterrupt) as error:
            bar.close()
            if not args.upsert:
                row += len(index) - before - done   # a batch that was committed just before the interrupt
            rest = [] if source is sources[0] else [later.name for later in sources[sources.index(source) :]]
            options = " ".join([*rest, *([f"--skip {row}"] if row else [])])
            message = f"{_counted(len(index))} in {args.folder}" + (f": resume with {options}" if options else "")
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(message) from None
            raise InputError(f"{error}; {message}") from error
    return done


def _store(args: argparse.Namespace, index: AnyIndex, part: _Part) -> list[Any] | None:
    """Add or replace the rows of a part, and return the ids of added ones.

    An error of the index is prefixed with the source and its rows.
    """
    try:
        if not args.upsert:
            return index.add(*part.batch)
        index.upsert(*part.batch)
        return None
    except InputError as error:
        last = part.first + len(part.batch.vectors) - 1
        raise InputError(f"{part.source.name}, rows {part.first} to {last}: {error}") from error


# ── description ───────────────────────────────────────────────────────────────────────────────────────────────


def _text(description: Description, args: argparse.Namespace, added: int, new: bool) -> str:
    changes = [f"{added:,} added"] if args.sources else []
    changes += [f"{len(args.delete):,} deleted"] if args.delete else []
    changes += ["all checksums match"] if args.verify else []
    changes += [f"copied to {args.backup}"] if args.backup else []
    first, *lines = str(description).splitlines()
    lines.insert(0, first + (f" ({', '.join(changes)})" if changes else ""))
    if description.unguided:
        lines += [f"  {_counted(description.unguided)} without these guides: matryo index {args.folder} --compact"]
    if new:
        build = "" if description.guides else f"faster: matryo index {args.folder} --build, then "
        faster = "" if description.codes else f"; {build}matryo plan {args.folder}"
        lines += [f"next: matryo search {args.folder} QUERIES{faster}"]
    return "\n".join(lines)


def _counted(count: int) -> str:
    return f"{count:,} vector{'s' * (count != 1)}"
