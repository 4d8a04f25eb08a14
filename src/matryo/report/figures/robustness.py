"""Robustness: one model on several splits, with what perfect routing among its dims would reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.evaluation.protocols.robustness import Robustness
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, by_dim, curve_table, rows_of
from matryo.report.series import Curve, Group, Point, gather, over_seeds
from matryo.report.style import categories
from matryo.report.words import bars, dims, percent, points, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from matryo.report.material import Material

__all__ = ["robustness"]

_PANELS = {"head top-1": "head", "1-NN": "top1", "mAP@10": "map10"}


def robustness(material: Material) -> Section | None:
    """A figure for each model: its splits side by side."""
    groups = gather(material.rows, "robustness", Robustness, lambda one: (one.dims, one.splits))
    if not groups:
        return None
    plates, curves = [], []
    for number, group in enumerate(groups, start=1):
        here, oracle = _curves(group), _oracle(group)
        drawn = export(_draw(group, here, oracle))
        caption = f"{group.name} on {group.place}. Stars: right at some dim, by {group.first.by}.{bars(here)}"
        plates.append(Plate(stem("robustness", number, group.name), caption, drawn))
        curves += [*here, *oracle]
    return Section(
        key="robustness",
        title="Robustness",
        finding=_finding(groups[0].name, _curves(groups[0]), _oracle(groups[0])),
        meaning="Each line is one test split. The star is the oracle: the share right at some dim, which perfect "
        "routing would reach.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=by_dim(curves, title=lambda one: f"{one.name}: {one.metric}, %", column=_split),
    )


def _curves(group: Group[Robustness]) -> list[Curve]:
    """By metric and split; heads that know a single dim say nothing about dims, and are left to other figures."""
    found = []
    for metric, figure in _PANELS.items():
        mean, deviation = over_seeds(group.results, lambda one, figure=figure: getattr(one, figure))   # type: ignore[misc]
        for split, ys, sds in zip(group.first.splits, mean.tolist(), deviation.tolist(), strict=True):
            marks = tuple(p for p in map(Point, group.first.dims, ys, sds) if not np.isnan(p.y))
            place = f"{group.place} / {split}"
            if len(marks) > 1 or len(group.first.dims) == 1:
                found.append(Curve(place, group.name, metric, marks, len(group.results), group.spread))
    return found


def _oracle(group: Group[Robustness]) -> list[Curve]:
    mean, deviation = over_seeds(group.results, lambda one: one.oracle)
    full = group.first.dims[-1]
    return [
        Curve(f"{group.place} / {split}", group.name, "oracle", (Point(full, y, sd),), len(group.results), group.spread)
        for split, y, sd in zip(group.first.splits, mean.tolist(), deviation.tolist(), strict=True)
    ]


def _draw(group: Group[Robustness], curves: Sequence[Curve], oracle: Sequence[Curve]) -> Figure:
    splits = group.first.splits
    looks = dict(zip((one.place for one in oracle), categories(len(splits)), strict=True))
    names = dict(zip(looks, splits, strict=True))
    panels = {
        f"{metric}, %": [(one, looks[one.place], names[one.place]) for one in curves if one.metric == metric]
        for metric in dict.fromkeys(one.metric for one in curves)
    }
    figure = chart(panels, height=2.5)
    for one in oracle:   # heads decide where they know several dims, and the first panel is theirs then
        place, mark = group.first.dims[-1] * 1.12, one.points[0]
        figure.axes[0].plot(place, mark.y, marker="*", markersize=9, color=looks[one.place].colour, clip_on=False)
    return figure


def _split(one: Curve) -> str:
    return one.place.rpartition(" / ")[2]


def _finding(name: str, curves: Sequence[Curve], oracle: Sequence[Curve]) -> str:
    metric = curves[0].metric
    here = [one for one in curves if one.metric == metric]
    best, worst = max(here, key=lambda one: one.full.y), min(here, key=lambda one: one.full.y)
    if best is worst:
        gain = oracle[0].full.y - best.full.y
        return f"Perfect routing among its dims would gain {name} {points(gain)} over {percent(best.full.y)}"
    split = [_split(one) for one in (best, worst)]
    low = min(point.dim for point in best.points)
    small = [at.y for one in (best, worst) if (at := one.at(low))]
    return (
        f"From {split[0]} to {split[1]}, {name} falls from {percent(best.full.y)} to {percent(worst.full.y)} at "
        f"{dims(best.full.dim)} dims"
        + (f", and from {percent(small[0])} to {percent(small[1])} at {dims(low)}" if len(small) == 2 else "")
    )
