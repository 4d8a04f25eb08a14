"""The rungs of the ladder in closed form: orthogonal maps that put the most important directions first.

Each is a matrix of eigenvectors [d, d]; the first m columns span the subspace that the first m dims keep.

==============  =================================================================================================
``identity``    the columns as they are: truncation
``pca``         the eigenvectors of the second moment; no full-dim score changes
``centred``     the principal axes around the mean; subtracting the mean changes cosines and inner products
``queries``     eigenvectors of a mix of the second moments of database and queries, as LeanVec does for queries of
                another distribution; the weight that loses the least of the scores is taken
``blocks``      the eigenvectors within each block of a nesting: prefixes at its dims keep their span
``classes``     eigenvectors of a mix of the scatter between classes and the second moment
``pairs``       eigenvectors of a mix of what queries share with their relevant rows and the second moment
==============  =================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Doubles, Integers
    from matryo.nesting import Nesting

MIXES = (0.2, 0.5, 0.8)
"""The weights of labels against variance that are tried; each is a rung of its own and counts as a test."""
_WEIGHTS = np.linspace(0, 1, 11)


def leading(matrix: Doubles) -> Doubles:
    """The eigenvectors of a symmetric matrix as columns, the largest eigenvalue first, with signs that are fixed."""
    axes = np.linalg.eigh((matrix + matrix.T) / 2)[1][:, ::-1]
    largest = np.abs(axes).argmax(axis=0)
    return np.asarray(axes * np.where(axes[largest, np.arange(axes.shape[1])] < 0, -1.0, 1.0))


def query_aware(rows: Doubles, queries: Doubles, nesting: Nesting) -> Doubles:
    """The axes of the mix of second moments whose prefixes lose the least of the scores q·x, summed over the dims."""
    candidates = [leading((1 - w) * _scaled(rows) + w * _scaled(queries)) for w in _WEIGHTS]
    return min(candidates, key=lambda axes: lost(axes, rows, queries, nesting.dims))


def lost(axes: Doubles, rows: Doubles, queries: Doubles, dims: Sequence[int]) -> float:
    """The mean of (q·x of the columns after m)², over ``dims``, relative to that of all columns."""
    turned_rows, turned_queries = axes.T @ rows @ axes, axes.T @ queries @ axes
    products = turned_rows * turned_queries
    whole = float(products.sum())
    return sum(float(products[m:, m:].sum()) for m in dims) / max(whole, np.finfo(float).tiny)


def within_blocks(second: Doubles, nesting: Nesting) -> Doubles:
    """Block-diagonal axes: each block of ``nesting`` is rotated to its own leading directions."""
    axes = np.eye(len(second))
    for low, high in nesting.blocks:
        axes[low:high, low:high] = leading(second[low:high, low:high])
    return axes


def mixed(second: Doubles, signal: Doubles, weight: float) -> Doubles:
    """The axes of a mix of the second moment and a signal of labels, each scaled to trace 1."""
    return leading((1 - weight) * _scaled(second) + weight * _scaled(signal))


def between_classes(vectors: Doubles, labels: Integers, mean: Doubles) -> Doubles:
    """The scatter of the class means around ``mean``, less what the noise of the means adds on average."""
    names, numbers = np.unique(labels, return_inverse=True)
    counts = np.bincount(numbers)
    means = np.zeros((len(names), vectors.shape[1]))
    np.add.at(means, numbers, vectors)
    means /= counts[:, None]
    centred = (means - mean) * np.sqrt(counts)[:, None]
    within = vectors - means[numbers]
    between = centred.T @ centred
    noise = len(names) / max(1, len(vectors) - len(names)) * (within.T @ within)
    values, axes = np.linalg.eigh(between - noise)
    return np.asarray((axes * np.maximum(values, 0)) @ axes.T)


def of_pairs(queries: Doubles, rows: Doubles) -> Doubles:
    """The symmetric part of E[q xᵀ] over pairs of a query and a relevant row, without its negative directions."""
    cross = queries.T @ rows
    values, axes = np.linalg.eigh((cross + cross.T) / 2)
    return np.asarray((axes * np.maximum(values, 0)) @ axes.T)


def _scaled(matrix: Doubles) -> Doubles:
    return np.asarray(matrix / max(float(np.trace(matrix)), np.finfo(float).tiny))
