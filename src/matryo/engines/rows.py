"""Rows to load into a database: embeddings, an index, a file, arrays or batches, as checked batches with ids.

>>> [batch] = batches_of(np.eye(3))
>>> batch.ids, batch.vectors.dtype, batch.payload
([0, 1, 2], dtype('float32'), [None, None, None])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.embeddings import EmbeddingSet
from matryo.embeddings.rows import as_ids
from matryo.errors import InputError, shown
from matryo.retrieve.index import Index
from matryo.retrieve.sources import Source, open_source
from matryo.retrieve.store import Batch
from matryo.retrieve.store.payload import as_payload

if TYPE_CHECKING:
    from matryo.nesting import Nesting

_BYTES = 16 << 20   # of the vectors of a batch, which is one transaction


class Rows(NamedTuple):
    """Checked rows: float32 vectors, distinct ids of one type, payloads as JSON text or None."""

    vectors: Any
    ids: list[Any]
    payload: list[str | None]


def batches_of(source: Any, ids: Any = None, payload: Any = None) -> Iterator[Rows]:
    """The rows of ``source`` in batches; without ids, rows are numbered from 0.

    ``source`` is an EmbeddingSet, an Index, a path that ``matryo index`` reads, an array, or batches: arrays, tuples
    (vectors, ids, payload) or :class:`Batch`. ``ids`` and ``payload`` belong to an array.
    """
    if (ids is not None or payload is not None) and not _is_array(source):
        raise InputError("ids and payload belong to an array of vectors", got=shown(type(source).__name__),
                         cure="pass batches: (vectors, ids, payload)")
    first, kind, dim = 0, None, None
    for batch in _raw(source, ids, payload):
        vectors = np.ascontiguousarray(batch.vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != (dim or vectors.shape[1]):
            raise InputError("vectors must be rows of one length", got=f"shape {vectors.shape}", cure="check the batch")
        if not np.isfinite(vectors).all():
            bad = first + int(np.argmin(np.isfinite(vectors).all(axis=1)))
            raise InputError("a vector must have finite numbers", got=f"row {bad}", cure="drop it, or encode it again")
        own = range(first, first + len(vectors)) if batch.ids is None else batch.ids
        names = np.asarray(as_ids(own, len(vectors))).tolist()
        kinds = {type(name) for name in names} | ({kind} if kind else set())
        if len(kinds) > 1 or len(set(names)) < len(names):
            raise InputError("ids must be distinct and of one type", got=shown(names), cure="check the ids")
        kind, dim = (type(names[0]) if names else kind), vectors.shape[1]
        yield Rows(vectors, names, as_payload(batch.payload, len(vectors)))
        first += len(vectors)


def nesting_of(source: Any) -> Nesting | None:
    """The nesting that ``source`` records, if any."""
    nesting = source.nesting if isinstance(source, EmbeddingSet | Index | Source) else None
    if nesting is None and isinstance(source, str | Path):
        nesting = open_source(source).nesting
    return nesting if nesting is not None and len(nesting) > 1 else None


def _is_array(source: Any) -> bool:
    return hasattr(source, "__array__") or (isinstance(source, Sequence) and not isinstance(source, str)
                                            and len(source) > 0 and np.ndim(source[0]) == 1
                                            and not isinstance(source[0], Batch))


def _raw(source: Any, ids: Any, payload: Any) -> Iterator[Batch]:
    if isinstance(source, EmbeddingSet):
        step = max(1, _BYTES // (4 * source.dim))
        for start in range(0, len(source), step):
            part = slice(start, start + step)
            labels = None if source.labels is None else source.labels[part].tolist()
            yield Batch(source.vectors[part], source.ids[part], labels and [_described(source, at) for at in labels])
    elif isinstance(source, Index):
        all_ids = source.ids
        step = max(1, _BYTES // (4 * source.nesting.dim))
        for start in range(0, len(all_ids), step):
            some = all_ids[start : start + step].tolist()
            vectors, fields = source.get(some)
            yield Batch(vectors, some, fields)
    elif isinstance(source, str | Path | Source):
        opened = source if isinstance(source, Source) else open_source(source)
        yield from opened.batches(max(1, _BYTES // (4 * opened.dim)))
    elif _is_array(source):
        vectors = np.asarray(source)
        step = max(1, _BYTES // (4 * max(1, vectors.shape[-1])))
        for start in range(0, len(vectors), step):
            part = slice(start, start + step)
            yield Batch(vectors[part], None if ids is None else ids[part], None if payload is None else payload[part])
    elif isinstance(source, Iterable):
        for batch in source:
            yield Batch(batch) if hasattr(batch, "__array__") else Batch(*batch)
    else:
        raise InputError("vectors to load must be an EmbeddingSet, an Index, a path, an array or batches",
                         got=type(source).__name__, cure="pass for example EmbeddingSet.open(…)")


def _described(source: EmbeddingSet, label: int) -> dict[str, Any]:
    named = {"class": source.classes[label]} if label >= 0 and source.classes else {}
    return ({"label": label} if label >= 0 else {}) | named


def check_loadable(table: str, dim: int, text_ids: bool, *, fits: bool, allowed: bool) -> None:
    """Raise unless rows of ``dim`` columns may be added to a ``table`` that exists and whose columns they fit."""
    if not allowed:
        raise InputError(f"the table {table} exists, and matryo did not make it", got="load",
                         cure="choose another table, or pass into_existing=True (--into-existing)")  # fmt: skip
    if not fits:
        got = f"{dim} dims, {'text' if text_ids else 'integer'} ids"
        rule = f"rows must have the dims and the kind of ids of {table}"
        raise InputError(rule, got=got, cure="choose another table")
