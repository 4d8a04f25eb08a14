"""A fitted baseline: an affine map of the d columns whose first m outputs are the m-dim representation.

Its prefixes are the baseline at every dim, so :func:`matryo.evaluation.evaluate` measures all dims in one pass, as
for a nested model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import EmbeddingSet, Head
from matryo.errors import EmbeddingsError
from matryo.nesting import truncate

if TYPE_CHECKING:
    from matryo.arrays import Doubles
    from matryo.retrofit.correction import Correction


class Baseline(Protocol):
    """The interface of baselines: a dataclass of options with a ``fit`` method."""

    def fit(self, train: EmbeddingSet) -> Map:
        """Return the map fitted on ``train``; apply the same map to queries and database."""
        ...


@dataclass(frozen=True, eq=False)
class Map:
    """The map ``z ↦ (z − centre) @ axes``, after normalisation of z if ``normalize``."""

    axes: Doubles
    """[d, d]: column j is the direction that gives the j-th output."""
    centre: Doubles
    """[d], subtracted before the rotation."""
    normalize: bool
    """Whether vectors are first scaled to norm 1, at full dim."""
    orthogonal: bool
    """Whether the map is orthogonal, so that it can be inverted and a head converted."""
    correction: Correction | None = None
    """Added to the rotated vectors, by an adaptor only."""

    @property
    def dim(self) -> int:
        """The number of columns of the vectors, before and after."""
        return len(self.axes)

    @checked
    def apply(self, embeddings: EmbeddingSet) -> EmbeddingSet:
        """Return ``embeddings`` with mapped vectors, in memory; ids, labels, classes and nesting are kept.

        The head is converted to a tied head if this is exact, so that at full dim it gives the same logits. With
        ``normalize`` it is dropped, because it was trained on raw vectors.
        """
        if embeddings.dim != self.dim:
            raise EmbeddingsError(
                f"a map fitted on {self.dim} columns needs vectors with {self.dim} columns",
                got=embeddings.dim,
                cure="fit it on vectors of the same model",
            )
        axes, centre = self.axes.astype(np.float32), self.centre.astype(np.float32)
        mapped = np.empty((embeddings.count, self.dim), np.float32)
        for start, vectors in embeddings.batches():
            with np.errstate(over="ignore", invalid="ignore"):   # `transformed` reports the row
                centred = truncate(vectors, self.dim, self.normalize) - centre
                turned = np.matmul(centred, axes, out=mapped[start : start + len(vectors)])
            if self.correction is not None:
                turned += self.correction.apply(turned)
        return embeddings.transformed(mapped, head=self._converted_head(embeddings), nesting=embeddings.nesting)

    def _converted_head(self, embeddings: EmbeddingSet) -> Head | None:
        # z = mapped @ axesᵀ + centre, so W z + b = (W axes) mapped + (b + W centre).
        head = embeddings.head
        if head is None or self.normalize or not self.orthogonal:
            return None
        weight = full_weight(head, self.dim)
        bias = head.biases.get(head.dim, np.zeros(head.classes)) + weight @ self.centre
        return Head.tied(weight @ self.axes, bias, dims=embeddings.nesting.dims)


def full_weight(head: Head, dim: int) -> Doubles:
    """Return the weight [classes, dim] of ``head`` at its largest dim, padded with zeros to ``dim`` columns."""
    weight = np.asarray(head.weights[head.dim], np.float64)
    return np.pad(weight, ((0, 0), (0, dim - head.dim)))
