"""The figure of a table: the paper's lines above, ours below, in the same looks."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import TYPE_CHECKING

from matryo.report.draw import drawing, export, legend, line, log_axis, percent_axis, sheet
from matryo.report.series import Curve, Point
from matryo.report.style import categories

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.reproduce.page import Evidence
    from matryo.reproduce.table import Table

    Lines = Mapping[str, Mapping[str, Sequence[float]]]


def picture(table: Table, evidence: Sequence[Evidence]) -> str:
    """Return the figure as SVG; empty for a table without one."""
    panels: dict[str, Lines] = {}
    paper = {column: {str(dim): [value] for dim, value in by.items()} for column, by in table.paper.items()}
    if any(column in paper for column in table.drawn):
        panels["the paper"] = paper
    panels |= {one.title: one.tables[table.name]["cells"] for one in evidence if table.name in one.tables}
    drawn = [column for column in table.drawn if any(column in lines for lines in panels.values())]
    if not drawn or len(panels) < 2:
        return ""
    looks = dict(zip(drawn, categories(len(drawn)), strict=True))
    with drawing():
        figure, axes = sheet([2.3] * len(panels))
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            for column in (column for column in drawn if column in lines):
                line(axis, _curve(title, column, lines[column]), looks[column], label=column)
            dims = {int(dim) for column in drawn for dim in lines.get(column, {}) if dim.isdecimal()}
            log_axis(axis, sorted(dim for dim in dims if dim & (dim - 1) == 0) or sorted(dims))
            percent_axis(axis, f"{table.metric}: {title}")
        legend(figure, axes)
        return export(figure).svg


def _curve(title: str, column: str, by: Mapping[str, Sequence[float]]) -> Curve:
    dims = sorted((int(dim), values) for dim, values in by.items() if dim.isdecimal())
    points = [Point(dim, fmean(values) / 100, stdev(values) / 100 if len(values) > 1 else float("nan"))
              for dim, values in dims]  # fmt: skip
    return Curve(title, column, "", tuple(points))
