"""Protocols that give each model one line: linear probe, zero-shot, and grades of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.evaluation.protocols.probe import Probe
from matryo.evaluation.protocols.sts import Sts
from matryo.evaluation.protocols.zero_shot import ZeroShot
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, by_dim, curve_table, rows_of
from matryo.report.series import Group, curve, gather
from matryo.report.words import bars, dims, ends, percent, stem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matryo.report.material import Material

__all__ = ["probe", "sts", "zero_shot"]


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


def sts(material: Material) -> Section | None:
    """Rank correlation of cosines and grades by dim."""
    groups = gather(material.rows, "sts", Sts, lambda one: (one.dims, one.pairs))
    return _section(
        material,
        sorted(groups, key=lambda group: " + " in group.name),   # what is made post hoc comes last
        key="sts",
        title="Graded pairs",
        what="cosines beside the grades of people",
        meaning="People graded how alike the two of each pair are. The correlation of ranks says how well the cosines "
        "put the pairs in that order: 100 % is the same order, 0 none in common.",
        metric="Spearman",
        figure=lambda one: one.spearman,
    )


def _section(
    material: Material,
    groups: Sequence[Group[Any]],
    *,
    key: str,
    title: str,
    what: str,
    meaning: str,
    metric: str = "top-1",
    figure: Callable[[Any], tuple[float, ...]] = lambda one: one.top1,
) -> Section | None:
    if not groups:
        return None
    curves = [curve(group, figure, metric=metric) for group in groups]
    plates: list[Plate] = []
    for place in dict.fromkeys(one.place for one in curves):
        here = [one for one in curves if one.place == place]
        panel = {f"{title.lower()} {metric}, %": [(one, material.looks.of(one.name), one.name) for one in here]}
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
