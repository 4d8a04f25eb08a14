"""Protocols that give each model one line: linear probe and zero-shot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.evaluation.probe import Probe
from matryo.evaluation.zero_shot import ZeroShot
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, by_dim, curve_table, rows_of
from matryo.report.series import Group, curve, gather
from matryo.report.words import bars, dims, ends, percent, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.report.material import Material

__all__ = ["probe", "zero_shot"]


def probe(material: Material) -> Section | None:
    """Linear probes at each dim."""
    return _section(
        material,
        gather(material.rows, "probe", Probe, lambda one: one.dims),
        key="probe",
        title="Linear probe",
        what="a linear probe",
        meaning="A linear classifier was fitted on the frozen vectors at each dim by itself: what the dim holds, "
        "whatever the model's own head makes of it.",
    )


def zero_shot(material: Material) -> Section | None:
    """Zero-shot accuracy by dim."""
    return _section(
        material,
        gather(material.rows, "zero-shot", ZeroShot, lambda one: (one.dims, one.prompts)),
        key="zero-shot",
        title="Zero-shot",
        what="class texts alone",
        meaning="Each example gets the class whose text is nearest; no example of any class was shown.",
    )


def _section(
    material: Material, groups: Sequence[Group[Any]], *, key: str, title: str, what: str, meaning: str
) -> Section | None:
    if not groups:
        return None
    curves = [curve(group, lambda one: one.top1, metric="top-1") for group in groups]
    plates: list[Plate] = []
    for place in dict.fromkeys(one.place for one in curves):
        here = [one for one in curves if one.place == place]
        panel = {f"{title.lower()} top-1, %": [(one, material.looks.of(one.name), one.name) for one in here]}
        drawn = export(chart(panel, height=3.3))
        plates.append(Plate(stem(key, len(plates) + 1, place), f"{place}.{bars(here)}", drawn))
    low, full = ends(curves[0])
    return Section(
        key=key,
        title=title,
        finding=f"With {what}, {curves[0].name} reaches {percent(low.y)} at {dims(low.dim)} dims and "
        f"{percent(full.y)} at {dims(full.dim)}",
        meaning=meaning,
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=by_dim(curves),
    )
