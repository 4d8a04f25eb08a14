"""The rotation of an index: its vectors are stored rotated, queries are rotated when they come in.

An orthogonal map changes no inner product, norm or distance, so every search has the hits that it would have without,
up to rounding. Vectors come back as they were put in, up to the precision of the stored ones.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError, InputError
from matryo.retrieve.vectors.blocks import tiles
from matryo.retrieve.vectors.queries import as_floats
from matryo.retrofit import Retrofit
from matryo.retrofit.folder import as_json, as_tensors, rebuilt

if TYPE_CHECKING:
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array, Floats


@dataclass(frozen=True, eq=False)
class Rotation:
    """A map under the name by which commits refer to it."""

    name: str
    retrofit: Retrofit

    @classmethod
    def of(cls, retrofit: Retrofit, dim: int, metric: Metric) -> Rotation:
        """``retrofit`` for vectors of an index, or raise if it does not fit them."""
        if retrofit.dim != dim:
            raise EmbeddingsError(
                f"a rotation of this index must have {dim} columns, as its vectors have",
                got=retrofit.dim,
                cure="fit a map on vectors of this index: rotation='auto'",
            )
        if not retrofit.is_rotation:
            cure = "pass the map for all dims, as Retrofit.fit returns it"
            raise InputError("an index takes a rotation", got=f"rung {retrofit.rung}", cure=cure)
        if not retrofit.keeps_scores and metric != "l2":
            raise InputError(
                f"a map that subtracts a mean changes scores of metric {metric}",
                got=f"rung {retrofit.rung}",
                cure="use a rotation without a mean: rotation='auto'",
            )
        return cls(secrets.token_hex(8), retrofit)

    @property
    def digest(self) -> str:
        """The SHA-256 of the map, whatever its name."""
        mean = b"" if self.retrofit.mean is None else self.retrofit.mean.tobytes()
        return hashlib.sha256(self._axes.tobytes() + mean).hexdigest()

    @cached_property
    def _axes(self) -> Floats:
        return np.ascontiguousarray(self.retrofit.axes)

    @cached_property
    def _back(self) -> Floats:
        return np.ascontiguousarray(self.retrofit.axes.T)

    def turn(self, vectors: Array) -> Floats:
        """Return vectors [n, d] as the index stores them."""
        return self._mapped(vectors, self._turned)

    def back(self, vectors: Array) -> Floats:
        """Return stored vectors [n, d] as they were put in."""
        return self._mapped(vectors, self._returned)

    def turn_queries(self, queries: Array) -> Floats:
        """Return queries in the space of the stored vectors; shapes and types are checked."""
        vectors = as_floats(queries, self.retrofit.dim)
        with np.errstate(over="ignore", invalid="ignore"):   # the search reports queries that are not finite
            return self._turned(vectors)

    def _turned(self, vectors: Floats) -> Floats:
        mean = self.retrofit.mean
        return np.asarray((vectors if mean is None else vectors - mean) @ self._axes)

    def _returned(self, vectors: Floats) -> Floats:
        found, mean = vectors @ self._back, self.retrofit.mean
        return np.asarray(found if mean is None else found + mean)

    def _mapped(self, vectors: Array, change: Any) -> Floats:
        out = np.empty(vectors.shape, np.float32)
        for part in tiles(len(vectors), vectors.shape[1]):
            out[part] = change(np.asarray(vectors[part], np.float32))
        return out

    def to_bytes(self) -> tuple[str, bytes]:
        """The map as JSON text and the bytes of its matrices."""
        from safetensors.numpy import save

        return json.dumps(as_json(self.retrofit)), save(as_tensors(self.retrofit, moments=False))

    @classmethod
    def from_bytes(cls, name: str, text: str, tensors: bytes) -> Rotation:
        """Rebuild the rotation from :meth:`to_bytes`."""
        from safetensors.numpy import load

        return cls(name, rebuilt(json.loads(text), load(tensors)))
