"""Optimistic scores for inner products: one standard deviation above what codes and means say.

The score of a row by its codes, or of a partition by its mean, is off by an error that grows with the norm of the row,
or with the spread of the partition. Where norms differ much, a long row that is underestimated falls behind most short
ones, so that no shortlist of a useful length has it. Adding the typical error keeps such rows in. Errors of cosines
hardly differ between rows, so nothing would be gained there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Array, Doubles, Floats, Indices


def squared_gaps(divided: Floats, lengths: Floats, means: Floats, chosen: Indices) -> Doubles:
    """Return the squared distance, in all columns, of each row from the means of its partitions, [rows, copies].

    ``divided`` has the coordinates of the rows in the tiles, and ``lengths`` their norms.
    """
    outside = np.maximum(np.square(lengths, dtype=np.float64) - np.square(divided, dtype=np.float64).sum(1), 0)
    inside = [np.square(divided - means[own], dtype=np.float64).sum(1) for own in chosen.T]
    squared: Doubles = np.stack(inside, axis=1) + outside[:, None]
    return squared


def radii(gaps: Doubles, chosen: Indices, lists: int) -> Doubles:
    """Return the root mean square distance of the rows of each partition from its mean, [partitions]."""
    sums, counts = np.bincount(chosen.ravel(), gaps.ravel(), lists), np.bincount(chosen.ravel(), minlength=lists)
    return np.sqrt(sums / np.maximum(counts, 1))


def typical(errors: Array, lengths: Array) -> float:
    """Return the root mean square of errors [queries, rows], relative to that of ``lengths`` [rows]; 0 if none."""
    whole = float(np.square(lengths, dtype=np.float64).sum()) * len(errors)
    return float(np.sqrt(np.square(errors, dtype=np.float64).sum() / whole)) if whole > 0 else 0.0
