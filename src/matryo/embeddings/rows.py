"""What a row of embeddings may be: vectors, labels and ids, checked and converted before any write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]
    Labels = np.ndarray[Any, np.dtype[np.int64]]

__all__ = [
    "UNKNOWN",
    "as_ids",
    "as_labels",
    "as_vectors",
    "check_normalized",
    "check_unique",
    "has_unit_norms",
]

UNKNOWN = -1
"""The label of a row whose class is not known; evaluation leaves such queries out."""


def as_vectors(values: Any, dtype: str, dim: int | None = None) -> Array:
    """``values`` as a finite [n, dim] array of ``dtype``."""
    array = _as_array(values, "vectors")
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "fiu":
        raise EmbeddingsError(
            "vectors must be a two-dimensional array of real numbers, one row a vector",
            got=f"shape {array.shape}, {array.dtype}",
            cure="stack the vectors as rows; a single one is vectors[None]",
        )
    if dim is not None and array.shape[1] != dim:
        raise EmbeddingsError(
            f"vectors must have {dim} columns", got=array.shape[1], cure="encode every row with one model"
        )
    with np.errstate(over="ignore"):   # reported below, by row
        converted = np.ascontiguousarray(array, dtype=dtype)
    bad = np.flatnonzero(~np.isfinite(converted).all(axis=1))
    if len(bad):
        narrowed = np.isfinite(array[bad[0]]).all()
        raise EmbeddingsError(
            f"vectors must be finite{f' in {dtype}' if narrowed else ''}",
            got=f"{len(bad)} bad rows, the first is row {bad[0]}",
            cure="use float32, or smaller numbers" if narrowed else "drop those rows or encode them again",
        )
    return converted


def as_labels(values: Any, count: int, classes: int = 0) -> Labels:
    """``values`` as ``count`` int64 labels: −1 for unknown, else below ``classes`` where these have names."""
    array = _as_array(values, "labels")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise EmbeddingsError(
            "labels must be a one-dimensional array of integers, one a vector",
            got=f"shape {array.shape}, {array.dtype}",
            cure="number the classes 0, 1, 2, …, and use −1 for unknown",
        )
    _check_length("labels", array, count)
    last = classes - 1 if classes else np.iinfo(np.int64).max
    bad = np.flatnonzero((array < UNKNOWN) | (array > last))
    if len(bad):
        raise EmbeddingsError(
            f"labels must lie in −1 … {last}" + (", the last of the classes" if classes else ""),
            got=f"{array[bad[0]]} in row {bad[0]}",
            cure="number the classes 0, 1, 2, …, and use −1 for unknown",
        )
    return array.astype(np.int64)


def as_ids(values: Any, count: int) -> list[int] | list[str]:
    """``values`` as ``count`` distinct ids, all integers of 64 bits or all strings."""
    array = _as_array(values, "ids")
    # numpy turns [1, "a"] into text, so the given values are asked for their kind, not the array.
    ids = array.tolist() if isinstance(values, np.ndarray) or array.dtype.kind in "iu" else list(values)
    numbers = array.dtype.kind in "iu"
    # numpy pads text with NUL, so an id that ends in one would come back shorter.
    if array.ndim != 1 or not (numbers or all(isinstance(one, str) and "\0" not in one for one in ids)):
        raise EmbeddingsError(
            "ids must be a one-dimensional array of integers or of strings without NUL, one a vector",
            got=f"shape {array.shape}, {array.dtype}: {ids!r:.60}",
            cure="use all integers or all strings; leave ids out for 0, 1, 2, …",
        )
    _check_length("ids", array, count)
    if numbers and len(array) and int(array.max()) > np.iinfo(np.int64).max:
        raise EmbeddingsError("ids must fit in 64 signed bits", got=array.max(), cure="use strings for those")
    check_unique(ids)
    return ids


def check_unique(ids: list[int] | list[str], known: dict[int | str, None] | None = None) -> None:
    """Raise, naming one, when an id occurs twice or is among the ``known``, or is not of their kind."""
    if known and ids and type(ids[0]) is not type(next(iter(known))):
        raise EmbeddingsError("ids must be all integers or all strings", got="both", cure="convert them")
    seen = set()
    for one in ids:
        if one in seen or (known and one in known):
            raise EmbeddingsError("ids must be unique", got=f"{one!r:.60} twice", cure="give each its own")
        seen.add(one)


def has_unit_norms(vectors: Array) -> bool:
    """Whether every norm is 1, within what float16 and four printed decimals lose; a zero vector passes."""
    norms = np.linalg.norm(vectors.astype(np.float32, copy=False), axis=1)
    return bool(np.all((np.abs(norms - 1) < 1e-3) | (norms == 0)))


def check_normalized(vectors: Array) -> None:
    """Raise unless the vectors are what ``normalized=True`` promises."""
    if not has_unit_norms(vectors):
        raise EmbeddingsError(
            "vectors written as normalized must have norm 1",
            got="other norms",
            cure="normalise them first, or leave normalized out",
        )


def _as_array(values: Any, name: str) -> Array:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:   # ragged lists, tensors that are not on the CPU
        raise EmbeddingsError(
            f"{name} must be an array, or lists of equal length", got=error, cure="convert with numpy first"
        ) from error


def _check_length(name: str, array: Array, count: int) -> None:
    if len(array) != count:
        raise EmbeddingsError(
            f"{name} must have one entry for each of the {count} vectors", got=len(array), cure="check both"
        )
