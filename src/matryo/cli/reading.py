"""What the verbs that read vectors share: how a SOURCE is named and opened, queries that fit, ids as they are typed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve import Index
    from matryo.retrieve.sources import Source

__all__ = ["add_source_arguments", "open_queries", "open_sources", "parse_ids"]


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """How to read a SOURCE, for every verb that reads one."""
    group = parser.add_argument_group("reading files")
    group.add_argument("--format", choices=["npy", "jsonl", "parquet", "arrow", "embeddings", "index"],
                       help="what a SOURCE is (default: as its name says)")  # fmt: skip
    group.add_argument("--id-column", metavar="NAME", help="column or key of the ids [id, if there]")
    group.add_argument("--vector-column", metavar="NAME", help="column or key of the vectors [vector or embedding]")


def open_sources(
    args: argparse.Namespace, paths: Sequence[str], payload: Sequence[str] | None = ()
) -> list[Source]:
    """The sources that were named, which must have one dim."""
    from matryo.errors import InputError
    from matryo.retrieve.sources import open_source

    sources = [
        open_source(path, format=args.format, id_column=args.id_column, vector_column=args.vector_column,
                    payload_columns=payload)
        for path in paths
    ]  # fmt: skip
    for one in sources:
        if one.dim != sources[0].dim:
            raise InputError(
                f"all vectors must have the {sources[0].dim} dims of {sources[0].name}",
                got=f"{one.dim} in {one.name}",
                cure="encode every row with one model",
            )
    return sources


def open_queries(args: argparse.Namespace, index: Index) -> Source:
    """The source of the queries, which must fit the index."""
    from matryo.errors import InputError

    [source] = open_sources(args, [args.queries])
    if source.dim != index.nesting.dim:
        raise InputError(
            f"queries must have the {index.nesting.dim} dims of {args.folder}",
            got=f"{source.dim} in {source.name}",
            cure="encode them with the model of the index",
        )
    return source


def parse_ids(index: Index, words: Sequence[str]) -> list[int] | list[str]:
    """Words of a command line as ids of the kind that the index has."""
    from matryo.errors import InputError

    if index.store.snapshot().text_ids:
        return list(words)
    ids = []
    for word in words:
        try:
            ids.append(int(word))
        except ValueError:
            raise InputError("the ids of this index are integers", got=repr(word), cure="check the ids") from None
    return ids
