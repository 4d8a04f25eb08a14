"""The cost of a search: multiply-adds per query and bytes per vector.

>>> round(mflops(1_281_167, 8)), round(mflops(1_281_167, 2048))     # ImageNet-1K, as the paper counts
(10, 2624)
>>> vector_bytes(512, "float16")
1024
"""

from __future__ import annotations

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError, shown


@checked
def mflops(count: int, dim: int) -> float:
    """Return the millions of multiply-adds that compare one query with ``count`` vectors at ``dim``."""
    return count * dim / 1e6


@checked
def vector_bytes(dim: int, dtype: str = "float32") -> int:
    """Return the bytes per stored vector; ``dtype`` is the name of a dtype, or int4."""
    if dtype == "int4":
        return -(-dim // 2)
    try:
        return dim * np.dtype(dtype).itemsize
    except (TypeError, ValueError, SyntaxError):   # numpy parses the name
        raise InputError("dtype must be the name of a dtype", got=shown(dtype), cure="pass float32") from None
