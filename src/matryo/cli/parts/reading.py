"""Shared by the verbs that read vectors: the options of a SOURCE, opening sources and queries, and parsing ids."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve.shards.manifest import AnyIndex
    from matryo.retrieve.sources import Source

__all__ = ["add_source_arguments", "open_queries", "open_sources", "parse_ids"]


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a SOURCE is read."""
    group = parser.add_argument_group("reading files")
    group.add_argument("--format", choices=["npy", "jsonl", "csv", "parquet", "arrow", "embeddings", "index"],
                       help="format of SOURCE (default: by its name)")  # fmt: skip
    group.add_argument("--id-column", metavar="NAME", help="column or key of the ids [id, if it exists]")
    group.add_argument("--vector-column", metavar="NAME", help="column or key with lists of numbers [vector or "
                       "embedding; in a CSV file else all columns of numbers]")


def open_sources(
    args: argparse.Namespace, paths: Sequence[str], payload: Sequence[str] | None = ()
) -> list[Source]:
    """Open the sources, which must all have the same dim."""
    from matryo.retrieve.sources import open_source

    sources = [
        open_source(path, format=args.format, id_column=args.id_column, vector_column=args.vector_column,
                    payload_columns=payload)
        for path in paths
    ]  # fmt: skip
    for source in sources:
        if source.dim != sources[0].dim:
            raise InputError(
                f"all vectors must have the {sources[0].dim} dims of {sources[0].name}",
                got=f"{source.dim} in {source.name}",
                cure="encode every row with the same model",
            )
    return sources


def open_queries(args: argparse.Namespace, path: str, index: AnyIndex) -> Source:
    """Open the queries, which must have the dim of the index."""
    [source] = open_sources(args, [path])
    if source.dim != index.nesting.dim:
        raise InputError(
            f"queries must have the {index.nesting.dim} dims of {args.folder}",
            got=f"{source.dim} in {source.name}",
            cure="encode them with the model of the index",
        )
    return source


def parse_ids(index: AnyIndex, words: Sequence[str]) -> list[int] | list[str]:
    """Command-line words as ids of the type that the index has."""
    if index.text_ids:
        return list(words)
    ids = []
    for word in words:
        try:
            ids.append(int(word))
        except ValueError:
            raise InputError("the ids of this index are integers", got=repr(word), cure="pass an integer") from None
    return ids
