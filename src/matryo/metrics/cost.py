"""What a search costs: multiply-adds a query and bytes a vector.

>>> round(mflops(1_281_167, 8)), round(mflops(1_281_167, 2048))     # ImageNet-1K, as the paper counts
(10, 2624)
>>> vector_bytes(512, "float16")
1024
"""

from __future__ import annotations

import numpy as np

__all__ = ["mflops", "vector_bytes"]


def mflops(count: int, dim: int) -> float:
    """Millions of multiply-adds to compare one query with ``count`` vectors at ``dim``."""
    return count * dim / 1e6


def vector_bytes(dim: int, dtype: str = "float32") -> int:
    """The bytes of one stored vector."""
    return dim * np.dtype(dtype).itemsize
