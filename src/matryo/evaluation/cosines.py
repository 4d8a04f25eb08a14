"""Cosines of pairs of rows at every dim, from one sum over the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation.checks import check_finite
from matryo.nesting import prefix_norms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.nesting import Nesting

    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["cosines"]

_BATCH = 1 << 20   # numbers of each side of the pairs held at a time


def cosines(sides: tuple[EmbeddingSet, EmbeddingSet], rows: Sequence[Integers], nesting: Nesting) -> Doubles:
    """[dims, pairs]: of row ``rows[0][i]`` of the one side with row ``rows[1][i]`` of the other."""
    found = np.empty((len(nesting), len(rows[0])))
    step = max(1, _BATCH // nesting.dim)
    for start in range(0, len(rows[0]), step):
        span = slice(start, start + step)
        one, other = (_read(side, mine[span], nesting.dim) for side, mine in zip(sides, rows, strict=True))
        scale = prefix_norms(one, nesting.dims) * prefix_norms(other, nesting.dims)
        added = [np.einsum("ij,ij->i", one[:, low:high], other[:, low:high]) for low, high in nesting.blocks]
        # As truncate has it, a zero vector stays zero: its cosine with anything is 0.
        found[:, span] = np.cumsum(added, axis=0) / np.maximum(scale, np.finfo(np.float64).tiny).T
    return np.clip(found, -1, 1)


def _read(side: EmbeddingSet, rows: Integers, dim: int) -> Doubles:
    vectors = side.vectors[rows, :dim].astype(np.float64)
    check_finite(vectors, rows, "embeddings")
    return vectors
