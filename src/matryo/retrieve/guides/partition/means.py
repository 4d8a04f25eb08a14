"""k-means with BLAS: assign each vector to the nearest of a number of means.

For cosine, vectors and means have norm 1 (spherical k-means).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.vectors.blocks import tiles

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Floats, Indices

SAMPLE = 64   # training vectors per mean; more do not improve searches
_ROUNDS = 8
_APART = 1e-3   # relative distance between the two halves of a mean that is split


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
            means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return means


def nearest_mean(vectors: Floats, means: Floats, *, round_: bool) -> Indices:
    """Return the number of the nearest mean of each vector."""
    halves = np.square(means).sum(1) / 2
    near = np.empty(len(vectors), np.int64)
    for part in tiles(len(vectors), len(means)):
        products = vectors[part] @ means.T
        if not round_:
            products -= halves
        near[part] = products.argmax(1)
    return near

