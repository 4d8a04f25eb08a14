"""Pearson and Spearman correlation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from matryo.arrays import Doubles


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return the linear correlation, −1 … 1; 0 if either input is constant.

    >>> round(pearson([1, 2, 3], [2, 4, 6]), 6)
    1.0
    """
    a, b = (values - values.mean() for values in (np.asarray(x, np.float64), np.asarray(y, np.float64)))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip((a @ b) / scale, -1, 1)) if scale else 0.0


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return the correlation of the ranks, which depends only on the order of the values.

    >>> spearman([0.1, 0.2, 0.9], [1, 4, 5])
    1.0
    """
    return pearson(_ranks(np.asarray(x)), _ranks(np.asarray(y)))


def _ranks(values: np.ndarray[Any, Any]) -> Doubles:
    """Return ranks from 1; equal values share the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Doubles = (np.cumsum(count) - (count - 1) / 2)[group]
    return ranks
