"""Bridges: closed-form maps of vectors of an old model into the space of a new one, fitted to items encoded by both.

==============  =================================================================================================
``procrustes``  a rotation and one scale around the means: the fewest numbers to learn, so it needs the fewest items
``low_rank``    ridge regression whose outputs are limited to the directions that it predicts best
``residual``    ``low_rank`` and a correction by ridge regression on rectified random features of the old vectors
==============  =================================================================================================

>>> rng = np.random.default_rng(0)
>>> old = rng.normal(size=(200, 8))
>>> turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
>>> bridge = procrustes(old, 3 * old @ turn + 1)
>>> bool(np.allclose(bridge.apply(old), 3 * old @ turn + 1, atol=1e-5))
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.retrofit.correction import Correction, check_matrix

if TYPE_CHECKING:
    from matryo.arrays import Array, Doubles, Floats

NAMES = ("procrustes", "low_rank", "residual")
"""The bridges, from the simplest on."""
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The penalties that are tried, relative to the mean variance of a feature."""
RANKS = (0.25, 0.5, 1.0)
"""The shares of the directions that are tried."""
_HIDDEN = 1024   # rectified random features of a correction
_ROWS = 8192   # rows that are mapped together


@dataclass(frozen=True, eq=False)
class Bridge:
    """A map of rows [n, old] to rows [n, new]: affine, and perhaps a correction by rectified features."""

    name: str
    centre: Floats
    """[old], subtracted first."""
    weight: Floats
    """[old, new]"""
    offset: Floats
    """[new], added last."""
    correction: Correction | None = None
    """Added to the output, from the centred rows."""

    def apply(self, vectors: Array) -> Floats:
        """Return the rows mapped, as float32."""
        out = np.empty((len(vectors), self.weight.shape[1]), np.float32)
        for start in range(0, len(vectors), _ROWS):
            rows = np.asarray(vectors[start : start + _ROWS], np.float32) - self.centre
            part = rows @ self.weight + self.offset
            out[start : start + len(rows)] = part if self.correction is None else part + self.correction.apply(rows)
        return out

    def tensors(self) -> dict[str, Any]:
        """The matrices by name."""
        own = {name: np.ascontiguousarray(getattr(self, name), np.float32) for name in ("centre", "weight", "offset")}
        return own | ({} if self.correction is None else self.correction.tensors("correction."))


def procrustes(old: Array, new: Array) -> Bridge:
    """The rotation and scale that bring the old vectors nearest to the new ones, around both means."""
    centre, offset = _mean(old), _mean(new)
    rows = old - centre
    left, values, right = np.linalg.svd(rows.T @ (new - offset), full_matrices=False)
    scale = values.sum() / max(float(np.square(rows @ left).sum()), np.finfo(float).tiny)
    return _bridge("procrustes", centre, scale * left @ right, offset)


def low_rank(old: Array, new: Array, ridge: float, rank: float) -> Bridge:
    """Ridge regression, projected to the share ``rank`` of the directions that vary most in its predictions."""
    centre, offset = _mean(old), _mean(new)
    rows = old - centre
    weight = _ridge(rows, new - offset, ridge)
    most = min(weight.shape)
    if (kept := max(1, round(rank * most))) < most:
        predicted = rows @ weight
        axes = np.linalg.eigh(predicted.T @ predicted)[1][:, -kept:]
        weight = weight @ axes @ axes.T
    return _bridge("low_rank", centre, weight, offset)


def residual(old: Array, new: Array, start: Bridge, ridge: float, seed: int = 0) -> Bridge:
    """The bridge ``start`` with a correction of what it leaves, by ridge regression on rectified random features."""
    rng = np.random.default_rng(seed)
    rows = old - start.centre
    length = max(float(np.sqrt(np.square(rows).sum(axis=1).mean())), np.finfo(float).tiny)
    directions = rng.normal(size=(old.shape[1], _HIDDEN)) / length
    shifts = rng.normal(size=_HIDDEN)
    features = np.maximum(rows @ directions + shifts, 0)
    left, mean = new - start.apply(old), features.mean(axis=0)
    weight = _ridge(features - mean, left, ridge)
    made = Correction(*(np.asarray(array, np.float32) for array in (directions, shifts, weight)))
    return _bridge("residual", start.centre, start.weight, start.offset + left.mean(axis=0) - mean @ weight, made)


def rebuilt(name: str, tensors: dict[str, Any]) -> Bridge:
    """The bridge of :meth:`Bridge.tensors`; raise for matrices that do not fit together."""
    old, new = tensors["weight"].shape
    centre, offset = (check_matrix(tensors[part], (size,), part) for part, size in (("centre", old), ("offset", new)))
    weight = check_matrix(tensors["weight"], (old, new), "weight")
    return Bridge(name, centre, weight, offset, Correction.of_tensors(tensors, "correction.", old, new))


def _ridge(rows: Array, targets: Array, ridge: float) -> Doubles:
    """The weights of least squares with a penalty relative to the mean variance of a column."""
    gram = np.asarray(rows.T @ rows, np.float64)
    penalty = ridge * max(float(np.trace(gram)) / len(gram), np.finfo(float).tiny)
    return np.asarray(np.linalg.solve(gram + penalty * np.eye(len(gram)), rows.T @ targets))


def _mean(vectors: Array) -> Doubles:
    return np.asarray(vectors.mean(axis=0, dtype=np.float64))


def _bridge(name: str, centre: Array, weight: Array, offset: Array, correction: Correction | None = None) -> Bridge:
    centre, weight, offset = (np.asarray(array, np.float32) for array in (centre, weight, offset))
    return Bridge(name, centre, weight, offset, correction)
