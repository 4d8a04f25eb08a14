"""Rows of nested losses: the newest figures of each variant at each shape, relative to those of the same run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from matryo.results import Row

__all__ = ["DISTILLED", "FUSED", "SINGLE", "VARIANTS", "Shape", "shapes"]

SINGLE, FUSED, DISTILLED = "single eager", "fused", "fused, self-distilled"
VARIANTS = (SINGLE, "single compiled", "nested eager", "nested compiled", FUSED, DISTILLED)


@dataclass(frozen=True)
class Shape:
    """One shape of a loss: of each variant the newest row that has it."""

    name: str
    hardware: str
    found: dict[str, Row]

    def about(self, key: str) -> Any:
        """A field that all rows of a shape share: its group, batch, columns or dims."""
        return self.found[SINGLE].figures[key]

    def of(self, variant: str) -> dict[str, Any]:
        """The figures of a variant."""
        figures: dict[str, Any] = self.found[variant].figures[variant]
        return figures

    def ms(self, variant: str = FUSED) -> float:
        """The median time."""
        return float(self.of(variant)["p50"])

    def ratio(self, variant: str = FUSED) -> float:
        """The median time as a multiple of the single eager loss's in the same run."""
        return self.ms(variant) / float(self.found[variant].figures[SINGLE]["p50"])

    def faster(self, variant: str) -> float:
        """How many times the fused loss is faster than a variant, each beside the single loss of its own run."""
        return self.ratio(variant) / self.ratio()

    def gib(self, variant: str = FUSED) -> float:
        """Extra memory."""
        return float(self.of(variant)["extra_bytes"]) / 2**30

    def share(self, variant: str = FUSED) -> float:
        """Extra memory as a part of the single eager loss's in the same run."""
        return float(self.of(variant)["extra_bytes"] / self.found[variant].figures[SINGLE]["extra_bytes"])

    @property
    def variants(self) -> list[str]:
        """The variants that were measured."""
        return [name for name in VARIANTS if name in self.found]


def shapes(rows: Iterable[Row]) -> list[Shape]:
    """Every shape, in the order in which they first appear."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        newest = found.setdefault((row.hardware, row.subject), {})
        newest |= {name: row for name in VARIANTS if name in row.figures}
    return [Shape(subject, hardware, newest) for (hardware, subject), newest in found.items()]
