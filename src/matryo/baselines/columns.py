"""Baselines that select columns: the first m, or m at random.

>>> embeddings = EmbeddingSet.of([[3.0, 4.0, 12.0]])
>>> Truncation().fit(embeddings).apply(embeddings).vectors
array([[ 3.,  4., 12.]], dtype=float32)
>>> RandomFeatures(seed=3).fit(embeddings).apply(embeddings).vectors
array([[12.,  4.,  3.]], dtype=float32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.baselines.map import Map
from matryo.embeddings import EmbeddingSet

if TYPE_CHECKING:
    from matryo.arrays import Integers


@dataclass(frozen=True)
class Truncation:
    """Truncate to the first m columns, which were not trained for this; the head is truncated likewise."""

    @checked
    def fit(self, train: EmbeddingSet) -> Map:
        """Return the identity map; ``train`` only provides the number of columns."""
        return _reordered(np.arange(train.dim))


@checked
@dataclass(frozen=True)
class RandomFeatures:
    """Select m random columns; those of a smaller dim are among those of a larger one. Average several seeds.

    With :func:`matryo.evaluation.linear_probe`, this is the paper's linear probe on random features (Rand. LP).
    """

    seed: int = 0

    @checked
    def fit(self, train: EmbeddingSet) -> Map:
        """Return a random permutation of the columns; ``train`` only provides their number."""
        return _reordered(np.random.default_rng(self.seed).permutation(train.dim))


def _reordered(columns: Integers) -> Map:
    axes = np.eye(len(columns))[:, columns]
    return Map(axes, np.zeros(len(columns)), normalize=False, orthogonal=True)
