"""Check and convert the vectors, labels and ids of embeddings before they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arrays import as_array
from matryo.errors import EmbeddingsError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Integers

UNKNOWN = -1
"""The label of a row whose class is not known. Evaluation excludes such queries."""
ID_CHARACTERS = 512
"""The longest id, in embeddings and in an index. Arrays of strings give every row the space of the longest."""


def as_vectors(values: Any, dtype: str = "float32", dim: int | None = None) -> Array:
    """Return ``values`` as a finite [n, dim] array of ``dtype``.

    ``values`` may be an array, a tensor, lists, a pandas, polars or Arrow table of numbers, a column of lists, or a
    Hugging Face dataset with one column of vectors.

    >>> as_vectors([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    array = as_array(values, "vectors", EmbeddingsError)
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "fiu":
        raise EmbeddingsError(
            "vectors must be a two-dimensional array of real numbers, one row per vector",
            got=f"shape {array.shape}, {array.dtype}",
            cure="stack the vectors as rows; a single vector is vectors[None]",
        )
    if dim is not None and array.shape[1] != dim:
        raise EmbeddingsError(
            f"vectors must have {dim} columns", got=array.shape[1], cure="encode every row with the same model"
        )
    with np.errstate(over="ignore"):   # an overflow is reported below, with its row
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


def as_labels(values: Any, count: int, classes: Sequence[str] | None = ()) -> Integers:
    """Return ``values`` as ``count`` int64 labels: indices into ``classes`` if these are given, −1 for unknown.

    Labels may be class names instead. A name that is not in ``classes`` is an error; None is unknown.
    """
    classes = tuple(classes or ())
    array = as_array(values, "labels", EmbeddingsError)
    if array.ndim == 1 and _names(array):
        array = _indices(array, classes)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise EmbeddingsError(
            "labels must be one-dimensional: one integer, or one class name, per vector",
            got=f"shape {array.shape}, {array.dtype}",
            cure="number the classes 0, 1, 2, …, and use −1 for unknown",
        )
    _check_length("labels", array, count)
    last = len(classes) - 1 if classes else np.iinfo(np.int64).max
    bad = np.flatnonzero((array < UNKNOWN) | (array > last))
    if len(bad):
        raise EmbeddingsError(
            f"labels must lie in −1 … {last}" + (", the last of the classes" if classes else ""),
            got=f"{array[bad[0]]} in row {bad[0]}",
            cure="number the classes 0, 1, 2, …, and use −1 for unknown",
        )
    return array.astype(np.int64)


def class_names(labels: Any) -> tuple[str, ...]:
    """Return the distinct names in ``labels``, sorted; empty if the labels are not names.

    >>> class_names(["dog", "cat", None, "dog"])
    ('cat', 'dog')
    """
    array = None if labels is None else as_array(labels, "labels", EmbeddingsError)
    return tuple(sorted(_names(array))) if array is not None and array.ndim == 1 else ()


def _names(labels: Array) -> set[str]:
    """The distinct strings in ``labels``; empty unless every label is a string or missing."""
    if labels.dtype.kind not in "UO":
        return set()
    names = [label for label in labels.tolist() if not _is_missing(label)]
    return set(names) if all(isinstance(name, str) for name in names) else set()


def _is_missing(label: object) -> bool:
    return not isinstance(label, str) and str(label) in ("None", "nan", "<NA>")   # as pandas writes missing names


def _indices(names: Array, classes: Sequence[str]) -> Integers:
    position = {name: index for index, name in enumerate(classes)}
    unknown = [name for name in _names(names) if name not in position]
    if unknown:
        raise EmbeddingsError(
            "labels that are names must be among the classes",
            got=repr(min(unknown)),
            cure="pass classes=[…] with every name" if not classes else "correct the label, or add it to the classes",
        )
    return np.array([UNKNOWN if _is_missing(name) else position[name] for name in names.tolist()], np.int64)


def as_ids(values: Any, count: int) -> list[int] | list[str]:
    """Return ``values`` as ``count`` distinct ids: all 64-bit integers, or all strings of at most 512 characters."""
    values = values.tolist() if isinstance(values, np.ndarray) and values.dtype == np.object_ else values
    _check_short(values)   # before numpy gives every row the space of the longest
    texts = isinstance(values, (list, tuple)) and all(isinstance(id, str) for id in values)
    array = np.array(values, np.object_) if texts else as_array(values, "ids", EmbeddingsError)
    integers = array.dtype.kind in "iu"
    # numpy turns [1, "a"] into strings, so the type is checked on the values passed in, not on the array.
    ids = array.tolist() if isinstance(values, np.ndarray) or integers or array.ndim == 0 else list(values)
    # numpy pads strings with NUL, so an id that ends in NUL would be read back shorter.
    if array.ndim != 1 or not (integers or all(isinstance(id, str) and "\0" not in id for id in ids)):
        raise EmbeddingsError(
            "ids must be one-dimensional: one integer, or one string without NUL, per vector",
            got=f"shape {array.shape}, {array.dtype}: {shown(ids)}",
            cure="use all integers or all strings; leave ids out for 0, 1, 2, …",
        )
    _check_length("ids", array, count)
    if integers and len(array) and int(array.max()) > np.iinfo(np.int64).max:
        raise EmbeddingsError("ids must fit in 64 signed bits", got=array.max(), cure="use strings for larger ids")
    check_unique(ids)
    return ids


def _check_short(ids: Any) -> None:
    if isinstance(ids, np.ndarray) and ids.dtype != object:
        longest = ids.dtype.itemsize // 4 if ids.dtype.kind == "U" else 0   # an upper bound
        each = ids.ravel() if longest > ID_CHARACTERS else ()
    else:
        each = ids if hasattr(ids, "__len__") and not hasattr(ids, "detach") else ()
    for row, id in enumerate(each):
        if isinstance(id, str) and len(id) > ID_CHARACTERS:
            raise EmbeddingsError(
                f"an id must have at most {ID_CHARACTERS} characters",
                got=f"{len(id):,} in row {row}: {id[:40]!r}…",
                cure="use a shorter id, such as a hash of it",
            )


def check_unique(ids: list[int] | list[str], earlier: dict[int | str, None] | None = None) -> None:
    """Raise if an id occurs twice, is among the ``earlier`` ids, or is of another type than these."""
    if earlier and ids and type(ids[0]) is not type(next(iter(earlier))):
        raise EmbeddingsError("ids must be all integers or all strings", got="both", cure="convert them")
    seen = set()
    for id in ids:
        if id in seen or (earlier and id in earlier):
            raise EmbeddingsError("ids must be unique", got=f"{shown(id)} twice", cure="give each row its own id")
        seen.add(id)


def has_unit_norms(vectors: Array) -> bool:
    """Return whether every norm is 0, or 1 within the rounding of float16 and of four printed decimals."""
    norms = np.linalg.norm(vectors.astype(np.float32, copy=False), axis=1)
    return bool(np.all((np.abs(norms - 1) < 1e-3) | (norms == 0)))


def check_normalized(vectors: Array) -> None:
    """Raise unless all vectors have the norm that ``normalized=True`` promises."""
    if not has_unit_norms(vectors):
        raise EmbeddingsError(
            "vectors written with normalized=True must have norm 1",
            got="other norms",
            cure="normalise them first, or leave normalized out",
        )


def _check_length(name: str, array: Array, count: int) -> None:
    if len(array) != count:
        raise EmbeddingsError(
            f"{name} must have one entry for each of the {count} vectors",
            got=len(array),
            cure=f"pass {count} {name}",
        )
