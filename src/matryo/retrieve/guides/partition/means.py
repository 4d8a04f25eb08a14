"""k-means: vectors that lie near each other get one number, found through BLAS on a sample of them.

Directions where the metric is the cosine (the vectors are of length 1, and so are the means), points elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["SAMPLE", "find_means", "nearest_mean", "parts"]

SAMPLE = 64   # vectors a mean is learned from; more do not help a search
_ROUNDS = 8
_TILE = 4 << 20   # numbers at a time
_APART = 1e-3   # how far, of its length, the halves of a mean that is divided begin from each other


def find_means(vectors: Floats, count: int, *, round_: bool, rng: np.random.Generator) -> Floats:
    """``count`` means of the ``vectors``; on the unit sphere if ``round_``.

    A mean that nobody is near to becomes the neighbour of the one that has most.
    """
    width = vectors.shape[1]
    means = np.zeros((count, width), np.float32)
    begin = vectors[rng.permutation(len(vectors))[:count]]
    means[: len(begin)] = begin
    for _ in range(_ROUNDS if len(vectors) > count else 0):
        near = nearest_mean(vectors, means, round_=round_)
        sizes = np.bincount(near, minlength=count)
        some = np.flatnonzero(sizes)
        firsts = (np.cumsum(sizes) - sizes)[some]
        means[some] = np.add.reduceat(vectors[np.argsort(near, kind="stable")], firsts) / sizes[some, None]
        none = np.flatnonzero(sizes == 0)
        crowded = means[np.argsort(-sizes, kind="stable")[: len(none)]]
        lengths = np.linalg.norm(crowded, axis=1, keepdims=True) * np.float32(_APART / width**0.5)
        means[none] = crowded + lengths * rng.standard_normal(crowded.shape, np.float32)
        if round_:
            means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return means


def nearest_mean(vectors: Floats, means: Floats, *, round_: bool) -> Indices:
    """The number of the mean that each vector is nearest to."""
    halves = np.square(means).sum(1) / 2
    near = np.empty(len(vectors), np.int64)
    for part in parts(len(vectors), len(means)):
        products = vectors[part] @ means.T
        if not round_:
            products -= halves
        near[part] = products.argmax(1)
    return near


def parts(count: int, width: int) -> Iterator[slice]:
    """Slices that cover ``count`` rows of ``width`` numbers, of bounded size."""
    step = max(1, _TILE // width)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))
