"""Fitted: a codec in the coordinates that it was fitted in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.arrays import Floats
    from matryo.retrieve.compress.codes.codecs import Codec


@dataclass(frozen=True, eq=False)
class Fitted:
    """A codec in its coordinates: ``(x − mean) @ axes``."""

    rotation: str
    axes: Floats
    """[d, dim], orthonormal columns."""
    mean: Floats | None
    """[d], or None."""
    codec: Codec

    def coordinates(self, vectors: Floats) -> Floats:
        """Return what the codec encodes of rows [n, d], [n, dim]."""
        rows = vectors if self.mean is None else vectors - self.mean
        return np.asarray(rows @ self.axes, np.float32)
