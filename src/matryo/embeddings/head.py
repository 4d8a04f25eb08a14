"""A linear classifier stored with embeddings, so that numpy can compute logits at any dim.

Its input is the raw vector, before any normalisation, because it was trained on raw vectors.

>>> head = Head.tied([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], dims=(2, 3))
>>> {dim: logits.tolist() for dim, logits in head.all_logits(np.array([[1.0, 2.0, 3.0]]))}
{2: [[1.0, 2.0]], 3: [[7.0, 2.0]]}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from matryo.arguments import checked
from matryo.arrays import as_array
from matryo.errors import EmbeddingsError, NestingError
from matryo.files import parse_json, replacing
from matryo.nesting import Nesting, truncate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike

    from matryo.arrays import Array, Floats


HEAD = "head.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class Head:
    """One classifier per dim ("separate", MRL), or one shared by all dims ("tied", MRL-E).

    Create one with :meth:`separate` or :meth:`tied`.
    """

    kind: Literal["separate", "tied"]
    dims: tuple[int, ...]
    weights: Mapping[int, Floats]
    """[classes, m] for each dim m; a tied head has one entry, at the largest dim."""
    biases: Mapping[int, Floats]
    """[classes] for each dim, like ``weights``; empty if the head has no biases."""

    @classmethod
    @checked
    def tied(cls, weight: ArrayLike, bias: ArrayLike | None = None, *, dims: Sequence[int]) -> Head:
        """Create a head from one ``weight`` [classes, d], whose first m columns are used at dim m, and one ``bias``."""
        matrix = np.asarray(weight)
        columns = matrix.shape[-1] if matrix.ndim else 0
        Nesting(dims).check_fits(columns)
        return _checked("tied", dims, {columns: matrix}, {} if bias is None else {columns: bias})

    @classmethod
    @checked
    def separate(cls, weights: Mapping[int, ArrayLike], biases: Mapping[int, ArrayLike] | None = None) -> Head:
        """Create a head from one weight [classes, m] per dim m, and one bias [classes] per dim or none."""
        return _checked("separate", sorted(weights), weights, biases or {})

    def __repr__(self) -> str:
        """Return a short text without the weights."""
        return f"Head({self.kind}, dims={self.dims}, {self.classes:,} classes)"

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.weights[max(self.weights)])

    @property
    def dim(self) -> int:
        """The largest dim: the number of columns that vectors must have."""
        return max(self.weights)

    @checked
    def logits(self, vectors: Array, dim: int) -> Floats:
        """Return the logits [n, classes] of raw ``vectors`` at ``dim``; a separate head accepts only its own dims."""
        weight = self._weight(dim)
        bias = self.biases.get(self._entry(dim))
        scores = truncate(vectors, dim, normalize=False).astype(np.float32, copy=False) @ weight.T
        return scores if bias is None else scores + bias

    @checked
    def all_logits(self, vectors: Array, dims: Sequence[int] | None = None) -> Iterator[tuple[int, Floats]]:
        """Iterate over (dim, logits), smallest dim first; a tied head adds one block per dim."""
        dims = self.dims if dims is None else Nesting(dims).dims
        if self.kind == "separate":
            yield from ((dim, self.logits(vectors, dim)) for dim in dims)
            return
        weight, bias = self._weight(dims[-1]), self.biases.get(self.dim)
        columns = truncate(vectors, dims[-1], normalize=False).astype(np.float32, copy=False)
        total = np.zeros((*columns.shape[:-1], self.classes), np.float32)
        for low, high in Nesting(dims).blocks:
            total = total + columns[..., low:high] @ weight[:, low:high].T   # not +=: the caller has the previous total
            yield high, total if bias is None else total + bias

    @checked
    def check_fits(self, dim: int, classes: int) -> None:
        """Raise unless the head fits vectors of ``dim`` columns and this number of ``classes`` (0: unknown)."""
        if self.dim > dim or (classes and self.classes != classes):
            raise EmbeddingsError(
                f"the head must read at most {dim} columns" + (f" and have {classes} classes" if classes else ""),
                got=f"{self.dim} columns, {self.classes} classes",
                cure="use the head of the encoder that made the vectors",
            )

    def _entry(self, dim: int) -> int:
        return self.dim if self.kind == "tied" else dim

    def _weight(self, dim: int) -> Floats:
        if self.kind == "separate" and dim not in self.weights:
            raise NestingError(
                "a separate head classifies only at the dims it was trained for",
                got=dim,
                cure=f"choose one of {', '.join(map(str, self.dims))}, or train a tied head",
            )
        return cast("Floats", truncate(self.weights[self._entry(dim)], dim, normalize=False))

    @checked
    def save(self, path: Path) -> None:
        """Write ``path`` (safetensors), atomically."""
        named = {"weight": self.weights, "bias": self.biases}
        tensors = {
            name if self.kind == "tied" else f"{name}.{dim}": np.ascontiguousarray(value)
            for name, by_dim in named.items()
            for dim, value in by_dim.items()
        }
        # One entry, because safetensors writes several in arbitrary order, and equal heads must give equal bytes.
        metadata = {"head": json.dumps({"kind": self.kind, "dims": self.dims})}
        with replacing(path) as file:
            file.write(save(tensors, metadata=metadata))

    @classmethod
    @checked
    def load(cls, path: Path) -> Head:
        """Read a head written by :meth:`save`."""
        try:
            with safe_open(path, framework="numpy") as file:
                about = parse_json((file.metadata() or {})["head"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            if about["kind"] == "tied":
                return cls.tied(tensors["weight"], tensors.get("bias"), dims=about["dims"])
            weights = {m: tensors[f"weight.{m}"] for m in about["dims"]}
            return cls.separate(weights, {m: tensors[f"bias.{m}"] for m in weights if f"bias.{m}" in tensors})
        except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
            raise EmbeddingsError(
                f"{path} must hold a head", got=error, cure="restore the file, or encode again"
            ) from error


def _numbers(values: ArrayLike) -> Floats:
    array = as_array(values, "weights and biases", EmbeddingsError)
    if array.dtype.kind not in "fiub":
        raise EmbeddingsError("weights and biases must be numbers", got=array.dtype, cure="convert them with float()")
    return array.astype(np.float32, copy=False)


def _checked(
    kind: Literal["separate", "tied"],
    dims: Sequence[int],
    weights: Mapping[int, ArrayLike],
    biases: Mapping[int, ArrayLike],
) -> Head:
    w = {m: _numbers(value) for m, value in weights.items()}
    b = {m: _numbers(value) for m, value in biases.items()}
    rows = {len(value) if value.ndim else 0 for value in w.values()}
    weighted = all(value.ndim == 2 and value.shape[1] == m for m, value in w.items()) and len(rows) == 1
    biased = not b or b.keys() == w.keys()
    if not weighted or not biased or not {v.shape for v in b.values()} <= {(r,) for r in rows}:
        raise EmbeddingsError(
            "a head must have a weight [classes, m] for each dim m, and a bias [classes] for each or none",
            got=f"weights {[v.shape for v in w.values()]}, biases {[v.shape for v in b.values()]}",
            cure="transpose the weights, or pass every bias",
        )
    if not all(np.isfinite(value).all() for value in (*w.values(), *b.values())):
        raise EmbeddingsError("a head must be finite", got="NaN or infinity", cure="train it again")
    return Head(kind, Nesting(dims).dims, w, b)
