"""A graph over the first dims of the rows (HNSW, by faiss): a walk finds near rows without looking at most of them.

The graph of a short prefix is built in a fraction of the time, and walked through a fraction of the bytes, of one at
full dim. What the walk finds is scored anew, as every shortlist is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import MissingExtra
from matryo.retrieve.vectors.array_folder import open_arrays, write_arrays
from matryo.retrieve.vectors.metric import Metric, check_metric

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.retrieve.vectors.blocks import Blocks

    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["HEADER", "Graph"]

HEADER = "graph.json"
FORMAT = 1
"""The version of the folder's layout; it grows when an older matryo could no longer read it."""

_TILE = 1 << 22   # numbers added at a time


@dataclass(frozen=True, eq=False)
class Graph:
    """The graph of some blocks' rows at one dim, for one metric."""

    metric: Metric
    dim: int
    stored: Array
    """As faiss writes it, bytes."""

    @classmethod
    def of(cls, blocks: Blocks, metric: Metric = "cosine", *, dim: int, degree: int = 32, effort: int = 40) -> Graph:
        """Link each row with ``degree`` near ones, which are looked for among ``effort`` candidates."""
        faiss = _faiss()
        check_metric(metric)
        blocks.level(dim)
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        graph = faiss.IndexHNSWFlat(dim, degree, kind)
        graph.hnsw.efConstruction = effort
        step = max(1, _TILE // dim)
        for start in range(0, blocks.count, step):
            graph.add(_comparable(blocks.rows(slice(start, start + step), dim), metric))
        return cls(metric, dim, faiss.serialize_index(graph))

    def write(self, folder: str | Path) -> None:
        """Write a new ``folder``, which appears whole or not at all."""
        write_arrays(folder, HEADER, FORMAT, {"metric": self.metric, "dim": self.dim}, {"graph": self.stored})

    @classmethod
    def open(cls, folder: str | Path) -> Graph:
        """Map a folder's files without reading them; the first walk reads all."""
        about, arrays = open_arrays(folder, HEADER, FORMAT)
        return cls(about["metric"], about["dim"], arrays["graph"])

    def walk(self, queries: Floats, keep: int, ef: int, allowed: Bools | None = None) -> Indices:
        """About the best ``keep`` rows of each of the ``queries`` [n, d], in no certain order; −1 where there are none.

        The walk holds ``ef`` candidates.
        """
        faiss = _faiss()
        options: dict[str, Any] = {"efSearch": max(ef, keep)}
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(bits)
        asked = _comparable(np.ascontiguousarray(queries[:, : self.dim], np.float32), self.metric)
        _, rows = self._graph.search(asked, keep, params=faiss.SearchParametersHNSW(**options))
        return np.asarray(rows, np.int64)

    @cached_property
    def _graph(self) -> Any:
        return _faiss().deserialize_index(np.asarray(self.stored))


def _comparable(rows: Floats, metric: Metric) -> Floats:
    # The inner product of rows of length 1 is the cosine. A zero row stays zero.
    if metric != "cosine":
        return rows
    lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(1, keepdims=True))
    return np.asarray(rows / np.maximum(lengths, np.finfo(np.float64).tiny), np.float32)


def _faiss() -> Any:
    with MissingExtra.unless_installed("faiss", "graph"):
        import faiss
    return faiss
