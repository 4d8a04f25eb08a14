"""Accuracy against dim: every model and baseline, by its head and by its nearest neighbour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.report.draw import chart, export
from matryo.report.models import Line, main_line, places
from matryo.report.section import Plate, Section, by_dim, curve_table, rows_of
from matryo.report.words import bars, dims, enough, percent, share, stem

if TYPE_CHECKING:
    from matryo.report.material import Material

__all__ = ["accuracy"]

_PANELS = ("head top-1", "1-NN")


def accuracy(material: Material) -> Section | None:
    """A figure for each split, with a panel for the heads where there are any, and one for 1-NN."""
    main = main_line(material.lines)
    if main is None:
        return None
    plates, curves = [], []
    for number, place in enumerate(places(material.lines), start=1):
        lines = [one for one in material.lines if one.place == place]
        here = [found for metric in _PANELS for one in lines if (found := one.curve(metric))]
        panels = {
            f"{metric} accuracy, %": [
                (one, material.looks.of(one.name), one.name) for one in here if one.metric == metric
            ]
            for metric in dict.fromkeys(one.metric for one in here)
        }
        curves += here
        caption = f"{place}: {_sizes(lines[0])}.{bars(here)}"
        plates.append(Plate(stem("accuracy", number, place), caption, export(chart(panels))))
    return Section(
        key="accuracy",
        title="Accuracy by dim",
        finding=_finding(main),
        meaning="Each line is one model read at its first m dims: the flatter it is, the fewer dims are enough. "
        "Hollow marks are dims at which that model was not trained.",
        rows=rows_of(material.lines),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=by_dim(curves),
    )


def _finding(main: Line) -> str:
    curve = main.curve("1-NN")
    assert curve is not None   # every evaluation has one
    point, full = enough(curve), curve.full
    if point.dim == full.dim or not full.y:
        return f"{main.name} needs all its {dims(full.dim)} dims for a 1-NN accuracy of {percent(full.y)}"
    kept = share(point.y, full.y)
    return f"At {dims(point.dim)} of {dims(full.dim)} dims, {main.name} keeps {kept} of its 1-NN accuracy"


def _sizes(one: Line) -> str:
    about = one.groups[0].first
    return f"{about.queries:,} queries in a database of {about.database:,}"
