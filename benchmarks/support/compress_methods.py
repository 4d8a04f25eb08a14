"""Ways to make vectors small, ours and others: each encodes unit rows for a budget and answers float queries."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from matryo import Compression
from matryo.retrieve.compress.codes.scoring import best_of

Array = np.ndarray[Any, np.dtype[Any]]
_TOGETHER = 128
ROWS, ROUNDS = 10_240, 10   # of k-means in faiss


@dataclass(frozen=True)
class Outcome:
    """Encoded rows, decoded again, or what answers queries by them."""

    bytes: int
    fit: float
    encode: float
    queries: Array
    decoded: Array | None = None
    search: Callable[[int], Array] | None = None
    note: str = ""

    def best(self, k: int) -> Array:
        """The best rows of each query."""
        if self.search is not None:
            return self.search(k)
        assert self.decoded is not None
        parts = [self.queries[start : start + _TOGETHER] for start in range(0, len(self.queries), _TOGETHER)]
        return np.concatenate([best_of(part @ self.decoded.T, k) for part in parts])


def unit(vectors: Array) -> Array:
    """Rows of norm 1."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), np.float32)


def ours(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """What ``Compression.choose`` takes."""
    return _ours(rows, queries, lambda: Compression.choose(rows, budget, progress=False))


def ours_by_ndcg(rows: Array, queries: Array, budget: int, asked: Array, relevant: list[list[int]]) -> Outcome:
    """What ``Compression.choose`` takes by nDCG of other queries."""
    return _ours(rows, queries, lambda: Compression.choose(rows, budget, asked, relevant, progress=False))


def product(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """Our product code."""
    if budget > rows.shape[1]:
        return None
    return _ours(rows, queries, lambda: Compression.fit(rows, bytes_per_vector=budget, progress=False))


def _ours(rows: Array, queries: Array, make: Callable[[], Compression]) -> Outcome:
    begin = time.perf_counter()
    compression = make()
    middle = time.perf_counter()
    codes = compression.encode(rows)
    end = time.perf_counter()
    note = f"{compression.fitted.rotation} {compression.code}, {compression.fitted.codec.dim} dims"
    return Outcome(codes.shape[1], middle - begin, end - middle, queries,
                   search=lambda k: compression.search(queries, codes, k)[0], note=note)  # fmt: skip


# ── what sentence-transformers gives: prefixes, and quantize_embeddings ───────────────────────────────────────


def truncated(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """The first columns as float32."""
    dim = min(rows.shape[1], budget // 4)
    return Outcome(4 * dim, 0, 0, queries[:, :dim], decoded=unit(rows[:, :dim]))


def truncated_int8(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """The first columns as int8."""
    dim = min(rows.shape[1], budget)
    return _int8(unit(rows[:, :dim]), queries[:, :dim], 0.0)


def truncated_bit(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """The signs of the first columns."""
    dim = min(rows.shape[1], 8 * budget)
    library: Any = importlib.import_module("sentence_transformers.quantization")
    begin = time.perf_counter()
    codes = library.quantize_embeddings(rows[:, :dim], precision="ubinary")
    signs = np.unpackbits(codes, axis=1)[:, :dim].astype(np.float32) * 2 - 1
    return Outcome(codes.shape[1], 0, time.perf_counter() - begin, queries[:, :dim], decoded=signs)


def pca_int8(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """The first principal axes as int8."""
    dim = min(rows.shape[1], budget)
    begin = time.perf_counter()
    axes = np.linalg.eigh((rows.T @ rows).astype(np.float64))[1][:, ::-1][:, :dim].astype(np.float32)
    fit = time.perf_counter() - begin
    return _int8(unit(rows @ axes), queries @ axes, fit)


def _int8(rows: Array, queries: Array, fit: float) -> Outcome:
    """``quantize_embeddings`` to int8 with ranges of the rows; the codes are turned back to numbers for scores."""
    library: Any = importlib.import_module("sentence_transformers.quantization")
    begin = time.perf_counter()
    ranges = np.vstack([rows.min(axis=0), rows.max(axis=0)])
    codes = library.quantize_embeddings(rows, precision="int8", ranges=ranges)
    encode = time.perf_counter() - begin
    steps = (ranges[1] - ranges[0]) / 255
    return Outcome(rows.shape[1], fit, encode, queries, decoded=(codes.astype(np.float32) + 128) * steps + ranges[0])


# ── faiss ─────────────────────────────────────────────────────────────────────────────────────────────────────


def faiss_pq(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """Product quantisation in equal blocks."""
    dim = rows.shape[1]
    if budget > dim // 2 or dim % budget:
        return None
    return _faiss(rows, queries, f"PQ{budget}np", budget)


def faiss_opq(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """Product quantisation after an optimised rotation, to 512 dims at most."""
    dim = min(rows.shape[1], 512)
    if budget > dim // 2 or dim % budget:
        return None
    return _faiss(rows, queries, f"OPQ{budget}_{dim},PQ{budget}np", budget)


def faiss_rabitq(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """RaBitQ, 8 of whose bytes are corrections, after PCA to as many dims as the other bytes have bits."""
    dim = min(rows.shape[1], 8 * (budget - 8)) // 8 * 8
    if dim < 8:
        return None
    return _faiss(rows, queries, f"PCAR{dim},RaBitQ", None)


def faiss_sq4(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """PCA and the scalar quantiser of 4 bits."""
    return _faiss(rows, queries, f"PCAR{min(rows.shape[1], 2 * budget)},SQ4", None)


def faiss_sq8(rows: Array, queries: Array, budget: int) -> Outcome | None:
    """PCA and the scalar quantiser of 8 bits."""
    return _faiss(rows, queries, f"PCA{min(rows.shape[1], budget)},SQ8", None)


def _faiss(rows: Array, queries: Array, factory: str, size: int | None) -> Outcome:
    library: Any = importlib.import_module("faiss")
    index = library.index_factory(rows.shape[1], factory)   # L2, whose order on unit rows is that of the cosine:
    # faiss's PCA subtracts the mean, which changes inner products but no distance
    inner = library.downcast_index(index.index) if hasattr(index, "chain") else index
    # "np": without the polysemous training, which changes no code's centroid and takes minutes
    if size is not None:   # as many rows and rounds of k-means as ours
        inner.pq.cp.niter, inner.pq.cp.max_points_per_centroid = ROUNDS, ROWS // 256
    if factory.startswith("OPQ"):
        turn = library.downcast_VectorTransform(index.chain.at(0))
        turn.niter, turn.max_train_points = ROUNDS, ROWS
    begin = time.perf_counter()
    index.train(rows)
    middle = time.perf_counter()
    index.add(rows)
    end = time.perf_counter()
    return Outcome(int(inner.code_size), middle - begin, end - middle, queries,
                   search=lambda k: index.search(queries, k)[1], note=factory)  # fmt: skip


BY_NDCG = "matryo by nDCG"   # takes more arguments than the others
METHODS: dict[str, Callable[[Array, Array, int], Outcome | None]] = {
    "matryo": ours, "matryo product": product, "truncation float32": truncated, "truncation int8": truncated_int8,
    "truncation bit": truncated_bit, "PCA + int8": pca_int8, "faiss SQ8": faiss_sq8, "faiss SQ4": faiss_sq4,
    "faiss RaBitQ": faiss_rabitq, "faiss PQ": faiss_pq, "faiss OPQ": faiss_opq,
}  # fmt: skip
