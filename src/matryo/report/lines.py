"""Drawings that several protocols share: plates per split with a line per model, or plates per model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.report.draw import chart, export
from matryo.report.models import role_of
from matryo.report.section import Plate, Section, by_dim, curve_table, per_model, rows_of
from matryo.report.series import curve, gather
from matryo.report.style import categories
from matryo.report.words import bars, reach, stem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matryo.report.material import Material
    from matryo.report.series import Curve, Group
    from matryo.report.style import Look


def split_fields(material: Material, key: str, curves: Sequence[Curve]) -> dict[str, Any]:
    """Fields of a section with a plate per split and metric and a line per model."""
    plates: list[Plate] = []
    for place, metric in dict.fromkeys((one.place, one.metric) for one in curves):
        here = [one for one in curves if (one.place, one.metric) == (place, metric)]
        title, looks = f"{place}\n{metric}, %", material.looks
        drawing = export(chart(title, [(one, looks.of(one.name), one.name) for one in here]))
        plates.append(Plate(stem(key, len(plates) + 1, title), title, drawing))
    drawn = dict.fromkeys(one.name for one in curves)
    order = dict.fromkeys(line.label for line in material.lines if line.label in drawn) | drawn
    legend = tuple((name, material.looks.of(name)) for name in order)
    return _fields(plates, legend, curves) | {"shown": by_dim(curves)}


def model_fields(
    groups: Sequence[Group[Any]],
    panels: Callable[[Any], dict[str, list[Curve]]],
    *,
    key: str,
    looks: Callable[[int], list[Look]] = categories,
) -> dict[str, Any]:
    """Fields of a section with a plate per model, split and panel, and a line per metric."""
    every = [(group, panel, some) for group in groups for panel, some in panels(group).items()]
    curves = [one for _, _, some in every for one in some]
    names = dict.fromkeys(one.metric for one in curves)
    legend = dict(zip(names, looks(len(names)), strict=True))
    plates: list[Plate] = []
    for group, panel, some in every:
        title = f"{group.name}\n{group.place}\n{panel}, %"
        drawing = export(chart(title, [(one, legend[one.metric], one.metric) for one in some]))
        plates.append(Plate(stem(key, len(plates) + 1, title), title, drawing))
    shown = by_dim(curves, **per_model)
    return _fields(plates, tuple(legend.items()), curves) | {"shown": shown, "rows": rows_of(groups)}


def by_split(
    material: Material,
    result: type[Any],
    *,
    key: str,
    title: str,
    method: str,
    meaning: str,
    same: Callable[[Any], Any] = lambda one: one.dims,
    metric: str = "top-1",
    figure: Callable[[Any], tuple[float, ...]] = lambda one: one.top1,
) -> Iterator[Section]:
    """The section of a protocol that gives each model one figure per dim."""
    groups = sorted(gather(material.rows, result, same), key=lambda group: role_of(group) == "post hoc")
    if groups:   # baselines last
        curves = [curve(group, figure, metric=metric) for group in groups]
        fields = split_fields(material, key, curves)
        yield Section(key, title, f"With {method}, {reach(curves)}", meaning, rows=rows_of(groups), **fields)


def _fields(plates: Sequence[Plate], legend: Any, curves: Sequence[Curve]) -> dict[str, Any]:
    return {"plates": tuple(plates), "legend": legend, "table": curve_table(curves), "note": bars(curves)}
