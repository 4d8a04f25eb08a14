"""Better axes, found afterwards: principal ones, singular ones, or those of the classifier.

Each turns the space without deforming it, so that the first columns hold the most of something: of the variance
(:class:`PCA`), of the squared length (:class:`SVD`), of the classifier (:class:`ClassifierSVD`).

>>> line = EmbeddingSet.of([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
>>> mapped = SVD(normalize=False).fit(line).apply(line).vectors      # all length goes into the first column
>>> np.abs(mapped).round(3)
array([[1.414, 0.   ],
       [2.828, 0.   ],
       [5.657, 0.   ]], dtype=float32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.baselines.map import Map, full_weight
from matryo.embeddings import EmbeddingSet
from matryo.errors import EmbeddingsError
from matryo.nesting import truncate

if TYPE_CHECKING:
    Doubles = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["PCA", "SVD", "ClassifierSVD"]


@dataclass(frozen=True)
class PCA:
    """Centre on the training mean, then the directions of most variance first.

    ``normalize`` puts vectors on the unit sphere first, which is where retrieval compares them; without it a head
    is carried along. Centring changes angles, so even at full dim neighbours by cosine are not the same as before.
    """

    normalize: bool = True

    def fit(self, train: EmbeddingSet) -> Map:
        """Mean and axes of ``train``."""
        mean, second = _moments(train, self.normalize)
        return Map(_leading(second - np.outer(mean, mean)), mean, self.normalize, orthogonal=True)


@dataclass(frozen=True)
class SVD:
    """The right singular vectors of the training embeddings, not centred: the paper's FF+SVD.

    At full dim every cosine is what it was. ``normalize`` as for :class:`PCA`.
    """

    normalize: bool = True

    def fit(self, train: EmbeddingSet) -> Map:
        """Singular vectors of ``train``, from the eigenvectors of its second moment."""
        _, second = _moments(train, self.normalize)
        return Map(_leading(second), np.zeros(train.dim), self.normalize, orthogonal=True)


@dataclass(frozen=True)
class ClassifierSVD:
    """The classifier W = U S Vᵀ cut to rank m, of which V turns the vectors and U S is the head: the paper's SVD.

    Dims beyond the rank (at most the number of classes) change no logit. Vectors stay raw: the head reads raw ones.
    """

    def fit(self, train: EmbeddingSet) -> Map:
        """The axes of the head kept with ``train``."""
        if train.head is None:
            raise EmbeddingsError(
                "the classifier's SVD needs embeddings that hold their head",
                got=f"{train.path} without one",
                cure="encode them with the run that trained the head, or use the SVD of the embeddings",
            )
        _, _, rows = np.linalg.svd(full_weight(train.head, train.dim), full_matrices=True)
        return Map(rows.T, np.zeros(train.dim), normalize=False, orthogonal=True)


def _moments(train: EmbeddingSet, normalize: bool) -> tuple[Doubles, Doubles]:
    # E[z] and E[z zᵀ], in float64 because PCA subtracts one from the other.
    if train.count == 0:
        raise EmbeddingsError("axes are fitted on at least one vector", got=0, cure="give training embeddings")
    first, second = np.zeros(train.dim), np.zeros((train.dim, train.dim))
    for start, vectors in train.batches():
        wide = truncate(vectors.astype(np.float64), train.dim, normalize)
        bad = np.flatnonzero(~np.isfinite(wide).all(axis=1))
        if len(bad):
            raise EmbeddingsError(
                "axes are fitted on finite vectors",
                got=f"NaN or infinity in row {start + bad[0]} of {train.path}",
                cure="check the folder with EmbeddingSet.verify(), and encode such rows again",
            )
        first += wide.sum(axis=0)
        second += wide.T @ wide
    return first / train.count, second / train.count


def _leading(second: Doubles) -> Doubles:
    # eigh orders by growing eigenvalue.
    return np.asarray(np.linalg.eigh(second)[1][:, ::-1])
