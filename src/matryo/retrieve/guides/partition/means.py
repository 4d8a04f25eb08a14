"""k-means with BLAS: assign each vector to the nearest of a number of means, and to a second one.

For cosine, vectors and means have norm 1 (spherical k-means).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.vectors.blocks import tiles

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Floats, Indices

SAMPLE = 40   # training vectors per mean; more do not improve searches
_ROUNDS = 7
_APART = 1e-3   # relative distance between the two halves of a mean that is split
_TINY = np.finfo(np.float32).tiny


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


def nearest_mean(vectors: Floats, means: Floats, *, round_: bool) -> Indices:
    """Return the number of the nearest mean of each vector."""
    near = np.empty(len(vectors), np.int64)
    for part in tiles(len(vectors), len(means)):
        near[part] = _closeness(vectors[part], means, round_).argmax(1)
    return near


def two_means(vectors: Floats, means: Floats, *, round_: bool) -> Indices:
    """Return the numbers of two means per vector, [vectors, 2]: the nearest, and one that covers for it.

    A query is far from the nearest mean of one of its neighbours when the difference of the two vectors points along
    the residual, the way from the mean to the neighbour. So the second mean is near, but with a residual that is not
    parallel to the first one (SOAR: Sun et al., 2023, with λ = 1).
    """
    if len(means) < 2:
        return np.zeros((len(vectors), 2), np.int64)
    chosen = np.empty((len(vectors), 2), np.int64)
    for part in tiles(len(vectors), len(means)):
        some = vectors[part]
        loss = _closeness(some, means, round_)
        near = loss.argmax(1)
        along = some - means[near]
        along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), _TINY)
        loss *= -2   # up to ‖x‖², the squared distance
        parallel = along @ means.T
        parallel -= np.einsum("ij,ij->i", some, along)[:, None]
        loss += np.square(parallel, out=parallel)
        loss[np.arange(len(some)), near] = np.inf
        chosen[part, 0], chosen[part, 1] = near, loss.argmin(1)
    return chosen


def _closeness(vectors: Floats, means: Floats, round_: bool) -> Floats:
    products: Floats = vectors @ means.T
    if not round_:
        products -= np.square(means).sum(1) / 2
    return products
