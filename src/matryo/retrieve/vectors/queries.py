"""Checks of search arguments: queries that fit the vectors, and masks of the rows that may be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arrays import as_array
from matryo.errors import EmbeddingsError, InputError
from matryo.retrieve.vectors.blocks import checked_norms

if TYPE_CHECKING:
    from matryo.nesting import Nesting
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array, Bools, Floats


def as_queries(queries: Any, dim: int) -> Array:
    """Return ``queries`` as an array [n, dim] of real numbers."""
    array = as_array(queries, "queries", EmbeddingsError)
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind not in "fiu":
        raise EmbeddingsError(
            f"queries must be a two-dimensional array of real numbers with {dim} columns, as the stored vectors have",
            got=f"shape {array.shape}, {array.dtype}",
            cure="encode queries and vectors with one model; for a single query, pass query[None]",
        )
    return array


def check_not_zero(norms: Array, first: int = 0) -> None:
    """Raise if a query has norm 0, and so no cosine; ``first`` is the number of the first query."""
    zero = np.flatnonzero(norms == 0)
    if len(zero):
        raise EmbeddingsError(
            "a query must not be all zeros if the metric is cosine",
            got=f"row {first + zero[0]}",
            cure="drop it, or encode it again",
        )


def as_mask(allowed: Any, count: int) -> Bools | None:
    """Return ``allowed`` as one boolean per row, which compiled loops rely on; None allows all rows."""
    if allowed is None:
        return None
    mask = allowed if type(allowed) is np.ndarray else as_array(allowed, "allowed")   # every search calls this
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise InputError(
            f"allowed must be a mask of {count} booleans, one per row",
            got=f"shape {mask.shape}, {mask.dtype}",
            cure="convert row numbers with np.isin(np.arange(count), rows)",
        )
    return mask


def as_floats(queries: Any, dim: int) -> Floats:
    """Return ``queries`` as a contiguous float32 array [n, dim]; numbers too large for float32 become infinite."""
    if type(queries) is np.ndarray and queries.dtype == np.float32 and queries.ndim == 2 and queries.shape[1] == dim:
        return queries if queries.flags.c_contiguous else np.ascontiguousarray(queries)
    array = as_queries(queries, dim)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def check_scores(queries: Floats, nesting: Nesting, metric: Metric) -> None:
    """Raise, naming the first such query, if a query has no score: it is not finite, too large, or has no cosine."""
    norms = checked_norms(queries, nesting, "queries")
    if metric == "cosine":
        check_not_zero(norms[:, -1])
