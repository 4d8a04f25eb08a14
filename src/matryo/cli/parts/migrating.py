"""Migration between models, for the verbs: pairs of vectors of the same items, and sources whose vectors are mapped."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.cli.parts.reading import open_sources
from matryo.errors import InputError
from matryo.retrieve.store.origin import title_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.arrays import Floats
    from matryo.retrieve.sources import Source
    from matryo.retrieve.store import Batch
    from matryo.retrofit import Migration

__all__ = ["fit_migration", "migrated"]

_MOST = 20_000   # pairs that are used; more change little


def fit_migration(args: argparse.Namespace) -> Migration:
    """Fit the map from SOURCE to --migrate: rows are matched by their ids, or by their order if they have none."""
    from matryo.retrofit import Migration

    [old], new = open_sources(args, [args.source]), _opened(args, args.migrate)
    return Migration.fit(*_pairs(old, new), metric=args.metric, confidence=args.confidence, seed=args.seed,
                         old_model=old.model, new_model=new.model)  # fmt: skip


def _opened(args: argparse.Namespace, path: str) -> Source:
    from matryo.retrieve.sources import open_source

    return open_source(path, format=args.format, id_column=args.id_column, vector_column=args.vector_column,
                       payload_columns=())  # fmt: skip


def _pairs(old: Source, new: Source) -> tuple[Floats, Floats]:
    """The vectors of the items that both sources have."""
    vectors, ids = _rows(new)
    if ids is None and None not in (old.count, new.count) and old.count != new.count:
        rule = f"without ids, {new.name} must have a row for each of {old.name}"
        raise InputError(rule, got=f"{new.count:,} and {old.count:,} rows", cure="add ids to both files")
    found, names = _rows(old, None if ids is None else frozenset(ids))
    if (ids is None) != (names is None):
        got = f"none in {(new if ids is None else old).name}"
        raise InputError("both files need ids, or neither", got=got, cure="name the column: --id-column NAME")
    if ids is None or names is None:
        return found, vectors
    place = {name: row for row, name in enumerate(ids)}
    return found, vectors[[place[name] for name in names]]


def _rows(source: Source, wanted: frozenset[Any] | None = None) -> tuple[Floats, list[Any] | None]:
    """The first rows of a source, or the first of those with ``wanted`` ids, and their ids if it has any."""
    parts: list[Floats] = []
    ids: list[Any] | None = None
    for batch in source.batches(_MOST):
        if batch.ids is None:
            parts.append(batch.vectors)
        else:
            names = np.asarray(batch.ids).tolist()
            rows = [row for row, name in enumerate(names) if wanted is None or name in wanted]
            ids = [*(ids or []), *(names[row] for row in rows)]
            parts.append(batch.vectors[rows])
        if sum(map(len, parts)) >= _MOST:
            break
    return np.concatenate(parts)[:_MOST], None if ids is None else ids[:_MOST]


def migrated(source: Source, migration: Migration, path: object) -> Source:
    """The source with its vectors in the space of the new model."""
    ours, theirs = title_of(source.model), title_of(migration.provenance.get("old_model") or "")
    if source.dim != migration.old_dim or (ours and theirs and ours != theirs):
        rule = f"{path} is for vectors of {theirs or 'a model'} with {migration.old_dim} columns"
        got = f"{source.dim}{f' of {ours}' if ours else ''} in {source.name}"
        raise InputError(rule, got=got, cure="fit a migration from the model of these vectors")

    def read(rows: int, skip: int) -> Iterator[Batch]:
        for batch in source.read(rows, skip):
            yield batch._replace(vectors=migration.transform(batch.vectors))

    new = migration.provenance.get("new_model") or ""
    return replace(source, dim=migration.new_dim, read=read, nesting=None, model=new)
