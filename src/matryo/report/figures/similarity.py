"""The similarity span: how far positive pairs stand from random ones, as ridges by dim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.evaluation.protocols.similarity import Similarity
from matryo.report.draw import export, legend, sheet
from matryo.report.section import Plate, Section, by_dim, curve_table, metric_of, rows_of
from matryo.report.series import Curve, Group, curve, gather, over_seeds
from matryo.report.style import light
from matryo.report.words import dims, percent, stem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from matryo.report.material import Material

__all__ = ["similarity"]

_METRICS = {"AUC": "auc", "positive mean": "positive_mean", "random mean": "random_mean"}


def similarity(material: Material) -> Section | None:
    """A figure for each model and split, with a ridge for each dim."""
    groups = gather(material.rows, "similarity", Similarity, lambda one: (one.dims, one.edges))
    if not groups:
        return None
    plates, curves = [], []
    for number, group in enumerate(groups, start=1):
        caption = f"{group.name} on {group.place}: {group.first.pairs:,} pairs of each kind; AUC at the right."
        plates.append(Plate(stem("similarity", number, f"{group.name} {group.place}"), caption, export(_draw(group))))
        curves += _curves(group)
    auc = _curves(groups[0])[0]
    low, full = auc.points[0], auc.full
    return Section(
        key="similarity",
        title="Similarity span",
        finding=f"A pair that belongs together is more alike than a random one {percent(low.y)} of the time at "
        f"{dims(low.dim)} dims and {percent(full.y)} at {dims(full.dim)}",
        meaning="Cosines of pairs that belong together (of one class, or listed as such) and of random pairs, by dim: "
        "the less they overlap, the surer a threshold on the cosine.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=by_dim(
            curves, title=lambda one: f"{one.name} on {one.place}", column=metric_of, scale=1, digits=3
        ),
    )


def _curves(group: Group[Similarity]) -> list[Curve]:
    return [
        curve(group, lambda one, name=name: getattr(one, name), metric=metric)   # type: ignore[misc]
        for metric, name in _METRICS.items()
    ]


def _draw(group: Group[Similarity]) -> Figure:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    one = group.first
    positive, random, auc = (
        over_seeds(group.results, lambda each, name=name: getattr(each, name))[0]   # type: ignore[misc]
        for name in ("positive", "random", "auc")
    )
    figure, (axis,) = sheet([0.9 + 0.5 * len(one.dims)])
    edges = np.array(one.edges)
    for place in range(len(one.dims)):
        base = len(one.dims) - 1 - place   # the smallest dim on top
        tallest = max(positive[place].max(), random[place].max(), 1e-12)
        for shares, colour, label in ((random, "s8", "random pairs"), (positive, "s1", "pairs that belong")):
            height = 0.9 * shares[place] / tallest
            axis.stairs(
                base + height, edges, baseline=base, fill=True, color=light(colour), alpha=0.45, zorder=3 + 2 * place
            )
            axis.stairs(
                base + height, edges, baseline=base, color=light(colour), linewidth=1.2, zorder=4 + 2 * place,
                label=label if place == 0 else None,
            )  # fmt: skip
        axis.text(1.01, base + 0.15, f"{auc[place]:.2f}", transform=axis.get_yaxis_transform())
    seen = np.flatnonzero((positive + random).sum(0) > 0)
    if len(seen):
        axis.set_xlim(edges[seen[0]], edges[seen[-1] + 1])
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_yticks(range(len(one.dims)), [dims(dim) for dim in reversed(one.dims)])
    axis.grid(axis="y", visible=False)
    axis.set_title("dims", loc="left")
    axis.set_title("AUC", loc="right")
    axis.set_xlabel("cosine", loc="right")
    legend(figure, [axis])
    return figure
