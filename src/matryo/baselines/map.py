"""A fitted baseline: an affine map of the d columns, after which the first m are the m-dim representation.

Because its prefixes are the baseline at every dim, one pass of :func:`matryo.evaluation.evaluate` measures all of
them, as it does a nested model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from matryo.embeddings import EmbeddingSet, Head
from matryo.errors import EmbeddingsError
from matryo.nesting import truncate

if TYPE_CHECKING:
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["Baseline", "Map"]


class Baseline(Protocol):
    """What every baseline is: options, and a ``fit`` that learns its map from training embeddings."""

    def fit(self, train: EmbeddingSet) -> Map:
        """The map that ``train`` determines; queries and database must go through one and the same."""
        ...


@dataclass(frozen=True, eq=False)
class Map:
    """``z ↦ (z − centre) @ axes``, of unit vectors where ``normalize`` says so."""

    axes: Doubles
    """[d, d]: column j is the direction read by the j-th new column."""
    centre: Doubles
    """[d], subtracted first."""
    normalize: bool
    """Whether vectors are put on the unit sphere, at full dim, before anything else."""
    orthogonal: bool
    """Whether ``axes`` is a rotation, so that ``z`` can be read back and a head carried along."""

    @property
    def dim(self) -> int:
        """How many columns a vector must have, and has afterwards."""
        return len(self.axes)

    def apply(self, embeddings: EmbeddingSet) -> EmbeddingSet:
        """The same things with mapped vectors, in memory; ids, labels, names and nesting stay.

        A head stays, as a tied one over all dims, where that is exact: with all d columns it gives the logits it
        gave before. On unit vectors it could not, for it was trained on raw ones.
        """
        if embeddings.dim != self.dim:
            raise EmbeddingsError(
                f"a map fitted on {self.dim} columns takes vectors of {self.dim}",
                got=embeddings.dim,
                cure="fit it on vectors of the same model",
            )
        axes, centre = self.axes.astype(np.float32), self.centre.astype(np.float32)
        mapped = np.empty((embeddings.count, self.dim), np.float32)
        for start, vectors in embeddings.batches():
            with np.errstate(over="ignore", invalid="ignore"):   # `transformed` tells, with the row
                given = truncate(vectors, self.dim, self.normalize) - centre
                np.matmul(given, axes, out=mapped[start : start + len(vectors)])
        return embeddings.transformed(mapped, head=self._carried(embeddings), nesting=embeddings.nesting)

    def _carried(self, embeddings: EmbeddingSet) -> Head | None:
        # z = mapped @ axesᵀ + centre, so W z + b = (W axes) mapped + (b + W centre).
        head = embeddings.head
        if head is None or self.normalize or not self.orthogonal:
            return None
        weight = full_weight(head, self.dim)
        bias = head.biases.get(head.dim, np.zeros(head.classes)) + weight @ self.centre
        return Head.tied(weight @ self.axes, bias, dims=embeddings.nesting.dims)


def full_weight(head: Head, dim: int) -> Doubles:
    """The weight [classes, dim] that ``head`` uses at its largest dim; columns it does not read weigh nothing."""
    weight = np.asarray(head.weights[head.dim], np.float64)
    return np.pad(weight, ((0, 0), (0, dim - head.dim)))
