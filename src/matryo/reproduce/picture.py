"""Figures: all verdicts at a glance, and of each table the paper's lines above ours in the same looks."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import TYPE_CHECKING

from matryo.report.draw import drawing, export, legend, line, log_axis, percent_axis, sheet
from matryo.report.series import Curve, Point
from matryo.report.style import categories, light
from matryo.reproduce.paper import TABLES
from matryo.reproduce.table import FAILS, HOLDS, UNTESTED

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


def overview(evidence: Sequence[Evidence]) -> str:
    """Return all verdicts as SVG: one line per table, one mark per claim, a column per data set."""
    tables = [table for table in TABLES.values() if table.claims]
    most = max(len(table.claims) for table in tables) + 1
    marks = {HOLDS: ("o", light("good"), HOLDS), FAILS: ("X", light("bad"), FAILS),
             UNTESTED: ("|", light("soft"), UNTESTED)}  # fmt: skip
    places: dict[str, list[tuple[float, float]]] = {verdict: [] for verdict in marks}
    for column, one in enumerate(evidence):
        for line_number, table in enumerate(tables):
            for place in range(len(table.claims)):
                places[one.claim(table, place)[0]].append((column * most + place, -line_number))
    with drawing():
        figure, (axes,) = sheet([0.235 * len(tables)])
        for verdict, (marker, colour, label) in marks.items():
            xs, ys = zip(*places[verdict], strict=True) if places[verdict] else ((), ())
            axes.scatter(xs, ys, marker=marker, color=colour, s=42, label=label, zorder=3)
        axes.set_yticks([-number for number in range(len(tables))], [table.name for table in tables])
        axes.set_xticks([column * most for column in range(len(evidence))], [one.title for one in evidence])
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("left")
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xlim(-0.7, len(evidence) * most - 0.5)
        axes.set_ylim(0.6 - len(tables), 0.8)
        axes.grid(visible=False, axis="x")
        axes.spines[["left", "bottom"]].set_visible(False)
        legend(figure, [axes])
        return export(figure).svg


def _curve(title: str, column: str, by: Mapping[str, Sequence[float]]) -> Curve:
    dims = sorted((int(dim), values) for dim, values in by.items() if dim.isdecimal())
    points = [Point(dim, fmean(values) / 100, stdev(values) / 100 if len(values) > 1 else float("nan"))
              for dim, values in dims]  # fmt: skip
    return Curve(title, column, "", tuple(points))
