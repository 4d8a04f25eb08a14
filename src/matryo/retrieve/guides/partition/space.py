"""The space of the tiles: the first columns of a row, or its first principal coordinates.

A rotation to the principal axes changes no inner product, and puts most of it into few coordinates. Vectors that were
trained to be nested need none: their first columns are nearly as good, and a query need not be rotated.

For cosine and inner products, codes are those of rows of norm 1: where norms differ much, codes of the rows themselves
would be too coarse for short rows and clip the long ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Floats

_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True, eq=False)
class Space:
    """Maps rows to the coordinates of the tiles."""

    blocks: Blocks
    metric: Metric
    axes: Floats
    """The rotation, [columns of a row, dim]; empty for the first columns."""
    dim: int

    def whole(self, rows: Any) -> Floats:
        """Return all columns of some rows; divided by their norms, but for L2."""
        vectors = self.blocks.rows(rows, self.blocks.nesting.dim)
        if self.metric != "l2":
            vectors /= np.maximum(self.blocks.norms[rows, -1, None], _TINY)
        return vectors

    def lengths(self, rows: Any) -> Floats:
        """Return the factors that turn scores of ``whole`` into those of the rows: the norms for inner products."""
        norms: Floats = np.maximum(self.blocks.norms[rows, -1], _TINY)
        return norms if self.metric == "ip" else np.ones_like(norms)

    def tile(self, vectors: Floats) -> Floats:
        """Return the coordinates of the tiles, given all columns."""
        return vectors @ self.axes if len(self.axes) else np.ascontiguousarray(vectors[:, : self.dim])

    def divided(self, coordinates: Floats, lengths: Floats) -> Floats:
        """Return the coordinates that k-means divides: for cosine those of norm 1, otherwise those of the rows."""
        if self.metric != "cosine":
            return coordinates * lengths[:, None] if self.metric == "ip" else coordinates
        unit: Floats = coordinates / np.maximum(np.linalg.norm(coordinates, axis=1, keepdims=True), _TINY)
        return unit


def principal_axes(vectors: Floats) -> Floats:
    """Return the principal axes of ``vectors``, the one of the largest variance first, [columns, columns]."""
    rows = vectors.astype(np.float64)
    return np.linalg.eigh(rows.T @ rows)[1][:, ::-1].astype(np.float32)
