"""How well one list of numbers follows another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Doubles = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["pearson", "spearman"]


def pearson(one: ArrayLike, other: ArrayLike) -> float:
    """The linear correlation, −1 … 1; 0 where either is the same throughout, and so follows nothing.

    >>> round(pearson([1, 2, 3], [2, 4, 6]), 6)
    1.0
    """
    a, b = (values - values.mean() for values in (np.asarray(one, np.float64), np.asarray(other, np.float64)))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip((a @ b) / scale, -1, 1)) if scale else 0.0


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """The correlation of the ranks: how well the order of the one is that of the other, whatever the distances.

    >>> spearman([0.1, 0.2, 0.9], [1, 4, 5])
    1.0
    """
    return pearson(_ranks(np.asarray(one)), _ranks(np.asarray(other)))


def _ranks(values: np.ndarray[Any, Any]) -> Doubles:
    """Equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Doubles = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks
