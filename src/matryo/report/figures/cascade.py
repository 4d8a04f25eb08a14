"""The cascade's curve: accuracy against the dims it spends on average, beside every dim alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.classify.curve import CascadeCurve
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, Table, curve_table, rows_of
from matryo.report.series import Curve, Group, Point, gather, over_seeds
from matryo.report.style import Look, categories, light
from matryo.report.words import bars, dims, percent, points, spread, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.report.draw import Drawn
    from matryo.report.material import Material

__all__ = ["LOSS", "Best", "cascade", "cheapest"]

LOSS = 0.005
"""How much accuracy the finding lets a cascade lose against the full dim."""
_LAST, _ALL = "last dim used", "all dims computed"


def cascade(material: Material) -> Section | None:
    """A figure for each split: one panel by the last dim used, one by all dims computed where heads are separate."""
    groups = gather(material.rows, "cascade", CascadeCurve, lambda one: (one.dims, one.head, one.strategy, one.stop))
    if not groups:
        return None
    plates: list[Plate] = []
    curves: list[Curve] = []
    for place in dict.fromkeys(group.place for group in groups):
        here = [group for group in groups if group.place == place]
        found = [_curve(group, count) for group in here for count in _counts(group)]
        panels: dict[str, list[Drawn]] = {}
        for count in dict.fromkeys(one.metric for one in found):
            drawn = [one for one in found if one.metric == count]
            lines = zip(drawn, categories(len(drawn)), strict=True)
            panels[f"accuracy, %, by {count}"] = [*_alone(here), *((one, look, one.name) for one, look in lines)]
        curves += [*(one for one, _, _ in _alone(here)), *found]
        caption = f"{place}: {_about(here[0].first)}.{bars(found)}"
        drawn_figure = export(chart(panels, x="expected dims", height=3.1))
        plates.append(Plate(stem("cascade", len(plates) + 1, place), caption, drawn_figure))
    return Section(
        key="cascade",
        title="Cascade",
        finding=_finding(groups),
        meaning="A cascade answers at the smallest dim that is sure enough: marks left of the single dims are the "
        "same accuracy for fewer dims.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(curves, "expected dim", at="stop"),
        shown=tuple(map(_points, groups)),
    )


@dataclass(frozen=True)
class Best:
    """A cascade that is as good as the full dim, or nearly."""

    group: Group[CascadeCurve]
    point: Point
    full: float
    """The accuracy of the full dim."""

    @property
    def spent(self) -> str:
        """What it spends, in words; separate heads compute every dim on the way anew."""
        whole = f"of {dims(self.group.first.dims[-1])} dims on average"
        if _ALL not in _counts(self.group):
            return f"spends {dims(self.point.x)} {whole}"
        paid = _curve(self.group, _ALL).at(self.point.dim)
        return f"answers at {dims(self.point.x)} {whole} ({dims(paid.x if paid else self.point.x)} computed in all)"


def cheapest(groups: Sequence[Group[CascadeCurve]]) -> Best | None:
    """The cascade of the first split that loses at most LOSS for the fewest dims.

    One strategy's, the paper's where it is there: the best of several would be picked by the rows it is tested on.
    """
    groups = [group for group in groups if group.first.strategy == "greedy"] or groups
    found = []
    for group in (group for group in groups if group.place == groups[0].place):
        full = float(over_seeds(group.results, lambda one: one.single)[0][-1])
        found += [Best(group, point, full) for point in _curve(group, _LAST).points if point.y >= full - LOSS]
    return min(found, key=lambda best: best.point.x, default=None)


def _curve(group: Group[CascadeCurve], count: str) -> Curve:
    def cost(one: CascadeCurve) -> tuple[float, ...]:
        return one.expected_dim if count == _LAST else one.cumulative_dim

    (y, sd), (x, x_sd) = (over_seeds(group.results, figure) for figure in (lambda one: one.accuracy, cost))
    one, bar = group.first, group.spread
    if not bar and one.holdouts > 1:
        sd = np.array(one.accuracy_sd)
        x_sd = np.array(one.expected_dim_sd if count == _LAST else one.cumulative_dim_sd)
        bar = f"sd over {one.holdouts} hold-outs"
    marks = sorted(map(Point, one.stop, *(array.tolist() for array in (y, sd, x, x_sd))), key=lambda point: point.x)
    return Curve(group.place, f"{group.name}, {one.strategy}", count, tuple(marks), len(group.results), bar)


def _points(group: Group[CascadeCurve]) -> Table:
    one = group.first
    allowed = {"greedy": "last dim allowed", "budget": "dims allowed", "risk": "loss allowed"}.get(one.strategy, "stop")
    paid = {point.dim: point for point in _curve(group, _ALL).points}
    lines = tuple(
        (f"{p.dim:g}", spread(100 * p.y, 100 * p.sd), spread(p.x, p.x_sd), spread(paid[p.dim].x, paid[p.dim].x_sd))
        for p in _curve(group, _LAST).points
    )
    title = f"{group.name} on {group.place}: {one.strategy}, {one.head} heads"
    return Table((allowed, "accuracy, %", _LAST, _ALL), lines, title)


def _counts(group: Group[CascadeCurve]) -> list[str]:
    # A tied head reuses what it summed, so the last dim it used is all that it computed.
    return [_LAST] if group.first.head == "tied" else [_LAST, _ALL]


def _alone(groups: Sequence[Group[CascadeCurve]]) -> list[Drawn]:
    # Strategies share their single dims: one grey line a model.
    found: dict[str, Drawn] = {}
    for group in groups:
        mean, deviation = over_seeds(group.results, lambda one: one.single)
        marks = tuple(map(Point, group.first.dims, mean.tolist(), deviation.tolist()))
        label = f"{group.name}, each dim alone"
        one = Curve(group.place, label, "single dim", marks, len(group.results), group.spread)
        found.setdefault(group.name, (one, Look(light("s8"), "s", (1.5, 1.5), 1.3), label))
    return list(found.values())


def _about(one: CascadeCurve) -> str:
    return f"thresholds fitted on {one.fitted_on:,} examples and read on {one.tested_on:,} others"


def _finding(groups: Sequence[Group[CascadeCurve]]) -> str:
    best = cheapest(groups)
    if best is not None:
        about = f"A cascade of {best.group.name} {best.spent}"
        return f"{about} and has {percent(best.point.y)}; the full dim has {percent(best.full)}"
    curve = _curve(groups[0], _LAST)
    top = max(curve.points, key=lambda point: point.y)
    lost = points(groups[0].first.single[-1] - top.y)
    return f"No cascade comes within {points(LOSS)} of the full dim: the best loses {lost} at {dims(top.x)} dims"
