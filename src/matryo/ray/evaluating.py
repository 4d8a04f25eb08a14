"""Exact neighbours on a cluster: each worker searches ranges of the database at all dims in one pass.

The keys of neighbours hold score and row, and those of a row do not depend on the rows beside it (with the compiled
core). So the merged result is that of one process, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings import EmbeddingSet
from matryo.errors import InputError
from matryo.evaluation.knn.keys import merged, moved, rows_of
from matryo.evaluation.knn.search import NeighbourBatch, search_keys
from matryo.progress import tqdm
from matryo.ray.cluster import Cluster
from matryo.ray.parts import Parts

if TYPE_CHECKING:
    from matryo.arrays import Array
    from matryo.evaluation.protocols.evaluate import Evaluation

__all__ = ["evaluate", "neighbours"]

_RANGE_BYTES = 256 << 20   # of the rows of one job
_KEYS_BYTES = 256 << 20   # of the neighbours of a batch of queries


class _Searcher:
    """A worker: the database, opened once."""

    def __init__(self, database: str) -> None:
        self.parts = Parts.open(database)

    def run(self, first: int, count: int, queries: Array, dims: Sequence[int], k: int) -> dict[int, Array]:
        """The keys of the nearest of some rows, by dim."""
        rows = self.parts.read(first, count)
        batches = list(search_keys(rows, queries, dims, min(k, len(rows))))
        return {dim: moved(np.concatenate([batch.keys[dim] for batch in batches]), first) for dim in dims}


def neighbours(
    database: Any, queries: Any, dims: Sequence[int], k: int, *, cluster: Cluster | None = None,
    range_rows: int | None = None, progress: bool = True,
) -> Iterator[NeighbourBatch]:  # fmt: skip
    """Yield the ``k`` nearest rows of each query at each dim, as :func:`matryo.evaluation.knn.search` finds them.

    ``database`` is the path or the URL of embeddings, a ``.npy`` file or parts, which all machines see; ``queries`` is
    an array.
    """
    parts = Parts.open(database)
    dims, queries = sorted(dims), np.ascontiguousarray(queries, np.float32)
    if not 1 <= k <= parts.count:
        raise InputError(f"k must be in 1 … {parts.count:,}, the size of the database", got=k, cure="change k")
    ranges = parts.ranges(range_rows or max(1, _RANGE_BYTES // (4 * parts.dim)))
    step = max(1, _KEYS_BYTES // (8 * k * len(dims)))
    with cluster or Cluster() as running:
        pairs = len(queries) * parts.count
        with tqdm(desc="search", total=pairs, unit="pair", unit_scale=True, delay=2, disable=not progress) as bar:
            for start in range(0, len(queries), step):
                some = queries[start : start + step]
                best: dict[int, Array] = {dim: np.empty((len(some), 0), np.int64) for dim in dims}
                shared = running.share(some)
                jobs = [(first, count, shared, dims, k) for first, count in ranges]
                for number, keys in running.run(_Searcher, (parts.place.url,), jobs):
                    best = {dim: merged([best[dim], keys[dim]], k) for dim in dims}
                    bar.update(len(some) * ranges[number][1])
                yield NeighbourBatch(start, {dim: rows_of(keys) for dim, keys in best.items()})


def evaluate(
    database: Any, queries: Any, *, cluster: Cluster | None = None, range_rows: int | None = None, **settings: Any
) -> Evaluation:
    """:func:`matryo.evaluate` of two embeddings folders; the search runs on the cluster, with an equal result."""
    from matryo.evaluation.protocols.evaluate import evaluate as on_one

    known = database if isinstance(database, EmbeddingSet) else EmbeddingSet.open(database)
    asked = queries if isinstance(queries, EmbeddingSet) else EmbeddingSet.open(queries)

    def find(_: Array, vectors: Array, dims: Sequence[int], k: int, *, progress: bool) -> Iterator[NeighbourBatch]:
        return neighbours(known.path, vectors, dims, k, cluster=cluster, range_rows=range_rows, progress=progress)

    return on_one(known, asked, find=find, **settings)
