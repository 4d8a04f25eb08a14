"""Draws of examples, class by class, for the protocols that repeat themselves over random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["shuffled_by_class"]


def shuffled_by_class(labels: Integers, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """All rows, class after class and shuffled within each, and at which place of its class each row stands.

    The first n of each class are n examples drawn without replacement, and part of the first n + 1.

    >>> labels = np.array([7, 4, 7, 7, 4])
    >>> rows, places = shuffled_by_class(labels, np.random.default_rng(0))
    >>> labels[rows], places
    (array([4, 4, 7, 7, 7]), array([0, 1, 0, 1, 2]))
    """
    rows = rng.permutation(len(labels))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    ordered = labels[rows]
    return rows, np.arange(len(rows)) - np.searchsorted(ordered, ordered)
