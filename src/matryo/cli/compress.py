"""Find the code of so many bytes per vector that keeps the most, and write the vectors in it.

SOURCE is a .npy, .csv, .tsv, .parquet, .arrow, .feather or .jsonl file, an embeddings folder, an index, or - for
standard input. Every candidate is tried on held-out queries; one above plain numbers of the first axes must prove that
it is better. With --out the codes are written to a folder, with the map that `matryo.Compression.load` reads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.cli.parts.reading import add_source_arguments, open_sources
from matryo.errors import InputError

if TYPE_CHECKING:
    from matryo.retrieve.compress import Compression

__all__ = ["add_arguments", "run"]

_TO = ("numpy", "halfvec", "int8", "bit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SOURCE, the budget, and what is written."""
    parser.add_argument("source", metavar="SOURCE", help="vectors to compress; - is standard input")
    parser.add_argument("--bytes", type=int, default=64, metavar="N", help="bytes per vector, at most [64]")
    parser.add_argument("--kinds", metavar="KIND,…", help="codes that may be chosen, of float16, int8, int4, bit and "
                        "product (default: all)")  # fmt: skip
    parser.add_argument("--queries", metavar="FILE", help="vectors that will be searched with, if they differ")
    parser.add_argument("--rotation", type=Path, metavar="MAP", help="a map of matryo retrofit, to be tried, too")
    parser.add_argument("--metric", choices=["cosine", "ip", "l2"], default="cosine", help="how vectors are compared "
                        "[cosine]")  # fmt: skip
    parser.add_argument("--k", type=int, default=10, help="nearest vectors that must be found [10]")
    parser.add_argument("--rerank", action="store_true", help="choose for searches that re-rank with full vectors")
    parser.add_argument("--shortlist", type=int, default=100, metavar="N", help="rows that are re-ranked [100]")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="P", help="of all bounds together [0.95]")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of held-out queries [0]")
    fixed = parser.add_argument_group("without a choice")
    fixed.add_argument("--bits", type=int, choices=[1, 4, 8, 16], help="fit numbers of so many bits instead")
    fixed.add_argument("--dim", type=int, metavar="M", help="with --bits: of the first M axes (default: all)")
    add_source_arguments(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--out", type=Path, metavar="DIR", help="write the map, codes.npy and the ids to this folder")
    out.add_argument("--to", choices=_TO, help="write to DIR what a database takes, too: lines of pgvector's halfvec "
                     "or bit, int8.npy, or decoded vectors")  # fmt: skip
    out.add_argument("--json", action="store_true", help="print the choice as a JSON object")
    out.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Choose, encode and print."""
    from matryo.retrieve.compress.folder import as_json, check_free

    if args.out is not None:
        if args.source == "-":
            cure = "write standard input to a file first"
            raise InputError("--out reads SOURCE twice", got="standard input", cure=cure)
        check_free(args.out)
    elif args.to is not None:
        raise InputError("--to writes to a folder", got="no --out", cure="add --out DIR")
    compression = _fitted(args)
    if args.out is not None:
        _write(args, compression)
    print(json.dumps(as_json(compression), ensure_ascii=False) if args.json else _text(args, compression))


def _fitted(args: argparse.Namespace) -> Compression:
    """The compression that is chosen, or the one that was asked for."""
    from matryo.retrieve.compress import Compression
    from matryo.retrieve.compress.choosing import KINDS
    from matryo.retrieve.compress.exports import NEEDS
    from matryo.retrofit import Retrofit

    need = NEEDS.get(args.to or "")
    kinds: tuple[str, ...] = KINDS if args.kinds is None else tuple(args.kinds.split(","))
    retrofit = None if args.rotation is None else Retrofit.load(args.rotation)
    settings: dict[str, Any] = {"metric": args.metric, "retrofit": retrofit, "seed": args.seed,
                                "progress": not args.quiet}  # fmt: skip
    if args.bits is None:
        if args.dim is not None:
            raise InputError("--dim applies to --bits", got="no --bits", cure="add --bits 4")
        if need is not None and need not in kinds:
            raise InputError(f"--to {args.to} needs --kinds {need}", got=args.kinds, cure="drop --kinds")
    elif need is not None and {16: "float16", 8: "int8", 4: "int4", 1: "bit"}[args.bits] != need:
        raise InputError(f"--to {args.to} needs codes of {need}", got=f"--bits {args.bits}", cure="drop --bits")
    [source] = open_sources(args, [args.source])
    if args.bits is not None:
        return Compression.fit(source, args.dim, args.bits, **settings)
    queries = None if args.queries is None else open_sources(args, [args.queries])[0]
    return Compression.choose(
        source, args.bytes, queries, kinds=kinds if need is None else (need,), k=args.k, rerank=args.rerank,
        shortlist=args.shortlist, confidence=args.confidence, **settings,
    )  # fmt: skip


def _write(args: argparse.Namespace, compression: Compression) -> None:
    """Encode SOURCE batch by batch; the folder appears when it is complete."""
    from matryo.files import new_file, write_json
    from matryo.folders import replacing_folder, write_record
    from matryo.retrieve.compress.exports import FILES
    from matryo.retrieve.compress.folder import CODES, IDS, KIND, check_free, write_into

    with replacing_folder(args.out) as work:
        write_into(work, compression)
        with new_file(work / CODES) as codes:
            if args.to is None:
                ids = _encode(args, compression, codes, None)
            else:
                with new_file(work / FILES[args.to]) as exported:
                    ids = _encode(args, compression, codes, exported)
        if ids:
            write_json(work / IDS, ids)
        write_record(work, KIND)
        check_free(args.out)


def _encode(args: argparse.Namespace, compression: Compression, codes: Any, exported: Any) -> list[Any]:
    """Write the codes, and the export; return the ids, if there are any."""
    import numpy as np

    from matryo.retrieve.compress.exports import write_header, write_rows

    count, width = compression.provenance["rows"], compression.bytes_per_vector
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, width)}
    np.lib.format.write_array_header_1_0(codes, header)
    if exported is not None:
        write_header(exported, compression, args.to, count)
    [source] = open_sources(args, [args.source])
    ids: list[Any] = []
    row = 0
    for batch in source.batches():
        some = compression.encode(batch.vectors)
        codes.write(some.tobytes())
        own = None if batch.ids is None else list(batch.ids)
        ids += own or []
        if exported is not None:
            write_rows(exported, compression, args.to, some, own or range(row, row + len(some)))
        row += len(some)
    if row != count:
        raise InputError(f"SOURCE had {count} rows a moment ago", got=row, cure="compress a copy that does not change")
    return ids


def _text(args: argparse.Namespace, compression: Compression) -> str:
    lines = [str(compression)]
    if args.out is not None:
        size = compression.provenance["rows"] * compression.bytes_per_vector
        lines += [f"codes: {args.out / 'codes.npy'}, {size:,} bytes"]
        lines += [f"export: {args.out / _exported(args.to)}"] if args.to is not None else []
    return "\n".join(lines)


def _exported(to: str) -> str:
    from matryo.retrieve.compress.exports import FILES

    return FILES[to]
