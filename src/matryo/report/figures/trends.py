"""Classes and examples by dim: the spread of class accuracy, the first dim that is right, and trends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation.protocols.trends import TRENDS, Trends
from matryo.report.draw import export, legend, log_axis, percent_axis, sheet, short
from matryo.report.section import Plate, Section, Table, rows_of
from matryo.report.series import Group, gather, over_seeds
from matryo.report.style import light
from matryo.report.words import dims, percent, points, stem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

    from matryo.report.material import Material

_FIRST = "smallest dim that is right, % of examples"


def sections(material: Material) -> Iterator[Section]:
    """Two plates per model and split."""
    groups = gather(material.rows, Trends, lambda one: (one.by, one.dims, one.classes))
    if not groups:
        return
    plates: list[Plate] = []
    for group in groups:
        full = dims(group.first.dims[-1])
        fan, bars = ("classes", _fan, f"class accuracy, points from {full} dims"), ("first-right", _first_right, _FIRST)
        for key, draw, what in (fan, bars):
            figure, (axis,) = sheet([2.7])
            draw(axis, group)
            percent_axis(axis, title := f"{group.name}\n{group.place}\n{what}")
            legend(figure, [axis])
            plates.append(Plate(stem(key, len(plates) + 1, f"{group.name} {group.place}"), title, export(figure)))
    first, oracle = groups[0].first, _mean(groups[0], lambda one: one.oracle)
    gain = points(oracle - _mean(groups[0], lambda one: one.accuracy[-1]))
    yield Section(
        "classes", "Classes and dims",
        f"Perfect routing among its dims would bring {groups[0].name} to {percent(oracle)}, {gain} above its full dim",
        f"{len(first.classes):,} classes, predicted by {first.by}. Classes above 0 are classified better with fewer "
        f"dims than {dims(first.dims[-1])}.",
        rows=rows_of(groups), plates=tuple(plates), table=_long(groups), shown=(_short(groups),),
    )  # fmt: skip


def _mean(group: Group[Trends], figure: Callable[[Trends], Any]) -> Any:
    return over_seeds(group.results, figure)[0]


def _fan(axis: Axes, group: Group[Trends]) -> None:
    xs, each = group.first.dims, _mean(group, lambda one: one.class_accuracy)
    relative = each - each[:, -1:]
    low, lower, middle, upper, high = np.quantile(relative, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    axis.fill_between(xs, low, high, color=light("s1"), alpha=0.18, linewidth=0, label="5–95 % of classes")
    axis.fill_between(xs, lower, upper, color=light("s1"), alpha=0.35, linewidth=0, label="25–75 % of classes")
    axis.plot(xs, middle, color=light("s1"), marker="o", markersize=4, label="median class")
    better = relative[:, :-1].mean(1) if len(xs) > 1 else np.zeros(len(relative))
    marked = int(better.argmax())
    if better[marked] > 0:   # as in the paper, the class that loses most from more dims
        label = f"loses most: {short(group.first.classes[marked], 24)}"
        axis.plot(xs, relative[marked], "x--", color=light("s2"), linewidth=1.1, label=label)
    log_axis(axis, xs)


def _first_right(axis: Axes, group: Group[Trends]) -> None:
    accuracy, oracle = (_mean(group, lambda one: one.accuracy), _mean(group, lambda one: one.oracle))
    shares = [*_mean(group, lambda one: one.first_right).tolist(), 1 - oracle]
    below = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
    colours = [light("s3")] * len(group.first.dims) + [light("s8")]
    axis.bar(range(len(shares)), shares, bottom=below, color=colours, width=0.8)
    full = f"right at {dims(group.first.dims[-1])} dims"
    axis.axhline(accuracy[-1], color=light("ink"), linewidth=1, linestyle=(0, (4, 2)), label=full)
    axis.set_xticks(range(len(shares)), [*(dims(dim) for dim in group.first.dims), "never"])
    axis.set_ylim(0, 1)
    axis.grid(axis="x", visible=False)
    axis.set_xlabel("dims", loc="right")


def _long(groups: list[Group[Trends]]) -> Table:
    heads = ("place", "series", "class", "examples", "trend", "dim", "accuracy", "seeds")
    lines = []
    for group in groups:
        each, one = _mean(group, lambda one: one.class_accuracy).tolist(), group.first
        for name, count, trend, accuracy in zip(one.classes, one.class_counts, one.trend, each, strict=True):
            about = (group.place, group.name, name, count, trend)
            by_dim = zip(one.dims, accuracy, strict=True)
            lines += [(*about, dim, value, len(group.results)) for dim, value in by_dim]
    return Table(heads, tuple(lines))


def _short(groups: list[Group[Trends]]) -> Table:
    heads = ("model", "split", "right at full dim", "right at some dim", "never", *TRENDS)
    lines = []
    for group in groups:
        full, oracle = (_mean(group, lambda one: one.accuracy[-1]), _mean(group, lambda one: one.oracle))
        counts = _mean(group, lambda one: [one.trend.count(name) for name in TRENDS])
        shares = (f"{100 * share:.1f}" for share in (full, oracle, 1 - oracle))
        lines.append((group.name, group.place, *shares, *(f"{count:,.1f}".removesuffix(".0") for count in counts)))
    return Table(heads, tuple(lines))
