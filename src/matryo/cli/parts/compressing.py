"""The code of a new index that keeps no full vectors: chosen from its sources, or loaded."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.retrieve.compress import Compression
    from matryo.retrieve.compress.filling import Filling
    from matryo.retrieve.shards.manifest import AnyIndex
    from matryo.retrieve.sources import Source

__all__ = ["add_code_arguments", "check_code_options", "check_codes", "code_of", "filling_of"]

_OPTIONS = {"dims": "--dims", "dtype": "--dtype", "int8_up_to": "--int8-up-to", "rotate": "--rotate",
            "build": "--build", "sketch": "--sketch", "partition": "--partition", "graph": "--graph",
            "shards": "--shards"}  # fmt: skip


def add_code_arguments(parser: Any) -> None:
    """--bytes and --codes."""
    parser.add_argument("--bytes", type=int, metavar="N", help="store no full vectors but codes of at most N bytes "
                        "each, of the kind that keeps the most neighbours")  # fmt: skip
    parser.add_argument("--codes", metavar="DIR", help="store no full vectors but codes of this compression, which "
                        "matryo compress --out wrote")  # fmt: skip


def check_code_options(args: argparse.Namespace) -> None:
    """Refuse options that an index of codes does not have."""
    if args.bytes is None and args.codes is None:
        return
    if args.bytes is not None and args.codes is not None:
        raise InputError("--bytes chooses a code, --codes gives one", got="both", cure="drop one")
    option = "--bytes" if args.codes is None else "--codes"
    for name, shown in _OPTIONS.items():
        if getattr(args, name) not in (None, False):
            rule = f"{option} stores no full vectors, which {shown} needs"
            raise InputError(rule, got=f"{option} and {shown}", cure=f"drop {shown}")
    if args.bytes is not None and "-" in args.sources:
        cure = "write standard input to a file first, or pass --codes"
        raise InputError("--bytes reads SOURCE twice", got="standard input", cure=cure)


def filling_of(args: argparse.Namespace, *, new: bool) -> Filling | None:
    """Return the measurement of recall among all vectors of a new index of codes, if SOURCE is read twice for it."""
    from matryo.retrieve.compress.filling import Filling

    if not new or args.bytes is None or args.upsert or args.skip:
        return None
    return Filling(args.metric or "cosine")


def code_of(
    args: argparse.Namespace, sources: Sequence[Source], filling: Filling | None
) -> Compression | str | None:
    """Return what ``Index.create`` takes as ``compression``."""
    if args.bytes is None:
        return args.codes   # type: ignore[no-any-return]
    from matryo.retrieve.coded import SCANNED
    from matryo.retrieve.compress import Compression

    def batches() -> Iterator[Any]:
        for source in sources:
            yield from (batch.vectors for batch in source.batches(args.batch))

    rows = batches() if filling is None else filling.sampled(batches())
    return Compression.choose(
        rows, args.bytes, metric=args.metric or "cosine", kinds=SCANNED, progress=not args.quiet
    )


def check_codes(args: argparse.Namespace, index: AnyIndex) -> None:
    """Raise if --bytes or --codes contradicts an existing index."""
    if args.bytes is None and args.codes is None:
        return
    size, cure = index.about.code_bytes, "drop the option, or create another index"
    if not size:
        raise InputError(f"{args.folder} stores full vectors, which cannot change", got="codes", cure=cure)
    if args.bytes is not None and size > args.bytes:
        raise InputError(f"{args.folder} stores codes of {size} bytes, which cannot change", got=args.bytes, cure=cure)
