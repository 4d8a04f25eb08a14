"""A map of an index: its rows on a plane, by the two principal components of their first dims.

The map of each dim is turned to lie as near as possible to that of the full dim, so that a row stays near its place
when the dim changes.

>>> rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
>>> plane = Plane.fit(rows, 4)
>>> plane.place(rows).shape, bool(np.abs(plane.place(rows)).max() <= 1)
((50, 2), True)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from matryo.nesting import truncate

if TYPE_CHECKING:
    from matryo.arrays import Floats
    from matryo.retrieve.vectors.types import Doubles

__all__ = ["Plane"]


@dataclass(frozen=True, eq=False)
class Plane:
    """A plane through the first ``dim`` dims."""

    dim: int
    unit: bool
    """Whether prefixes are normalised first."""
    mean: Doubles
    axes: Doubles
    """[dim, 2]"""
    share: float
    """The share of the variance of the prefixes that the plane shows."""
    centre: Doubles | float = 0.0
    """Of the places of the fitted rows, before they are scaled."""
    scale: float = 1.0

    @classmethod
    def fit(cls, vectors: Floats, dim: int, like: Plane | None = None, *, unit: bool = True) -> Plane:
        """The plane of the two largest principal components, turned like that of another dim."""
        prefixes = truncate(vectors, dim, normalize=unit).astype(np.float64)
        mean = prefixes.mean(0)
        values, directions = np.linalg.eigh(np.cov(prefixes - mean, rowvar=False).reshape(dim, dim))
        axes = directions[:, : -min(2, dim) - 1 : -1]
        if dim == 1:
            axes = np.hstack([axes, np.zeros((1, 1))])
        plane = cls(dim, unit, mean, axes, float(values[-2:].sum() / max(values.sum(), np.finfo(float).tiny)))
        places = plane._places(vectors)
        if like is not None:   # the orthogonal Procrustes problem
            left, _, right = np.linalg.svd(places.T @ like._places(vectors))
            plane = replace(plane, axes=axes @ left @ right)
            places = plane._places(vectors)
        low, high = places.min(0), places.max(0)
        return replace(plane, centre=(low + high) / 2, scale=2 / max(float((high - low).max()), np.finfo(float).tiny))

    def place(self, vectors: Floats) -> Doubles:
        """The places of ``vectors``, [n, 2], within −1 … 1 as those of the fitted rows are."""
        return np.clip((self._places(vectors) - self.centre) * self.scale, -1, 1)

    def _places(self, vectors: Floats) -> Doubles:
        places: Doubles = (truncate(vectors, self.dim, normalize=self.unit) - self.mean) @ self.axes
        return places
