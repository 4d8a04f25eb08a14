"""Random draws of examples per class, for protocols that average over draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.arrays import Integers


def shuffled_by_class(labels: Integers, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Return all rows sorted by class and shuffled within each class, and the position of each row in its class.

    The first n of each class are n examples drawn without replacement; they are among the first n + 1.

    >>> labels = np.array([7, 4, 7, 7, 4])
    >>> rows, places = shuffled_by_class(labels, np.random.default_rng(0))
    >>> labels[rows], places
    (array([4, 4, 7, 7, 7]), array([0, 1, 0, 1, 2]))
    """
    rows = rng.permutation(len(labels))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    ordered = labels[rows]
    return rows, np.arange(len(rows)) - np.searchsorted(ordered, ordered)
