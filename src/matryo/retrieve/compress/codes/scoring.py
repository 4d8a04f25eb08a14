"""Scores of float queries and coded rows (asymmetric), and re-ranks of the best.

A decoded row x̂ is ``mean + axes · ẑ``. Its inner product with a query is q · mean + (axesᵀ q) · ẑ, so rows are never
turned back. Under cosine it is divided by ‖x̂‖: a code keeps the direction of a row better than its length, and this
correction costs no bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.nesting import truncate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.arrays import Array, Floats, Integers
    from matryo.retrieve.compress.codes.fitted import Fitted

_TINY = np.finfo(np.float32).tiny
_NUMBERS = 1 << 22   # of decoded rows, or of scores, that are held at a time


def prepared(queries: Floats, metric: str) -> Floats:
    """Queries of norm 1 under cosine."""
    return truncate(queries, queries.shape[1]) if metric == "cosine" else queries


def scores(fitted: Fitted, metric: str, queries: Floats, codes: Array) -> Floats:
    """Return the scores [queries, rows] of prepared queries: the inner product, −‖q − x̂‖², or the cosine."""
    found = np.empty((len(queries), len(codes)), np.float32)
    for part, some in score_parts(fitted, metric, queries, codes):
        found[:, part] = some
    return found


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


def lost(fitted: Fitted, metric: str, rows: Floats, codes: Array) -> float:
    """Σ ‖x − x̂‖² of prepared rows [n, d] and their codes."""
    decoded = fitted.codec.decode(codes)
    squares, products = square_norms(fitted, decoded), np.einsum("ij,ij->i", rows @ fitted.axes, decoded)
    if fitted.mean is not None:
        products += rows @ fitted.mean
    if metric == "cosine":
        products /= np.maximum(np.sqrt(squares), _TINY)
        squares = np.ones_like(products)
    own = np.einsum("ij,ij->i", rows, rows)
    return float(np.maximum(own + squares - 2 * products, 0).sum(dtype=np.float64))


def score_parts(
    fitted: Fitted, metric: str, queries: Floats, codes: Array
) -> Iterator[tuple[slice, Floats]]:
    """Yield the scores [queries, part] of consecutive parts of the rows, which are decoded."""
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
