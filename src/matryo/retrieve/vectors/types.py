"""Array types of the retrieval code, named for what the arrays hold."""

from typing import Any

import numpy as np

__all__ = ["Array", "Bools", "Codes", "Doubles", "Floats", "Indices", "Keys", "Rows"]

Array = np.ndarray[Any, np.dtype[Any]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Codes = np.ndarray[Any, np.dtype[np.int8]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
Keys = Indices
"""A score and its row in one integer; see :func:`matryo.retrieve.vectors.metric.keys`."""
Rows = slice | Indices
"""Which rows to read."""
