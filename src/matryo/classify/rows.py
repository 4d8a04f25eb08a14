"""Rows to classify, from logits or from vectors and a head: logits at increasing dims, for the rows still open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arrays import as_array
from matryo.embeddings import EmbeddingSet
from matryo.errors import InputError, NestingError, shown
from matryo.nesting import Nesting, as_nesting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Array, Integers
    from matryo.embeddings import Head

_BATCH = 4 << 20   # vector entries or logits per batch


Batch = Callable[[int, "Integers"], "Array"]
"""Returns the logits of some rows of a batch at a dim. Each call has a larger dim and some of the previous rows."""


@dataclass(frozen=True, eq=False)
class Rows:
    """All rows, from any source of logits."""

    dims: tuple[int, ...]
    """The dims at which there are logits."""
    count: int
    classes: int
    """The number of classes."""
    batch: Callable[[slice], Batch]
    """Returns a batch of some of the rows."""
    tied: bool = False
    """Whether a dim adds to the sums of the previous dim."""
    features: int | None = None
    """The number of columns of the vectors, if there are vectors."""

    def parts(self) -> Iterator[slice]:
        """Yield all rows in parts that fit in memory."""
        step = max(1, _BATCH // max(self.classes, self.features or 1))
        for start in range(0, self.count, step):
            yield slice(start, min(start + step, self.count))


def read_rows(x: Any, nesting: Nesting | Sequence[int] | None, head: Head | None) -> Rows:
    """Read logits by dim, vectors [n, d] for the ``head``, or embeddings that hold their own head."""
    dims = None if nesting is None else as_nesting(nesting).dims
    if hasattr(x, "toarray"):   # checked first, because some sparse matrices are mappings
        raise InputError("X must not be sparse", got=type(x).__name__, cure="give X.toarray()")
    if isinstance(x, EmbeddingSet):
        if (head := head or x.head) is None:
            raise InputError(
                "these embeddings must hold the head that classifies them",
                got=f"{x.path} without one",
                cure="encode with matryo encode, or write them with head=…",
            )
        return _vectors(np.asarray(x.vectors), dims, head)
    if isinstance(x, Mapping):
        if not x or not all(isinstance(dim, int | np.integer) for dim in x):
            raise NestingError("logits must be a dict by dim", got=shown(list(x)), cure="pass {8: logits, 16: logits}")
        return _logits(_of_dims(x, dims), sorted(x) if dims is None else dims)
    array = _as_array(x)
    if array.ndim == 3:
        return _logits(list(array), dims)
    if head is None:
        raise InputError(
            "Cascade needs logits by dim [dims, n, classes], or a head for vectors [n, d]",
            got=f"an array of shape {array.shape} and no head",
            cure="give Cascade(head=…), or stack the logits",
        )
    return _vectors(array, dims, head)


def _separate(head: Head, vectors: Array) -> Batch:
    return lambda dim, rows: head.logits(_columns(vectors, rows, 0, dim), dim)


class _TiedBatch:
    """Keeps the sums of the rows still open, and adds each new block to them."""

    def __init__(self, head: Head, vectors: Array) -> None:
        self.weight, self.bias = head.weights[head.dim], head.biases.get(head.dim)
        self.vectors, self.rows, self.done = vectors, np.arange(len(vectors)), 0
        self.sums = np.zeros((len(vectors), head.classes), np.float32)

    def __call__(self, dim: int, rows: Integers) -> Array:
        if len(rows) < len(self.rows):
            self.sums = self.sums[np.searchsorted(self.rows, rows)]
        block = _columns(self.vectors, rows, self.done, dim)
        self.sums += block @ self.weight[:, self.done : dim].T
        self.rows, self.done = rows, dim
        return self.sums if self.bias is None else self.sums + self.bias


def _columns(vectors: Array, rows: Integers, low: int, high: int) -> Array:
    block = vectors[:, low:high]
    return block if len(rows) == len(vectors) else block[rows]


def _of_dims(by_dim: Mapping[int, Any], dims: Sequence[int] | None) -> list[Any]:
    if missing := [m for m in dims or () if m not in by_dim]:
        raise NestingError(
            "there must be logits for every dim of the cascade",
            got=f"none for {', '.join(map(str, missing))}",
            cure="add them, or list the dims that there are: Cascade([…])",
        )
    return [by_dim[m] for m in (sorted(by_dim) if dims is None else dims)]


def _logits(given: Sequence[Any], dims: Sequence[int] | None) -> Rows:
    if dims is None or len(dims) != len(given):
        raise NestingError(
            "there must be as many dims as logits",
            got=f"logits at {len(given)} dims, {'no' if dims is None else len(dims)} dims",
            cure="list the dims: Cascade([…])",
        )
    arrays = [_as_array(logits) for logits in given]
    shapes = {logits.shape for logits in arrays}
    if len(shapes) > 1 or arrays[0].ndim != 2 or arrays[0].shape[1] < 2:
        raise InputError(
            "logits must be [n, classes] at each dim, of the same rows and of at least two classes",
            got=", ".join(map(str, sorted(shapes))),
            cure="stack them as [dims, n, classes]",
        )
    nesting, (count, classes) = Nesting(dims), arrays[0].shape
    by_dim = dict(zip(nesting.dims, arrays, strict=True))
    # How the logits were computed is unknown; assume that each dim started again, which costs more.
    return Rows(nesting.dims, count, classes, lambda part: lambda dim, rows: by_dim[dim][part][rows])


def _vectors(vectors: Array, dims: Sequence[int] | None, head: Head) -> Rows:
    nesting = Nesting(head.dims if dims is None else dims)
    nesting.check_fits(head.dim)
    if head.kind == "separate" and (strange := [m for m in nesting.dims if m not in head.dims]):
        raise NestingError(
            "a separate head classifies only at its own dims",
            got=", ".join(map(str, strange)),
            cure=f"choose from {', '.join(map(str, head.dims))}",
        )
    if vectors.ndim != 2 or vectors.shape[1] < nesting.dim:
        raise InputError(
            f"vectors must be an array [n, d] of at least {nesting.dim} columns, which the head reads",
            got=f"shape {vectors.shape}",
            cure="Reshape your data to one vector per row, from the encoder that the head was trained with",
        )
    batch: Callable[[Head, Array], Batch] = _TiedBatch if head.kind == "tied" else _separate
    return Rows(
        nesting.dims,
        len(vectors),
        head.classes,
        lambda part: batch(head, np.asarray(vectors[part], np.float32)),
        tied=head.kind == "tied",
        features=vectors.shape[1],
    )


def _as_array(values: Any) -> Array:
    array = as_array(values, "logits and vectors")
    if array.dtype.kind not in "fiu":
        raise InputError("logits and vectors must be real numbers", got=array.dtype, cure="convert them first")
    return array
