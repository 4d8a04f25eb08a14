"""Cosines of pairs of rows at every dim, from one cumulative sum over the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.evaluation.checks import check_finite
from matryo.nesting import prefix_norms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Doubles, Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.nesting import Nesting

_BATCH = 1 << 20   # vector entries of each side held at a time


def cosines(sides: tuple[EmbeddingSet, EmbeddingSet], rows: Sequence[Integers], nesting: Nesting) -> Doubles:
    """Return [dims, pairs]: the cosine of row ``rows[0][i]`` of one side with row ``rows[1][i]`` of the other."""
    result = np.empty((len(nesting), len(rows[0])))
    step = max(1, _BATCH // nesting.dim)
    for start in range(0, len(rows[0]), step):
        span = slice(start, start + step)
        left, right = (_read(side, own[span], nesting.dim) for side, own in zip(sides, rows, strict=True))
        scale = prefix_norms(left, nesting.dims) * prefix_norms(right, nesting.dims)
        added = [np.einsum("ij,ij->i", left[:, low:high], right[:, low:high]) for low, high in nesting.blocks]
        # An all-zero prefix stays zero, as in truncate: its cosine with every vector is 0.
        result[:, span] = np.cumsum(added, axis=0) / np.maximum(scale, np.finfo(np.float64).tiny).T
    return np.clip(result, -1, 1)


def _read(side: EmbeddingSet, rows: Integers, dim: int) -> Doubles:
    vectors = side.vectors[rows, :dim].astype(np.float64)
    check_finite(vectors, rows, "embeddings")
    return vectors
