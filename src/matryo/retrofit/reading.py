"""Read vectors in batches from whatever holds them, and draw a sample of the rows in the same pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings import EmbeddingSet
from matryo.embeddings.manifest import MANIFEST
from matryo.embeddings.rows import as_vectors
from matryo.errors import EmbeddingsError
from matryo.mapped import map_npy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.arrays import Array, Floats, Integers

_BATCH_BYTES = 32 << 20


def batches_of(vectors: Any) -> Iterator[Floats]:
    """Iterate over ``vectors`` as finite float32 batches [n, d]; errors name the first bad row.

    ``vectors`` may be an array (also memory-mapped), a tensor, lists or a table, an :class:`EmbeddingSet`, an index, a
    source of :func:`matryo.retrieve.sources.open_source`, the path of a .npy file or of an embeddings folder, or an
    iterator of batches.
    """
    dim, row = None, 0
    for batch in _parts(vectors):
        try:
            checked = as_vectors(batch, "float32", dim)
        except EmbeddingsError as error:
            raise EmbeddingsError(f"vectors from row {row} on: {error}" if row else str(error)) from None
        dim, row = checked.shape[1], row + len(checked)
        yield checked


def _parts(vectors: Any) -> Iterator[Any]:
    if isinstance(vectors, str | Path):
        vectors = _opened(Path(vectors))
    if hasattr(vectors, "batches"):   # embeddings yield (row, vectors); an index and a source yield batches
        for item in vectors.batches():
            yield item.vectors if hasattr(item, "vectors") else item[1]
    elif hasattr(vectors, "__next__"):
        for item in vectors:
            yield item.vectors if hasattr(item, "vectors") else item
    elif isinstance(vectors, np.ndarray) and vectors.ndim == 2 and vectors.dtype != object:
        step = max(1, _BATCH_BYTES // (4 * max(1, vectors.shape[1])))
        for start in range(0, max(1, len(vectors)), step):
            yield vectors[start : start + step]
    else:
        whole = as_vectors(vectors)
        yield from _parts(whole)


def _opened(path: Path) -> Any:
    if (path / MANIFEST).is_file():
        return EmbeddingSet.open(path)
    if path.suffix == ".npy" and path.is_file():
        try:
            array = map_npy(path)
        except ValueError as error:
            raise EmbeddingsError(f"{path} is not a readable .npy file", got=error, cure="write it again") from error
        if array.ndim == 2:
            return array
    raise EmbeddingsError(
        "vectors must be an array, a .npy file of one row per vector, an embeddings folder or a source",
        got=path,
        cure=f"for other files pass matryo.retrieve.sources.open_source({str(path)!r})",
    )


class Reservoir:
    """A uniform random sample of rows that arrive in batches, and the rows that were asked for by number."""

    def __init__(self, most: int, wanted: Integers, rng: np.random.Generator) -> None:
        self._most, self._rng, self.seen = most, rng, 0
        self._keys: Array = np.empty(0)
        self._rows: Integers = np.empty(0, np.int64)
        self._vectors: Array | None = None
        self._wanted = np.unique(wanted)
        self._kept: list[Floats] = []
        self._kept_rows: list[Integers] = []

    def add(self, vectors: Floats) -> None:
        """Take notice of the next rows. The rows with the smallest random keys stay."""
        numbers = np.arange(self.seen, self.seen + len(vectors))
        self.seen += len(vectors)
        here = np.flatnonzero(np.isin(numbers, self._wanted, assume_unique=True))
        if len(here):
            self._kept.append(vectors[here].copy())
            self._kept_rows.append(numbers[here])
        keys = self._rng.random(len(vectors))
        last = np.inf if len(self._keys) < self._most else self._keys.max()
        new = np.flatnonzero(keys < last)
        held = np.empty((0, vectors.shape[1]), np.float32) if self._vectors is None else self._vectors
        every = np.concatenate([self._keys, keys[new]])
        stay = np.sort(np.argsort(every, kind="stable")[: self._most])
        self._keys = every[stay]
        self._rows = np.concatenate([self._rows, numbers[new]])[stay]
        old, fresh = stay[stay < len(held)], stay[stay >= len(held)] - len(held)
        self._vectors = np.concatenate([held[old], vectors[new[fresh]]])

    def sample(self) -> tuple[Integers, Floats]:
        """The row numbers of the sample, and their vectors; the rows that were asked for come with it, each once."""
        held = np.empty((0, 0), np.float32) if self._vectors is None else self._vectors
        if not self._kept:
            return self._rows, held
        kept_rows, kept = np.concatenate(self._kept_rows), np.concatenate(self._kept)
        extra = ~np.isin(kept_rows, self._rows)
        rows = np.concatenate([self._rows, kept_rows[extra]])
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate([held, kept[extra]])[order]
