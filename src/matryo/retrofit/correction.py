"""A correction: what one layer of rectified features adds to the output of a linear map.

>>> correction = Correction(np.eye(2, dtype=np.float32), np.zeros(2, np.float32), np.eye(2, dtype=np.float32))
>>> correction.apply(np.array([[1.0, -1.0]], np.float32))
array([[1., 0.]], dtype=float32)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matryo.arrays import Floats


@dataclass(frozen=True, eq=False)
class Correction:
    """The map ``x ↦ max(0, x @ directions + shifts) @ weight``."""

    directions: Floats
    """[columns, hidden]"""
    shifts: Floats
    """[hidden]"""
    weight: Floats
    """[hidden, outputs]"""

    def apply(self, rows: Floats) -> Floats:
        """Return the correction of rows [n, columns], [n, outputs]."""
        return np.asarray(np.maximum(rows @ self.directions + self.shifts, 0) @ self.weight)

    def tensors(self, prefix: str) -> dict[str, Any]:
        """The matrices by name."""
        return {f"{prefix}{name}": np.ascontiguousarray(value, np.float32) for name, value in vars(self).items()}

    @classmethod
    def of_tensors(cls, tensors: dict[str, Any], prefix: str, columns: int, outputs: int) -> Correction | None:
        """The correction of :meth:`tensors`, None if there is none; raise for matrices that do not fit together."""
        if f"{prefix}directions" not in tensors:
            return None
        made = cls(*(tensors[f"{prefix}{name}"] for name in ("directions", "shifts", "weight")))
        hidden = len(made.shifts)
        shapes = {"directions": (columns, hidden), "shifts": (hidden,), "weight": (hidden, outputs)}
        for name, shape in shapes.items():
            check_matrix(getattr(made, name), shape, name)
        return made


def check_matrix(matrix: Any, shape: tuple[int, ...], name: str) -> Any:
    """Return ``matrix`` if it is finite and has this shape, or raise."""
    if matrix.shape != shape or not np.isfinite(matrix).all():
        raise ValueError(f"{name} {matrix.shape} instead of {shape}")
    return matrix
