"""Pearson and Spearman correlation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError, shown

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from matryo.arrays import Doubles


@checked
def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return the linear correlation, −1 … 1; 0 if either input is constant.

    >>> round(pearson([1, 2, 3], [2, 4, 6]), 6)
    1.0
    """
    a, b = _centred(x), _centred(y)
    if a.shape != b.shape:
        raise InputError("x and y must have the same length", got=f"{len(a)} and {len(b)}", cure="pass pairs of values")
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.clip((a @ b) / scale, -1, 1)) if scale else 0.0


@checked
def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return the correlation of the ranks, which depends only on the order of the values.

    >>> spearman([0.1, 0.2, 0.9], [1, 4, 5])
    1.0
    """
    return pearson(_ranks(np.asarray(x)), _ranks(np.asarray(y)))


def _centred(values: ArrayLike) -> Doubles:
    """The values minus their mean, scaled so that no square overflows or vanishes; a correlation ignores the scale."""
    array = np.asarray(values)
    numbers = array.astype(np.float64) if array.dtype.kind in "fiub" else np.empty(0)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise InputError("values must be a list of finite numbers", got=shown(values), cure="drop missing values")
    scaled = numbers / (np.abs(numbers).max() or 1)
    centred = scaled - scaled.mean()
    return np.asarray(centred / (np.abs(centred).max() or 1))


def _ranks(values: np.ndarray[Any, Any]) -> Doubles:
    """Return ranks from 1; equal values share the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Doubles = (np.cumsum(count) - (count - 1) / 2)[group]
    return ranks
