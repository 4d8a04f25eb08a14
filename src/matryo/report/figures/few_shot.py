"""Few-shot: accuracy by dim, a line for each number of shots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from matryo.evaluation.protocols.few_shot import FewShot
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, by_dim, curve_table, metric_of, of_model, rows_of
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.style import ramp
from matryo.report.words import bars, dims, ends, percent, plural, stem

if TYPE_CHECKING:
    from matryo.report.material import Material

__all__ = ["few_shot"]


def few_shot(material: Material) -> Section | None:
    """A figure for each model, split and choice of classes."""
    groups = gather(material.rows, "few-shot", FewShot, lambda one: (one.dims, one.shots, one.classes, one.ways))
    if not groups:
        return None
    plates, curves = [], []
    for number, group in enumerate(groups, start=1):
        here, one = _curves(group), group.first
        looks = zip(here, ramp(len(here)), strict=True)
        panel = {"nearest class mean, accuracy, %": [(each, look, each.metric) for each, look in looks]}
        caption = f"{group.name} on {here[0].place}, {plural(one.draws, 'draw')}.{bars(here)}"
        plates.append(Plate(stem("few-shot", number, f"{group.name} {group.place}"), caption, export(chart(panel))))
        curves += here
    middle = _curves(groups[0])[len(groups[0].first.shots) // 2]
    low, full = ends(middle)
    return Section(
        key="few-shot",
        title="Few-shot",
        finding=f"With {middle.metric}, {groups[0].name} reaches {percent(low.y)} at {dims(low.dim)} dims and "
        f"{percent(full.y)} at {dims(full.dim)}",
        meaning="So many examples of each class were shown, and the nearest class mean decides: a line that is flat "
        "early needs few dims for classes it has only just met.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=by_dim(curves, title=of_model, column=metric_of),
    )


def _curves(group: Group[FewShot]) -> list[Curve]:
    one = group.first
    which = "all classes" if one.classes == "all" else f"classes {one.classes}"
    chosen = replace(group, place=f"{group.place}: {one.ways}-way, {which}")
    return [
        curve(
            chosen,
            lambda one, place=place: one.accuracy[place],   # type: ignore[misc]
            metric=plural(shots, "shot"),
            own=lambda one, place=place: one.margin[place],   # type: ignore[misc]
            own_spread="95 % interval",
        )
        for place, shots in enumerate(one.shots)
    ]
