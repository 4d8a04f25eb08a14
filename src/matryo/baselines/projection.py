"""Random projection, after Johnson and Lindenstrauss: Gaussian directions that know nothing of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.baselines.map import Map

if TYPE_CHECKING:
    from matryo.embeddings import EmbeddingSet

__all__ = ["RandomProjection"]


@dataclass(frozen=True)
class RandomProjection:
    """m Gaussian directions, each dim's among the next one's; average several seeds.

    The d × d entries are drawn independently, so the first m columns are a d × m Gaussian matrix of their own,
    which is all the lemma asks: ``√(d/m)`` times the first m columns keeps lengths and distances, in the mean over
    seeds exactly and each within about ``√(2/m)`` of itself. The cosine needs no such factor. The directions are
    not made orthogonal: prefixes of a rotation would keep distances better, and at full dim perfectly, but would
    be another baseline than the lemma's. ``normalize`` as for :class:`~matryo.baselines.PCA`; no head is carried.
    """

    seed: int = 0
    normalize: bool = True

    def fit(self, train: EmbeddingSet) -> Map:
        """Nothing is learned: the directions are drawn once."""
        drawn = np.random.default_rng(self.seed).standard_normal((train.dim, train.dim))
        return Map(drawn / np.sqrt(train.dim), np.zeros(train.dim), self.normalize, orthogonal=False)
