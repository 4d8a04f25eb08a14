"""The sources that an index has numbered, recognised by their content, so that none is added twice by mistake."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve.shards.manifest import AnyIndex
    from matryo.retrieve.sources import Source

__all__ = ["Numbered", "check_not_added", "numbered_sources", "record_added"]


class Numbered(NamedTuple):
    """A file whose rows have no ids, with its size and the fingerprint of that many bytes."""

    source: Source
    path: Path
    size: int
    digest: str


def numbered_sources(args: argparse.Namespace, sources: Sequence[Source]) -> list[Numbered]:
    """The sources whose rows the index will number; without --again, each content may be given once."""
    from matryo.retrieve.sources import fingerprint

    found: list[Numbered] = []
    for source in sources:
        path = source.without_ids
        if path is None or args.ids:
            continue
        size = path.stat().st_size
        entry = Numbered(source, path.absolute(), size, fingerprint(path, size))
        same = next((other for other in found if other.digest == entry.digest), None)
        if same is not None and not (args.again or args.skip):
            cure = "drop one, or pass --again to add its rows twice"
            raise InputError("a SOURCE without ids is added once", got=f"{same.path.name}, {path.name}", cure=cure)
        found.append(entry)
    return found


def check_not_added(args: argparse.Namespace, index: AnyIndex, numbered: Sequence[Numbered]) -> None:
    """Raise if the rows of a source, or of the beginning of its file, are in the index; --skip says it is known."""
    from matryo.retrieve.sources import fingerprint

    recorded = {} if args.again else index.sources()
    for source, path, size, digest in numbered:
        if args.skip and source.name == args.sources[0]:
            continue
        if digest in recorded:
            raise InputError(
                f"the {recorded[digest]['rows']:,} rows of {source.name} are in {args.folder} already",
                got=f"the content of {recorded[digest]['path']}",
                cure="pass --again to add them once more, or --skip N to add only the rows after the first N",
            )
        for known, facts in recorded.items():
            if facts["path"] == str(path) and facts["size"] < size and fingerprint(path, facts["size"]) == known:
                raise InputError(
                    f"{source.name} has grown since its first {facts['rows']:,} rows were added to {args.folder}",
                    got=f"{size:,} bytes, {facts['size']:,} before",
                    cure=f"add the new rows with --skip {facts['rows']}, or all of them with --again",
                )


def record_added(index: AnyIndex, source: Source, rows: int, numbered: Sequence[Numbered]) -> None:
    """Record that all ``rows`` of a source are in the index, if the index numbered them."""
    for entry in numbered:
        if entry.source is source:
            index.add_source(entry.digest, {"path": str(entry.path), "size": entry.size, "rows": rows})
