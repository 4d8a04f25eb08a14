"""Array types of the retrieval code, named for what the arrays hold."""

from typing import Any

import numpy as np

from matryo.arrays import Array, Bools, Doubles, Floats, Integers

__all__ = ["Array", "Bools", "Codes", "Doubles", "Floats", "Indices", "Keys", "Rows"]

Codes = np.ndarray[Any, np.dtype[np.int8]]
Indices = Integers
Keys = Indices
"""A score and its row in one integer; see :func:`matryo.retrieve.vectors.metric.keys`."""
Rows = slice | Indices
"""Which rows to read."""
