"""A section: its claim, how to read it, its figures, and the numbers and rows behind them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matryo.report.words import spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matryo.report.draw import Drawing
    from matryo.report.material import GradCamStrip
    from matryo.report.models import Line
    from matryo.report.series import Curve, Group, Point
    from matryo.report.style import Look
    from matryo.results import Row

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """Lines under column heads. Text is aligned left, numbers right."""

    heads: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    title: str = ""

    def to_csv(self) -> str:
        """The table as CSV with every digit; missing values are empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.heads)
        for line in self.lines:
            writer.writerow("" if cell is None or cell != cell else cell for cell in line)
        return out.getvalue()


@dataclass(frozen=True)
class Plate:
    """One figure. Its title is drawn inside; the caption below it may be empty."""

    name: str
    """File name without suffix, unique in the report."""
    title: str
    drawing: Drawing
    caption: str = ""


@dataclass(frozen=True)
class Card:
    """One example of a gallery: the true class, and (dim, predicted class, confidence) for two dims."""

    label: str
    name: str
    picture: bytes | None
    answers: tuple[tuple[int, str, float], ...]


@dataclass(frozen=True)
class Gallery:
    """Examples of one model on one split."""

    title: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    key: str
    """Its anchor, and the name of its table's file."""
    title: str
    claim: str
    """The finding, in one sentence."""
    meaning: str
    """How to read the figures."""
    note: str = ""
    """The meaning of the error bars."""
    rows: tuple[Row, ...] = ()
    plates: tuple[Plate, ...] = ()
    legend: tuple[tuple[str, Look], ...] = ()
    """One legend for all plates; plates with a legend of their own need none."""
    table: Table | None = None
    """The numbers for a CSV file."""
    shown: tuple[Table, ...] = ()
    """The numbers for the page."""
    galleries: tuple[Gallery, ...] = ()
    strips: tuple[GradCamStrip, ...] = ()


def rows_of(groups: Iterable[Group[Any] | Line]) -> tuple[Row, ...]:
    """The rows behind some groups or lines, each once."""
    return tuple({id(row): row for group in groups for row in group.rows}.values())


def curve_table(curves: Iterable[Curve], x: str = "x", *, at: str = "dim") -> Table:
    """Curves as a long table with a line per point; ``x`` names the position of points that are not at their dim."""
    curves = list(curves)
    placed = any(not math.isnan(point.x) for one in curves for point in one.points)
    middle = (x, f"{x} sd") if placed else ()
    heads = ("place", "series", "metric", at, *middle, "mean", "bar", "bar is", "seeds", "trained")
    lines = [
        (one.place, one.name, one.metric, p.dim, *((p.x, p.x_sd) if placed else ()), p.y, p.sd, one.spread, one.seeds,
         int(p.trained))
        for one in curves
        for p in one.points
    ]  # fmt: skip
    return Table(heads, tuple(lines))


Label = Callable[["Curve"], str]


def by_dim(
    curves: Iterable[Curve],
    *,
    title: Label = lambda one: f"{one.place}: {one.metric}, %",
    column: Label = lambda one: one.name,
    scale: float = 100,
    digits: int = 1,
) -> tuple[Table, ...]:
    """Curves as tables with a line per dim and a column per curve, as mean ± bar."""
    groups: dict[str, dict[str, Curve]] = {}
    for one in curves:
        groups.setdefault(title(one), {})[column(one)] = one

    def cell(point: Point | None) -> str:
        return "–" if point is None else spread(scale * point.y, scale * point.sd, digits)

    tables = []
    for name, columns in groups.items():
        every_dim = sorted({point.dim for one in columns.values() for point in one.points})
        lines = tuple((f"{dim:g}", *(cell(one.at(dim)) for one in columns.values())) for dim in every_dim)
        tables.append(Table(("dim", *columns), lines, name))
    return tuple(tables)


per_model: dict[str, Any] = {
    "title": lambda one: f"{one.name} on {one.place}, %",
    "column": lambda one: one.metric,
}
"""Arguments of :func:`by_dim` for a table per model with a column per metric."""
