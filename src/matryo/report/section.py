"""A section: what was found, what it means, its figures, and the numbers and rows behind them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matryo.report.words import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from matryo.report.draw import Drawing
    from matryo.report.models import Line
    from matryo.report.series import Curve, Group, Point
    from matryo.results import Row

__all__ = ["Cell", "Plate", "Section", "Table", "by_dim", "curve_table", "metric_of", "of_model", "rows_of"]

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """Lines under column heads. What is text stands left, numbers right."""

    heads: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    title: str = ""

    def to_csv(self) -> str:
        """As CSV with every digit; what is missing is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.heads)
        for line in self.lines:
            writer.writerow("" if cell is None or cell != cell else cell for cell in line)
        return out.getvalue()


@dataclass(frozen=True)
class Plate:
    """One figure with the line under it."""

    name: str
    """The stem of its files, unlike any other's."""
    caption: str
    drawing: Drawing


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    key: str
    """Its anchor, and the stem of its table's file."""
    title: str
    finding: str
    """What the rows say, in one sentence."""
    meaning: str
    """How to read the figures, in one sentence."""
    rows: tuple[Row, ...]
    plates: tuple[Plate, ...] = ()
    table: Table | None = None
    """The numbers, for a file."""
    shown: tuple[Table, ...] = ()
    """The numbers, for people."""
    html: str = ""
    """What the page shows in place of the plates, where pictures must flow."""


def rows_of(groups: Iterable[Group[Any] | Line]) -> tuple[Row, ...]:
    """The rows behind some groups or lines, each once."""
    return tuple({id(row): row for group in groups for row in group.rows}.values())


def curve_table(curves: Iterable[Curve], x: str = "x", *, at: str = "dim") -> Table:
    """Curves as a long table, a line for each point; ``x`` names where a point stands if not at its dim."""
    curves = list(curves)
    placed = any(not math.isnan(point.x) for one in curves for point in one.points)
    middle = (x, f"{x} sd") if placed else ()
    heads = ("place", "series", "metric", at, *middle, "mean", "sd", "sd of", "seeds", "trained")
    lines = [
        (one.place, one.name, one.metric, p.dim, *((p.x, p.x_sd) if placed else ()), p.y, p.sd, one.spread, one.seeds,
         int(p.trained))
        for one in curves
        for p in one.points
    ]  # fmt: skip
    return Table(heads, tuple(lines))


def by_dim(
    curves: Iterable[Curve],
    *,
    title: Callable[[Curve], str] = lambda one: f"{one.place}: {one.metric}, %",
    column: Callable[[Curve], str] = lambda one: one.name,
    scale: float = 100,
    digits: int = 1,
) -> tuple[Table, ...]:
    """Curves as tables with a line for each dim and a column for each curve, as mean ± deviation."""
    groups: dict[str, list[Curve]] = {}
    for one in curves:
        groups.setdefault(title(one), []).append(one)

    def cell(point: Point | None) -> str:
        return "–" if point is None else spread(scale * point.y, scale * point.sd, digits)

    tables = []
    for name, some in groups.items():
        dims = sorted({point.dim for one in some for point in one.points})
        lines = tuple((f"{dim:g}", *(cell(one.at(dim)) for one in some)) for dim in dims)
        tables.append(Table(("dim", *map(column, some)), lines, name))
    return tuple(tables)


def of_model(one: Curve) -> str:
    """The title of a table that is about one model."""
    return f"{one.name} on {one.place}, %"


def metric_of(one: Curve) -> str:
    """The head of a column in such a table."""
    return one.metric
