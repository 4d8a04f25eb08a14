"""The array types that annotations share."""

from typing import Any

import numpy as np

__all__ = ["Array", "Bools", "Doubles", "Floats", "Integers"]

Array = np.ndarray[Any, np.dtype[Any]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
