"""The retrieval trade-off: how good the ten nearest are against what a query costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.report.draw import chart, export
from matryo.report.models import places
from matryo.report.section import Plate, Section, by_dim, curve_table, rows_of
from matryo.report.words import bars, dims, enough, percent, share, stem

if TYPE_CHECKING:
    from matryo.report.material import Material
    from matryo.report.series import Curve

__all__ = ["retrieval"]


def retrieval(material: Material) -> Section | None:
    """mAP@10 against MFLOPs a query, a figure for each split."""
    plates: list[Plate] = []
    curves: list[Curve] = []
    for place in places(material.lines):
        lines = [one for one in material.lines if one.place == place]
        here = [found for one in lines if (found := one.curve("mAP@10", against_cost=True))]
        if not here:   # a database of fewer than ten
            continue
        panel = {"mAP@10, %": [(one, material.looks.of(one.name), one.name) for one in here]}
        drawn = export(chart(panel, x="MFLOPs a query", height=3.3))
        plates.append(Plate(stem("retrieval", len(plates) + 1, place), f"{place}, exact search.{bars(here)}", drawn))
        curves += here
    if not plates:
        return None
    return Section(
        key="retrieval",
        title="Retrieval",
        finding=_finding(curves[0]),
        meaning="Left is cheaper and up is better; each mark is one dim, and a query costs one multiply-add for each "
        "number of the database.",
        rows=rows_of(material.lines),
        plates=tuple(plates),
        table=curve_table(curves, "MFLOPs"),
        shown=by_dim(curves),
    )


def _finding(curve: Curve) -> str:
    point, full = enough(curve), curve.full
    if point.dim == full.dim or not full.y:
        return f"{curve.name} needs all its {dims(full.dim)} dims for a mAP@10 of {percent(full.y)}"
    cost, kept = f"1/{full.x / point.x:.3g}", share(point.y, full.y)
    return f"At {cost} of the cost of a query ({dims(point.dim)} dims), {curve.name} keeps {kept} of its mAP@10"
