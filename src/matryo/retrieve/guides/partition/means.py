"""k-means: assign each vector to the nearest of a number of means, and to a second one.

For cosine, vectors and means have norm 1 (spherical k-means).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.compiled import core, default_threads
from matryo.retrieve.vectors.blocks import tiles

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Doubles, Floats, Indices

SAMPLE = 40   # training vectors per mean; more do not improve searches
_ROUNDS = 7
_FEW = 32   # vectors that one thread assigns
_APART = 1e-3   # relative distance between the two halves of a mean that is split
_TINY = np.finfo(np.float32).tiny
_ROUNDING = 2.0**-46   # more than the relative error of a sum in float64


def find_means(vectors: Floats, count: int, *, round_: bool, rng: np.random.Generator) -> Floats:
    """Return ``count`` means of the ``vectors``; on the unit sphere if ``round_``.

    A mean without vectors is moved next to one of the means with the most vectors.
    """
    width = vectors.shape[1]
    means = np.zeros((count, width), np.float32)
    first = vectors[rng.permutation(len(vectors))[:count]]
    means[: len(first)] = first
    for _ in range(_ROUNDS if len(vectors) > count else 0):
        near = nearest_mean(vectors, means, round_=round_)
        sizes = np.bincount(near, minlength=count)
        used = np.flatnonzero(sizes)
        firsts = (np.cumsum(sizes) - sizes)[used]
        means[used] = np.add.reduceat(vectors[np.argsort(near, kind="stable")], firsts) / sizes[used, None]
        unused = np.flatnonzero(sizes == 0)
        crowded = means[np.argsort(-sizes, kind="stable")[: len(unused)]]
        lengths = np.linalg.norm(crowded, axis=1, keepdims=True) * np.float32(_APART / width**0.5)
        means[unused] = crowded + lengths * rng.standard_normal(crowded.shape, np.float32)
        if round_:
            means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), _TINY)
    return means


class Means:
    """Means that are prepared once, so that placing one vector costs only its own work. Threads may share them."""

    def __init__(self, means: Floats, *, round_: bool) -> None:
        self._means, self._round = means, round_
        compiled = core()
        self._compiled: Any = compiled and compiled.Means(np.ascontiguousarray(means, np.float32), not round_)

    def nearest(self, vectors: Floats, copies: int = 1) -> Indices:
        """Return the numbers of one or two means per vector, [vectors, copies], as :func:`two_means` does."""
        chosen = np.empty((len(vectors), copies), np.int64)
        if self._compiled is not None:
            threads = default_threads() if len(vectors) > _FEW else 1   # asking takes longer than a few vectors
            self._compiled.nearest(np.ascontiguousarray(vectors, np.float32), chosen, threads)
            return chosen
        for part in tiles(len(vectors), len(self._means)):
            chosen[part] = assigned_by_numpy(vectors[part], self._means, copies, self._round)
        return chosen


def nearest_mean(vectors: Floats, means: Floats, *, round_: bool) -> Indices:
    """Return the number of the nearest mean of each vector; of equally near ones the smaller number."""
    return Means(means, round_=round_).nearest(vectors)[:, 0]


def two_means(vectors: Floats, means: Floats, *, round_: bool) -> Indices:
    """Return the numbers of two means per vector, [vectors, 2]: the nearest, and one that covers for it.

    A query is far from the nearest mean of one of its neighbours when the difference of the two vectors points along
    the residual, the way from the mean to the neighbour. So the second mean is near, but with a residual that is not
    parallel to the first one (SOAR: Sun et al., 2023, with λ = 1).
    """
    return Means(means, round_=round_).nearest(vectors, 2)


def assigned_by_numpy(vectors: Floats, means: Floats, copies: int, round_: bool) -> Indices:
    """Return what the compiled core does, from whole matrices of scores in float64.

    Vectors and means are taken relative to the mean of the means, so that those far from the origin lose nothing.
    """
    centre = means.astype(np.float64).mean(0)
    apart, centred = vectors - centre, means - centre
    squares = np.square(centred).sum(1)
    scores, offsets = apart @ centred.T, centred @ centre if round_ else -squares / 2
    scores += offsets
    errors = _ROUNDING * (np.sqrt(np.square(apart).sum(1)[:, None] * squares) + np.abs(offsets))
    near = _largest(scores, errors)
    if copies == 1:
        return near[:, None]
    if len(means) < 2:
        return np.zeros((len(vectors), 2), np.int64)
    residual = apart - centred[near]
    lengths = np.square(residual).sum(1)
    parallel = residual @ centred.T
    parallel -= np.einsum("ij,ij->i", residual, apart)[:, None]
    scores -= np.square(parallel) / np.where(lengths > 0, lengths, np.inf)[:, None] / 2
    scores[np.arange(len(near)), near] = -np.inf
    return np.stack([near, _largest(scores, errors)], axis=1)


def _largest(scores: Doubles, errors: Doubles) -> Indices:
    # BLAS may round equal scores differently: what differs by less than its errors is a tie.
    return np.asarray((scores + errors >= (scores - errors).max(1, keepdims=True)).argmax(1))
