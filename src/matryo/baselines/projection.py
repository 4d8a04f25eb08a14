"""Random projection after Johnson and Lindenstrauss: Gaussian directions, independent of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.baselines.map import Map

if TYPE_CHECKING:
    from matryo.embeddings import EmbeddingSet


@checked
@dataclass(frozen=True)
class RandomProjection:
    """Project to m Gaussian directions; those of a smaller dim are among those of a larger one. Average several seeds.

    The d × d entries are independent, so the first m columns are a d × m Gaussian matrix, as the lemma requires:
    ``√(d/m)`` times the first m columns preserves norms and distances, exactly in expectation and with a relative
    deviation of about ``√(2/m)``. Cosines need no such factor. The directions are not orthogonalised: prefixes of a
    rotation preserve distances better, and perfectly at full dim, but are not the baseline of the lemma. ``normalize``
    is as for :class:`~matryo.baselines.PCA`; a head is not converted.
    """

    seed: int = 0
    normalize: bool = True

    @checked
    def fit(self, train: EmbeddingSet) -> Map:
        """Return random directions; ``train`` only provides the number of columns."""
        directions = np.random.default_rng(self.seed).standard_normal((train.dim, train.dim))
        return Map(directions / np.sqrt(train.dim), np.zeros(train.dim), self.normalize, orthogonal=False)
