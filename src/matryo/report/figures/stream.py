"""The stream: accuracy by dim on classes known or novel, frequent or rare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation.protocols.stream import Stream
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, by_dim, curve_table, metric_of, of_model, rows_of
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.style import categories
from matryo.report.words import bars, dims, ends, percent, plural, stem

if TYPE_CHECKING:
    from matryo.report.material import Material

__all__ = ["stream"]


def stream(material: Material) -> Section | None:
    """A figure for each model and split, with a line for each group of classes."""
    groups = gather(material.rows, "stream", Stream, lambda one: (one.dims, one.groups))
    if not groups:
        return None
    plates, curves = [], []
    for number, group in enumerate(groups, start=1):
        here, one = _curves(group), group.first
        looks = zip(here, categories(len(here)), strict=True)
        panel = {"accuracy over the stream, %": [(each, look, each.metric) for each, look in looks]}
        caption = (
            f"{group.name} on {group.place}: {one.length:,} examples, {plural(one.draws, 'draw')}; tail classes have "
            f"fewer than {one.tail_below}.{bars(here)}"
        )
        drawn = export(chart(panel, height=3.1))
        plates.append(Plate(stem("stream", number, f"{group.name} {group.place}"), caption, drawn))
        curves += here
    return Section(
        key="stream",
        title="Long-tail stream",
        finding=_finding(_curves(groups[0])),
        meaning="Each example is classified, then learnt; rare and novel classes show whether a dim has room for "
        "what training did not dwell on.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=by_dim(curves, title=of_model, column=metric_of),
    )


def _curves(group: Group[Stream]) -> list[Curve]:
    found = [
        curve(
            group,
            lambda one, place=place: one.accuracy[place],   # type: ignore[misc]
            metric=name,
            own=lambda one, place=place: one.sd[place],   # type: ignore[misc]
            own_spread=f"sd over {plural(group.first.draws, 'draw')}",
        )
        for place, name in enumerate(group.first.groups)
    ]
    return [one for one in found if one.points]   # a group of classes may have no examples


def _finding(curves: list[Curve]) -> str:
    whole = next((one for one in curves if one.metric == "overall"), curves[-1])
    tail = next((one for one in curves if one.metric == "novel-tail"), None)
    low, full = ends(whole)
    text = (
        f"{whole.name} gets {percent(low.y)} of the stream right at {dims(low.dim)} dims and {percent(full.y)} at "
        f"{dims(full.dim)}"
    )
    at = tail.at(low.dim) if tail else None
    if tail is None or at is None:
        return text
    return f"{text}; of the rare novel classes {percent(at.y)} and {percent(tail.full.y)}"
