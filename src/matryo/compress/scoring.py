"""Scores of float queries and coded rows (asymmetric), the best rows of each query, and their re-rank.

A decoded row x̂ is ``mean + axes · ẑ``. Its inner product with a query is q · mean + (axesᵀ q) · ẑ, so rows are never
turned back. Under cosine it is divided by ‖x̂‖: a code keeps the direction of a row better than its length, and this
correction costs no bytes. Codes of 8, 4 and 1 bits are scanned by the compiled core, with queries of 8 bits or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from matryo.compress.codecs import Scalars
from matryo.nesting import truncate
from matryo.retrieve.vectors.packed import PackedRows, tiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.arrays import Array, Floats, Integers
    from matryo.compress.bases import Fitted
    from matryo.retrieve.vectors.metric import Metric

_TINY = np.finfo(np.float32).tiny
_NUMBERS = 1 << 22   # of decoded rows, or of scores, that are held at a time


def prepared(queries: Floats, metric: str) -> Floats:
    """Queries of norm 1 under cosine."""
    return truncate(queries, queries.shape[1]) if metric == "cosine" else queries


def scores(fitted: Fitted, metric: str, queries: Floats, codes: Array) -> Floats:
    """Return the scores [queries, rows] of prepared queries: the inner product, −‖q − x̂‖², or the cosine."""
    found = np.empty((len(queries), len(codes)), np.float32)
    for part, some in _score_parts(fitted, metric, queries, codes):
        found[:, part] = some
    return found


def search(fitted: Fitted, metric: str, queries: Floats, codes: Array, k: int, threads: int) -> tuple[Integers, Floats]:
    """Return the best rows and their scores [queries, k], best first; of equal scores the smaller row."""
    k = min(k, len(codes))
    if isinstance(fitted.codec, Scalars) and fitted.codec.bits < 16 and fitted.mean is None:
        rows, best = _packed(fitted, metric, codes).search(queries @ fitted.axes, k, threads=threads)
        if metric == "l2":
            best = best - np.square(queries).sum(axis=1, keepdims=True)
        return rows, np.asarray(best, np.float32)
    rows, best = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for part, some in _score_parts(fitted, metric, queries, codes):
        near = best_of(some, k)
        best = np.concatenate([best, np.take_along_axis(some, near, axis=1)], axis=1)
        rows = np.concatenate([rows, near + part.start], axis=1)
        kept = best_of(best, k)
        rows, best = np.take_along_axis(rows, kept, axis=1), np.take_along_axis(best, kept, axis=1)
    return rows, best


def rerank(metric: str, queries: Floats, rows: Integers, full: Any, k: int) -> tuple[Integers, Floats]:
    """Score the shortlist ``rows`` of each query with the vectors ``full`` [n, d], and keep the best ``k``."""
    best, values = np.empty((len(rows), k), np.int64), np.empty((len(rows), k), np.float32)
    for place, (query, some) in enumerate(zip(queries, rows, strict=True)):
        some = np.sort(some)
        vectors = np.asarray(full[some], np.float32)
        vectors = truncate(vectors, vectors.shape[1]) if metric == "cosine" else vectors
        found = -np.square(vectors - query).sum(axis=1) if metric == "l2" else vectors @ query
        order = np.argsort(-found, kind="stable")[:k]
        best[place], values[place] = some[order], found[order]
    return best, values


def best_of(values: Floats, count: int) -> Integers:
    """The columns with the largest values, best first; equal ones in their order."""
    count = min(count, values.shape[1])
    chosen = np.argpartition(-values, count - 1, axis=1)[:, :count]
    chosen.sort(axis=1)
    order = np.argsort(-np.take_along_axis(values, chosen, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(chosen, order, axis=1))


def square_norms(fitted: Fitted, decoded: Floats) -> Floats:
    """‖x̂‖² of decoded coordinates."""
    squares = np.einsum("ij,ij->i", decoded, decoded)
    if fitted.mean is not None:
        squares += 2 * decoded @ (fitted.axes.T @ fitted.mean) + np.float32(fitted.mean @ fitted.mean)
    return np.asarray(np.maximum(squares, 0), np.float32)


def _score_parts(
    fitted: Fitted, metric: str, queries: Floats, codes: Array
) -> Iterator[tuple[slice, Floats]]:
    turned = np.asarray(queries @ fitted.axes, np.float32)
    constant = 0 if fitted.mean is None else (queries @ fitted.mean)[:, None]
    squares = np.square(queries).sum(axis=1, keepdims=True)
    step = max(64, _NUMBERS // max(fitted.codec.dim, len(queries)))
    for start in range(0, len(codes), step):
        part = slice(start, min(len(codes), start + step))
        decoded = fitted.codec.decode(np.asarray(codes[part]))
        products = turned @ decoded.T + constant
        if metric == "cosine":
            products /= np.maximum(np.sqrt(square_norms(fitted, decoded)), _TINY)
        elif metric == "l2":
            products = 2 * products - square_norms(fitted, decoded) - squares
        yield part, np.asarray(products, np.float32)


def _packed(fitted: Fitted, metric: str, codes: Array) -> PackedRows:
    """The codes in the layout of the compiled core."""
    codec = cast("Scalars", fitted.codec)
    assert codec.bits != 16
    levels, units = codec.levels(codes), codec.units(codes)
    high = -(-len(levels) // 16) * 16
    padded = np.zeros((high, codec.dim), np.uint8)
    scales, offsets = np.zeros(high, np.float32), np.zeros(high, np.float32)
    padded[: len(levels)], scales[: len(levels)] = levels, units
    if metric == "l2":
        signed = levels - np.float32((2**codec.bits - 1) / 2)
        offsets[: len(levels)] = -np.square(units) * np.einsum("ij,ij->i", signed, signed)
        scales *= 2
    inner: Metric = "ip"
    return PackedRows(inner, codec.bits, codec.dim, len(levels), tiled(padded, codec.bits), scales, offsets)
