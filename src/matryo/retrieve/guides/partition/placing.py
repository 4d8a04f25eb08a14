"""Where rows belong: the partitions of each row, and what a tile holds of it.

Partitions that are built, and rows that join them later, are placed by the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.guides.partition.codes import decode_nibbles

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition.codes import Bytes
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Floats, Indices

_TINY = np.finfo(np.float32).tiny


def adjustments(nibbles: Bytes, columns: Floats, metric: Metric, norms: Floats) -> Floats:
    """Return what turns the product with each row into a score: 1 / ‖codes‖ for cosine, −‖codes‖² for L2.

    For inner products it is ‖row‖ / ‖codes‖, given the ``norms`` of the rows in the coordinates of the tiles.
    """
    # Of the codes, not of the row: so no cosine exceeds 1, however short the row is.
    squares = np.square(decode_nibbles(nibbles, columns)).sum(1)
    if metric == "l2":
        return np.asarray(-squares)
    inverse = np.where(squares > 0, 1 / np.sqrt(np.maximum(squares, _TINY)), 0)
    return np.asarray(inverse * norms if metric == "ip" else inverse, np.float32)


def squared_distance(divided: Floats, means: Floats, chosen: Indices) -> float:
    """Return the sum of the squared distances of rows from the means of their homes."""
    return float(np.square(divided - means[chosen[:, 0]]).sum(dtype=np.float64))
