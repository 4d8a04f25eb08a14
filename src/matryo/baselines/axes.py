"""Rotations fitted after training: PCA, SVD of the embeddings, and SVD of the classifier.

Each is orthogonal and concentrates a quantity in the first columns: the variance (:class:`PCA`), the squared norm
(:class:`SVD`) or the weights of the classifier (:class:`ClassifierSVD`).

>>> line = EmbeddingSet.of([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
>>> mapped = SVD(normalize=False).fit(line).apply(line).vectors      # the first column holds the whole norm
>>> np.abs(mapped).round(3)
array([[1.414, 0.   ],
       [2.828, 0.   ],
       [5.657, 0.   ]], dtype=float32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.baselines.map import Map, full_weight
from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError
from matryo.nesting import truncate

if TYPE_CHECKING:
    from matryo.arrays import Doubles


@checked
@dataclass(frozen=True)
class PCA:
    """Subtract the training mean, then rotate to the principal axes, largest variance first.

    ``normalize`` first scales vectors to norm 1, as retrieval does; without it, a head is converted too. Centring
    changes angles, so that cosine neighbours change even at full dim.
    """

    normalize: bool = True

    @checked
    def fit(self, train: EmbeddingSet) -> Map:
        """Fit mean and axes to ``train``."""
        mean, second = _moments(train, self.normalize)
        return Map(_leading(second - np.outer(mean, mean)), mean, self.normalize, orthogonal=True)


@checked
@dataclass(frozen=True)
class SVD:
    """Rotate to the right singular vectors of the training embeddings, without centring (FF+SVD in the paper).

    At full dim, cosines do not change. ``normalize`` is as for :class:`PCA`.
    """

    normalize: bool = True

    @checked
    def fit(self, train: EmbeddingSet) -> Map:
        """Fit the singular vectors of ``train``, as eigenvectors of its second moment."""
        _, second = _moments(train, self.normalize)
        return Map(_leading(second), np.zeros(train.dim), self.normalize, orthogonal=True)


@dataclass(frozen=True)
class ClassifierSVD:
    """Truncate the classifier W = U S Vᵀ to rank m: V rotates the vectors, and U S is the head (SVD in the paper).

    Dims above the rank (at most the number of classes) do not change the logits. Vectors are not normalised, because
    the head was trained on raw vectors.
    """

    @checked
    def fit(self, train: EmbeddingSet) -> Map:
        """Fit the axes of the head stored with ``train``."""
        if train.head is None:
            raise EmbeddingsError(
                "the SVD of the classifier needs embeddings with a head",
                got=f"{train.path} without a head",
                cure="encode them with the run that trained the head, or use the SVD of the embeddings",
            )
        _, _, rows = np.linalg.svd(full_weight(train.head, train.dim), full_matrices=True)
        return Map(rows.T, np.zeros(train.dim), normalize=False, orthogonal=True)


def _moments(train: EmbeddingSet, normalize: bool) -> tuple[Doubles, Doubles]:
    # E[z] and E[z zᵀ], in float64 because PCA subtracts one from the other.
    if train.count == 0:
        raise EmbeddingsError("axes must be fitted on at least one vector", got=0, cure="pass training embeddings")
    first, second = np.zeros(train.dim), np.zeros((train.dim, train.dim))
    for start, vectors in train.batches():
        wide = truncate(vectors.astype(np.float64), train.dim, normalize)
        bad = np.flatnonzero(~np.isfinite(wide).all(axis=1))
        if len(bad):
            raise EmbeddingsError(
                "axes must be fitted on finite vectors",
                got=f"NaN or infinity in row {start + bad[0]} of {train.path}",
                cure="check the folder with EmbeddingSet.verify(), and encode those rows again",
            )
        first += wide.sum(axis=0)
        second += wide.T @ wide
    return first / train.count, second / train.count


def _leading(second: Doubles) -> Doubles:
    # eigh returns eigenvalues in increasing order.
    return np.asarray(np.linalg.eigh(second)[1][:, ::-1])
