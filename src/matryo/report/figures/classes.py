"""Single classes and examples as the dim grows: their spread, where they are first right, and their trends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation.protocols.trends import TRENDS, Trends
from matryo.report.draw import export, legend, log_axis, percent_axis, sheet, short
from matryo.report.section import Plate, Section, Table, rows_of
from matryo.report.series import Group, gather, over_seeds
from matryo.report.style import light
from matryo.report.words import dims, percent, points, stem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from matryo.report.material import Material

    Floats = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["classes"]

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class _Means:
    """What a group's trends are on average over its seeds."""

    relative: Floats
    """[classes, dims]: accuracy less that of the full dim."""
    quantiles: Floats
    """[quantiles, dims], over the classes."""
    accuracy: Floats
    first_right: Floats
    oracle: float
    counts: Floats
    """[TRENDS]: how many classes follow each."""


def classes(material: Material) -> Section | None:
    """A figure for each model and split."""
    groups = gather(material.rows, "trends", Trends, lambda one: (one.by, one.dims, one.classes))
    if not groups:
        return None
    plates = []
    for number, group in enumerate(groups, start=1):
        about = f"{group.name} on {group.place}, by {group.first.by}: {len(group.first.classes):,} classes."
        for key, draw in (("classes", _draw_classes), ("trends", _draw_trends)):
            plates.append(Plate(stem(key, number, f"{group.name} {group.place}"), about, export(draw(group))))
    first, found = groups[0].first, _means(groups[0])
    return Section(
        key="classes",
        title="Classes and dims",
        finding=f"Perfect routing among its dims would bring {groups[0].name} to {percent(found.oracle)}, "
        f"{points(found.oracle - found.accuracy[-1])} above its full dim",
        meaning=f"Above 0 are classes that fewer dims than {dims(first.dims[-1])} serve better; an example right only "
        "at a small dim is what a better choice of dim could win.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=_long(groups),
        shown=(_short(groups),),
    )


def _means(group: Group[Trends]) -> _Means:
    each, _ = over_seeds(group.results, lambda one: one.class_accuracy)
    relative = each - each[:, -1:]
    return _Means(
        relative=relative,
        quantiles=np.quantile(relative, _QUANTILES, axis=0),
        accuracy=over_seeds(group.results, lambda one: one.accuracy)[0],
        first_right=over_seeds(group.results, lambda one: one.first_right)[0],
        oracle=float(over_seeds(group.results, lambda one: one.oracle)[0]),
        counts=over_seeds(group.results, lambda one: [one.trend.count(name) for name in TRENDS])[0],
    )


def _draw_classes(group: Group[Trends]) -> Figure:
    found = _means(group)
    figure, (fan, first) = sheet([2.8, 2.8])
    _fan(fan, group, found)
    _first_right(first, group, found)
    legend(figure, [fan, first])
    return figure


def _draw_trends(group: Group[Trends]) -> Figure:
    found = _means(group)
    figure, (trend,) = sheet([2.2])
    trend.barh(range(len(TRENDS)), found.counts, color=light("s1"), height=0.6)
    trend.set_yticks(range(len(TRENDS)), TRENDS)
    trend.invert_yaxis()
    trend.grid(axis="y", visible=False)
    trend.bar_label(trend.containers[0], [_count(value) for value in found.counts], padding=3)   # type: ignore[arg-type]
    trend.margins(x=0.15)
    trend.set_title("how accuracy goes with more dims", loc="left")
    trend.set_xlabel("classes", loc="right")
    return figure


def _fan(axis: Axes, group: Group[Trends], found: _Means) -> None:
    xs, one = group.first.dims, found.quantiles
    axis.fill_between(xs, one[0], one[-1], color=light("s1"), alpha=0.18, linewidth=0, label="5–95 % of classes")
    axis.fill_between(xs, one[1], one[-2], color=light("s1"), alpha=0.35, linewidth=0, label="25–75 % of classes")
    axis.plot(xs, one[2], color=light("s1"), marker="o", markersize=4, label="median class")
    better = found.relative[:, :-1].mean(1) if len(xs) > 1 else np.zeros(len(found.relative))
    marked = int(better.argmax())
    if better[marked] > 0:   # as the paper marks the class that loses most by more dims
        label = f"loses most: {short(group.first.classes[marked], 24)}"
        axis.plot(xs, found.relative[marked], "x--", color=light("s2"), linewidth=1.1, label=label)
    log_axis(axis, xs)
    percent_axis(axis, f"class accuracy, points from {dims(xs[-1])} dims")


def _first_right(axis: Axes, group: Group[Trends], found: _Means) -> None:
    shares = [*found.first_right.tolist(), 1 - found.oracle]
    below = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
    colours = [light("s3")] * len(group.first.dims) + [light("s8")]
    axis.bar(range(len(shares)), shares, bottom=below, color=colours, width=0.8)
    full = f"right at {dims(group.first.dims[-1])} dims"
    axis.axhline(found.accuracy[-1], color=light("ink"), linewidth=1, linestyle=(0, (4, 2)), label=full)
    axis.set_xticks(range(len(shares)), [*(dims(dim) for dim in group.first.dims), "never"])
    axis.set_ylim(0, 1)
    axis.grid(axis="x", visible=False)
    axis.set_xlabel("dims at which an example is first right", loc="right")
    percent_axis(axis, "examples, %")


def _count(mean: float) -> str:
    """A number of classes; over seeds it need not be whole."""
    return f"{mean:,.0f}" if mean == int(mean) else f"{mean:,.1f}"


def _long(groups: list[Group[Trends]]) -> Table:
    heads = ("place", "series", "class", "examples", "trend", "dim", "accuracy", "seeds")
    lines = []
    for group in groups:
        each, one = over_seeds(group.results, lambda one: one.class_accuracy)[0].tolist(), group.first
        for name, count, trend, accuracy in zip(one.classes, one.class_counts, one.trend, each, strict=True):
            lines += [
                (group.place, group.name, name, count, trend, dim, value, len(group.results))
                for dim, value in zip(one.dims, accuracy, strict=True)
            ]
    return Table(heads, tuple(lines))


def _short(groups: list[Group[Trends]]) -> Table:
    heads = ("model", "split", "right at full dim", "right at some dim", "never", *TRENDS)
    lines = []
    for group in groups:
        one = _means(group)
        shares = (one.accuracy[-1], one.oracle, 1 - one.oracle)
        counts = map(_count, one.counts)
        lines.append((group.name, group.place, *(f"{100 * share:.1f}" for share in shares), *counts))
    return Table(heads, tuple(lines))
