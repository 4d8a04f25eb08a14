"""Moments: the count, the mean and the second moment of vectors, from one pass over batches in bounded memory.

Sums are kept in float64. Products are computed in float32, after the mean of the first batch is subtracted, so that
a large common mean cancels before it is rounded. Their relative error is about 10⁻⁶ of the largest variance.

>>> moments = Moments(2)
>>> for batch in ([[1.0, 0.0], [3.0, 0.0]], [[2.0, 3.0]]):
...     moments.add(np.array(batch))
>>> moments.count, moments.mean.tolist()
(3, [2.0, 1.0])
>>> moments.covariance.round(3).tolist()
[[0.667, 0.0], [0.0, 2.0]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError

if TYPE_CHECKING:
    from matryo.arrays import Array, Doubles

_ROWS = 4096   # rows of one product
_SAFE = 2.0**40   # products of smaller numbers do not overflow float32, summed over 4096 rows


class Moments:
    """The sufficient statistics of a rotation: what a later fit needs of the vectors seen before."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self._shift: Doubles | None = None
        self._first, self._second = np.zeros(dim), np.zeros((dim, dim))

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self._first)

    def add(self, vectors: Array) -> None:
        """Add rows [n, dim]."""
        self._change(vectors, 1)

    def remove(self, vectors: Array) -> None:
        """Remove rows that were added before, for example because they serve as held-out queries."""
        self._change(vectors, -1)

    def merge(self, other: Moments) -> None:
        """Add the rows of ``other``."""
        if other.dim != self.dim:
            raise EmbeddingsError(
                f"moments of {self.dim} columns take vectors with {self.dim} columns",
                got=other.dim,
                cure="fit a new map on the vectors of the other model",
            )
        if not other.count:
            return
        if self._shift is None:
            self._shift = other._shift
        assert self._shift is not None and other._shift is not None
        moved = other._shift - self._shift
        cross = np.outer(other._first, moved)
        self._second += other._second + cross + cross.T + other.count * np.outer(moved, moved)
        self._first += other._first + other.count * moved
        self.count += other.count

    @property
    def mean(self) -> Doubles:
        """The mean, [dim]."""
        if self._shift is None or not self.count:
            return np.zeros(self.dim)
        return np.asarray(self._shift + self._first / self.count)

    @property
    def covariance(self) -> Doubles:
        """The covariance, [dim, dim], divided by the count."""
        first = self._first / max(1, self.count)
        return np.asarray(self._second / max(1, self.count) - np.outer(first, first))

    @property
    def second(self) -> Doubles:
        """The second moment E[x xᵀ], [dim, dim]."""
        return np.asarray(self.covariance + np.outer(self.mean, self.mean))

    def arrays(self) -> dict[str, Any]:
        """The statistics as arrays, for :meth:`of_arrays`."""
        shift = np.zeros(self.dim) if self._shift is None else self._shift
        return {"count": np.array([self.count]), "shift": shift, "first": self._first, "second": self._second}

    @classmethod
    def of_arrays(cls, arrays: dict[str, Any]) -> Moments:
        """Rebuild the statistics from :meth:`arrays`."""
        made = cls(len(arrays["first"]))
        made.count = int(arrays["count"][0])
        made._shift = np.array(arrays["shift"], np.float64) if made.count else None
        made._first, made._second = np.array(arrays["first"]), np.array(arrays["second"])
        return made

    def _change(self, vectors: Array, sign: int) -> None:
        for start in range(0, len(vectors), _ROWS):
            rows = np.asarray(vectors[start : start + _ROWS], np.float64)
            if self._shift is None:
                self._shift = rows.mean(axis=0)
            centred = rows - self._shift
            narrow = np.float32 if np.abs(centred).max(initial=0) < _SAFE else np.float64
            factors: Array = centred.astype(narrow)
            self._second += sign * np.asarray(factors.T @ factors, np.float64)
            self._first += sign * centred.sum(axis=0)
        self.count += sign * len(vectors)
