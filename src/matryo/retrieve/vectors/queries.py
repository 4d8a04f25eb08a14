"""What a search may be asked: queries that fit the vectors, and a mask of the rows that may be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError, InputError

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

__all__ = ["as_mask", "as_queries", "check_not_zero"]


def as_queries(queries: Any, dim: int) -> Array:
    """``queries`` as an array [n, dim] of real numbers."""
    array = np.asarray(queries)
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind not in "fiu":
        raise EmbeddingsError(
            f"queries must be a two-dimensional array of real numbers with {dim} columns, as the rows have",
            got=f"shape {array.shape}, {array.dtype}",
            cure="encode them with the model of the rows; a single one is query[None]",
        )
    return array


def check_not_zero(norms: Array, first: int = 0) -> None:
    """Raise where a query, the first of which is number ``first``, has norm 0: it has no cosine with anything."""
    zero = np.flatnonzero(norms == 0)
    if len(zero):
        raise EmbeddingsError(
            "a query must not be zero where the metric is cosine",
            got=f"row {first + zero[0]}",
            cure="drop it, or encode it again",
        )


def as_mask(allowed: Any, count: int) -> Bools | None:
    """``allowed`` as one boolean a row, which compiled loops rely on; None where all rows may be found."""
    if allowed is None:
        return None
    mask = np.asarray(allowed)
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise InputError(
            f"allowed must be a mask of {count} booleans, one a row",
            got=f"shape {mask.shape}, {mask.dtype}",
            cure="np.isin(np.arange(count), rows) makes one of row numbers",
        )
    return mask
