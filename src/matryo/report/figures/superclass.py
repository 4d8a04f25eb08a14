"""Superclasses: is the predicted class at least of the right kind, and which kinds need more dims?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.evaluation.protocols.superclass import Superclasses
from matryo.report.draw import export, legend, line, log_axis, percent_axis, sheet, short
from matryo.report.section import Plate, Section, by_dim, curve_table, metric_of, of_model, rows_of
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.style import Look, categories, light
from matryo.report.words import bars, dims, percent, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from matryo.report.material import Material

__all__ = ["superclass"]

_NAMED = 3   # so many superclasses that gain most stand out, and as many that gain least


def superclass(material: Material) -> Section | None:
    """A figure for each model and split: bars for class and superclass, and a line for each superclass."""
    groups = gather(material.rows, "superclass", Superclasses, lambda one: (one.by, one.dims, one.names))
    if not groups:
        return None
    plates, shown, table = [], [], []
    for number, group in enumerate(groups, start=1):
        whole, each = _whole(group), _each(group)
        named = f"{group.name} on {group.place}, by {group.first.by}"
        caption = f"{named}: {len(group.first.names)} superclasses, {sum(group.first.counts):,} examples.{bars(whole)}"
        name = stem("superclass", number, f"{group.name} {group.place}")
        plates.append(Plate(name, caption, export(_draw(whole, each))))
        shown += whole
        table += [*whole, *each]
    fine, coarse = (one.points[0] for one in _whole(groups[0])[:2])
    return Section(
        key="superclass",
        title="Superclasses",
        finding=f"At {dims(fine.dim)} dims, {groups[0].name} names the class of {percent(fine.y)} and the superclass "
        f"of {percent(coarse.y)}",
        meaning="Few dims may mistake a class for its sibling and still know its kind; below, the superclasses that "
        "gain most and least from more dims stand out.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(table),
        shown=by_dim(shown, title=of_model, column=metric_of),
    )


def _whole(group: Group[Superclasses]) -> list[Curve]:
    figures = {"class": "fine", "superclass": "accuracy", "no superclass (rejected)": "rejected"}
    return [
        curve(group, lambda one, name=name: getattr(one, name), metric=metric)   # type: ignore[misc]
        for metric, name in figures.items()
    ]


def _each(group: Group[Superclasses]) -> list[Curve]:
    return [
        curve(group, lambda one, place=place: one.each[place], metric=name)   # type: ignore[misc]
        for place, name in enumerate(group.first.names)
    ]


def _draw(whole: Sequence[Curve], each: Sequence[Curve]) -> Figure:
    figure, (bar, lines) = sheet([2.5, 3.2])
    fine, coarse = whole[:2]
    places = np.arange(len(fine.points))
    for shift, one, colour in ((-0.2, fine, "s8"), (0.2, coarse, "s1")):
        spread = None if one.spread == "" else [point.sd for point in one.points]
        bar.bar(
            places + shift, [point.y for point in one.points], 0.38, yerr=spread, label=one.metric,
            color=light(colour), ecolor=light("ink"), error_kw={"elinewidth": 1},
        )  # fmt: skip
    bar.set_xticks(places, [dims(point.dim) for point in fine.points])
    bar.grid(axis="x", visible=False)
    bar.set_xlabel("dims", loc="right")
    percent_axis(bar, "accuracy, %")
    marked = _marked(each)
    for one in each:
        if one.metric not in marked:
            line(lines, one, Look(light("rule"), "", (), 1.0), label="other superclasses")
    for one, look in zip((one for one in each if one.metric in marked), categories(len(marked)), strict=True):
        line(lines, one, look, label=short(one.metric, 18))
    log_axis(lines, [point.dim for point in fine.points])
    percent_axis(lines, "superclass accuracy, %, by superclass")
    legend(figure, [bar, lines])
    return figure


def _marked(each: Sequence[Curve]) -> set[str]:
    def gain(one: Curve) -> float:
        return one.points[-1].y - one.points[0].y

    order = sorted((one for one in each if one.points), key=gain)
    return {one.metric for one in (*order[:_NAMED], *order[-_NAMED:])}
