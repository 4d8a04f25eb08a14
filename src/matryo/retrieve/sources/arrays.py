"""Vectors from ``.npy`` files, embeddings folders and indexes (memory-mapped), and from a stream of ``.npy`` bytes."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from matryo.embeddings import EmbeddingSet
from matryo.embeddings.manifest import FILES, MANIFEST
from matryo.errors import EmbeddingsError, InputError
from matryo.retrieve.sources.source import Columns, Source, unreadable
from matryo.retrieve.store import Batch, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAGIC = b"\x93NUMPY"
"""The first bytes of a .npy file."""


def open_npy(path: Path) -> Source:
    """The rows of a .npy file."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):   # an .npz under another name
            raise ValueError("several arrays")
    except (OSError, ValueError, EOFError) as error:
        raise unreadable(path, "npy", error) from error
    _check_matrix(str(path), array.shape, array.dtype)

    def read(rows: int, skip: int) -> Iterator[Batch]:
        for start in range(skip, len(array), rows):
            yield Batch(np.array(array[start : start + rows]))

    return Source(str(path), array.shape[1], len(array), read, without_ids=path)


def open_npy_stream(name: str, magic: bytes, stream: BinaryIO) -> Source:
    """The rows of a .npy file that arrives as a stream, from which ``magic`` was read."""
    try:
        version = np.lib.format.read_magic(io.BytesIO(magic + stream.read(2)))
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = header(stream)
    except ValueError as error:
        raise unreadable(name, "npy", error) from error
    _check_matrix(name, shape, dtype)
    if by_columns:
        raise InputError(f"{name} must be in C order", got="Fortran order", cure="pass its path")
    size = shape[1] * dtype.itemsize

    def read(rows: int, skip: int) -> Iterator[Batch]:
        for start in range(0, shape[0], rows):
            wanted = min(rows, shape[0] - start)
            data = stream.read(wanted * size)
            whole = len(data) // size
            vectors = np.frombuffer(data, dtype, whole * shape[1]).reshape(whole, shape[1])
            if whole > max(0, skip - start):
                yield Batch(vectors[max(0, skip - start) :])
            if whole < wanted:
                rule = f"{name}, row {start + whole}: the header announces {shape[0]} rows"
                raise InputError(rule, got=start + whole, cure="check its writer")

    return Source(name, shape[1], shape[0], read)


def open_embeddings(path: Path, columns: Columns) -> Source:
    """The rows and ids of an embeddings folder; label, class and superclass are the payload."""
    manifests = [*path.glob(f"*/{MANIFEST}"), *path.glob(f"embeddings/*/{MANIFEST}")]
    splits = sorted(manifest.parent for manifest in manifests)
    if splits and not (path / MANIFEST).exists():
        raise EmbeddingsError(
            f"{path} must be the embeddings folder of one split",
            got=f"a folder of {', '.join(split.name for split in splits)}",
            cure=f"specify the split: {splits[0]}",
        )
    opened = EmbeddingSet.open(path)
    own_ids = "ids.npy" in opened.manifest.files   # otherwise the index numbers the rows
    about = opened.manifest

    @cache
    def described(label: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"label": label} if label >= 0 else {}
        if label >= 0 and about.classes:
            fields["class"] = about.classes[label]
        if label >= 0 and about.superclass_of and about.superclass_of[label] >= 0:
            fields["superclass"] = about.superclasses[about.superclass_of[label]]
        return columns.payload_of(fields)

    def read(rows: int, skip: int) -> Iterator[Batch]:
        for start in range(skip, len(opened), rows):
            part = slice(start, start + rows)
            ids = opened.ids[part].tolist() if own_ids else None
            payload = None if opened.labels is None else [described(label) for label in opened.labels[part].tolist()]
            yield Batch(np.array(opened.vectors[part]), ids, payload)

    nesting = opened.nesting if len(opened.nesting) > 1 else None   # a single dim is no nesting
    file = None if own_ids else path / FILES[0]
    return Source(str(path), opened.dim, len(opened), read, nesting, about.model, file)


def open_index(path: Path, columns: Columns) -> Source:
    """The current rows of an index, with ids and payloads."""
    store = Store.open(path)
    all_ids = store.snapshot().ids()
    if not len(all_ids):
        raise InputError(f"{path} must hold a vector", got="an empty index", cure="add vectors first")

    def read(rows: int, skip: int) -> Iterator[Batch]:
        store.verify()   # a copy of damaged vectors would have checksums of its own, and pass for a good one
        for start in range(skip, len(all_ids), rows):
            ids = all_ids[start : start + rows].tolist()
            vectors, payload = store.get(ids)
            yield Batch(vectors, ids, [columns.payload_of(fields) for fields in payload])

    nesting = store.about.nesting
    return Source(str(path), nesting.dim, len(all_ids), read, nesting if len(nesting) > 1 else None, store.model)


def _check_matrix(name: str, shape: Sequence[int], dtype: Any) -> None:
    if len(shape) != 2 or dtype.kind not in "fiu":
        raise InputError(
            f"{name} must hold a two-dimensional array of real numbers, one row per vector",
            got=f"shape {tuple(shape)}, {dtype}",
            cure="stack the vectors as rows; a single vector is vectors[None]",
        )
    if not all(shape):
        raise InputError(f"{name} must hold a vector", got=f"shape {tuple(shape)}", cure="check its writer")
