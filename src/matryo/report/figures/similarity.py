"""Similarity span: cosines of related and of random pairs, as ridges by dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation.protocols.similarity import Similarity
from matryo.report.draw import export, legend, sheet
from matryo.report.section import Plate, Section, by_dim, curve_table, per_model, rows_of
from matryo.report.series import Curve, Group, curve, gather, over_seeds
from matryo.report.style import light
from matryo.report.words import dims, hardest, percent, stem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from matryo.report.material import Material

_METRICS = {"AUC": "auc", "positive mean": "positive_mean", "random mean": "random_mean"}


def sections(material: Material) -> Iterator[Section]:
    """A plate per model and split with a ridge per dim."""
    groups = gather(material.rows, Similarity, lambda one: (one.dims, one.edges))
    if not groups:
        return
    plates, curves = [], []
    for number, group in enumerate(groups, start=1):
        title = f"{group.name}\n{group.place}"
        name = stem("similarity", number, f"{group.name} {group.place}")
        plates.append(Plate(name, title, export(_draw(group, title))))
        curves += _curves(group)
    auc = hardest([one for one in curves if one.metric == "AUC"])
    low, full = auc.points[0], auc.full
    yield Section(
        "similarity", "Similarity span",
        f"A related pair is more similar than a random pair {percent(low.y)} of the time at {dims(low.dim)} dims "
        f"and {percent(full.y)} at {dims(full.dim)}",
        "Cosines of related pairs (same class, or listed as pairs) and of random pairs by dim, with the AUC at "
        f"the right. The less they overlap, the safer a threshold on the cosine. {groups[0].first.pairs:,} pairs of "
        "each kind.",
        rows=rows_of(groups), plates=tuple(plates), table=curve_table(curves),
        shown=by_dim(
            curves, title=lambda one: f"{one.name} on {one.place}", column=per_model["column"], scale=1, digits=3
        ),
    )


def _curves(group: Group[Similarity]) -> list[Curve]:
    return [
        curve(group, lambda one, name=name: getattr(one, name), metric=metric)   # type: ignore[misc]
        for metric, name in _METRICS.items()
    ]


def _draw(group: Group[Similarity], title: str) -> Figure:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    one = group.first
    positive, random, auc = (
        over_seeds(group.results, lambda each, name=name: getattr(each, name))[0]   # type: ignore[misc]
        for name in ("positive", "random", "auc")
    )
    figure, (axis,) = sheet([1.0 + 0.4 * len(one.dims)])
    edges = np.array(one.edges)
    for index in range(len(one.dims)):
        base = len(one.dims) - 1 - index   # the smallest dim on top
        tallest = max(positive[index].max(), random[index].max(), 1e-12)
        for shares, colour, label in ((random, "s8", "random pairs"), (positive, "s1", "related pairs")):
            height = 0.9 * shares[index] / tallest
            about: dict[str, Any] = {"baseline": base, "color": light(colour)}
            axis.stairs(base + height, edges, fill=True, alpha=0.45, zorder=3 + 2 * index, **about)
            named = label if index == 0 else None
            axis.stairs(base + height, edges, linewidth=1.2, zorder=4 + 2 * index, label=named, **about)
        axis.text(1.01, base + 0.15, f"{auc[index]:.2f}", transform=axis.get_yaxis_transform())
    seen = np.flatnonzero((positive + random).sum(0) > 0)
    if len(seen):
        axis.set_xlim(edges[seen[0]], edges[seen[-1] + 1])
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_yticks(range(len(one.dims)), [dims(dim) for dim in reversed(one.dims)])
    axis.grid(axis="y", visible=False)
    axis.set_title(title, loc="left")
    axis.set_ylabel("dims", loc="top")
    axis.set_title("AUC", loc="right")
    axis.set_xlabel("cosine", loc="right")
    legend(figure, [axis])
    return figure
