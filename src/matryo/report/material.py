"""The input of a report: rows, the models in them, and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matryo.report.models import Line, Looks, evaluated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.results import Row


@dataclass(frozen=True)
class GradCamStrip:
    """One picture with its Grad-CAM map and the predicted class at each dim."""

    picture: bytes
    """PNG or WebP."""
    label: str
    """The true class."""
    dims: tuple[int, ...]
    overlays: tuple[bytes, ...]
    """[dims]: the picture under its heat map, PNG or WebP."""
    said: tuple[str, ...]
    """[dims]: the predicted class."""
    probability: tuple[float, ...]
    """[dims]: the probability of the predicted class."""


@dataclass(frozen=True)
class Material:
    """Everything that a section may be drawn from."""

    rows: tuple[Row, ...]
    lines: tuple[Line, ...]
    looks: Looks
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """By "DATASET/SPLIT/ROW"."""
    strips: Sequence[GradCamStrip] = ()

    @classmethod
    def of(
        cls, rows: Sequence[Row], pictures: Mapping[str, bytes] | None = None, strips: Sequence[GradCamStrip] = ()
    ) -> Material:
        """Parse the evaluations among ``rows`` and assign each model its look."""
        lines = evaluated(rows)
        return cls(tuple(rows), tuple(lines), Looks(lines), pictures or {}, tuple(strips))
