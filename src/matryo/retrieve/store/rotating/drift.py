"""Drift: whether a rotation, or a code, still suits the vectors that are added as it suited those it was fitted to."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from matryo.errors import ShiftWarning

if TYPE_CHECKING:
    from matryo.retrieve.store.rotating.coding import Coding
    from matryo.retrieve.store.rotating.rotation import Rotation
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array

_FEWEST = 500   # vectors; fewer may be a topic of their own
_SHARE = 0.05   # of the vectors that the map was fitted on
_WORSE, _MORE = 1.25, 0.02   # the lost share grows by this factor and this much, before a refit pays
_LOOKED = 256   # vectors of each addition that are decoded
_KEPT = 0.5   # the dim that is watched keeps about this share when fitted


class Drift:
    """The share of the norm that added vectors keep, in the first dims or in codes; one warning per open index."""

    def __init__(self) -> None:
        self._of, self._kept, self._whole, self.count, self.warned = "", 0.0, 0.0, 0, False

    @property
    def kept(self) -> float | None:
        """The share of the squared norm that is kept of the added vectors; None before any."""
        return self._kept / self._whole if self._whole > 0 else None

    def see(self, rotation: Rotation, metric: Metric, stored: Array) -> None:
        """Take notice of stored vectors, and warn once if a refit would pay."""
        watched = watched_dim(rotation)
        if watched is None or not len(stored):
            return
        if self._of != rotation.name:
            self.__init__()   # type: ignore[misc]
            self._of = rotation.name
        dim, fitted = watched
        rows = np.asarray(stored, np.float32)
        first, whole = np.square(rows[:, :dim]).sum(1), np.square(rows).sum(1)
        if metric == "cosine":
            first, whole = first / np.maximum(whole, np.finfo(np.float32).tiny), np.sign(whole)
        self._kept += float(first.sum(dtype=np.float64))
        self._whole += float(whole.sum(dtype=np.float64))
        self.count += len(rows)
        enough = max(_FEWEST, _SHARE * rotation.retrofit.provenance.get("rows", 0))
        kept = self.kept
        if self.warned or kept is None or self.count < enough or 1 - kept <= _WORSE * (1 - fitted) + _MORE:
            return
        self.warned = True
        warnings.warn(
            f"the {self.count:,} vectors added since keep {kept:.0%} of their squared norm in the first {dim} dims, "
            f"{fitted:.0%} when the rotation was fitted: index.rotate('auto') fits it again",
            ShiftWarning, stacklevel=6,
        )  # fmt: skip

    def see_codes(self, coding: Coding, given: Array, codes: Array) -> None:
        """Take notice of added vectors and their codes, and warn once if a code fitted to them would keep more."""
        facts = coding.compression.provenance
        fitted = facts.get("lost")
        if fitted is None or not len(codes):
            return
        if self._of != coding.name:
            self.__init__()   # type: ignore[misc]
            self._of = coding.name
        lost, whole = coding.lost(given[:_LOOKED], codes[:_LOOKED])
        self._kept, self._whole = self._kept + whole - lost, self._whole + whole
        self.count += len(codes)
        kept = self.kept
        if self.warned or kept is None or self.count < max(_FEWEST, _SHARE * facts.get("rows", 0)):
            return
        if 1 - kept > _WORSE * fitted + _MORE:
            self.warned = True
            warnings.warn(
                f"the codes of the {self.count:,} vectors added since lose {1 - kept:.0%} of their squared norm, "
                f"{fitted:.0%} when the code was fitted: choose a code on such vectors for another index",
                ShiftWarning, stacklevel=7,
            )  # fmt: skip


def watched_dim(rotation: Rotation) -> tuple[int, float] | None:
    """The dim whose share is watched, and that share when the map was fitted."""
    energy = {dim: kept for dim, kept in rotation.retrofit.energy.items() if dim < rotation.retrofit.dim}
    return min(energy.items(), key=lambda item: abs(item[1] - _KEPT)) if energy else None
