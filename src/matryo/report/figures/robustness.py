"""Robustness: one model on several splits, with the accuracy that perfect routing among its dims would reach."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matryo.evaluation.protocols.robustness import Robustness
from matryo.report.lines import model_fields
from matryo.report.section import Section
from matryo.report.series import Curve, Group, Point, gather, over_seeds
from matryo.report.words import dims, percent, points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.report.material import Material

_FIELDS = {"head top-1": "head", "1-NN accuracy": "top1", "mAP@10": "map10"}


def sections(material: Material) -> Iterator[Section]:
    """A plate per model and metric with a line per split."""
    if groups := gather(material.rows, Robustness, lambda one: (one.dims, one.splits)):
        yield Section(
            "robustness", "Robustness", _claim(groups[0]), "Each line is one test split.",
            **model_fields(groups, _panels, key="robustness"),
        )  # fmt: skip


def _panels(group: Group[Robustness]) -> dict[str, list[Curve]]:
    """Curves of the splits by metric. A head with a single dim shows nothing about dims and is skipped."""
    panels: dict[str, list[Curve]] = {}
    for metric, field in _FIELDS.items():
        mean, deviation = over_seeds(group.results, lambda one, field=field: getattr(one, field))   # type: ignore[misc]
        for split, ys, sds in zip(group.first.splits, mean.tolist(), deviation.tolist(), strict=True):
            marks = tuple(p for p in map(Point, group.first.dims, ys, sds) if not math.isnan(p.y))
            if len(marks) > 1 or len(group.first.dims) == 1:
                place = f"{group.place}: {metric}"
                one = Curve(place, group.name, split, marks, len(group.results), group.spread)
                panels.setdefault(metric, []).append(one)
    return panels


def _claim(group: Group[Robustness]) -> str:
    metric, curves = next(iter(_panels(group).items()))
    best, worst = max(curves, key=lambda one: one.full.y), min(curves, key=lambda one: one.full.y)
    oracle = dict(zip(group.first.splits, over_seeds(group.results, lambda one: one.oracle)[0].tolist(), strict=True))
    routed = f"; perfect routing among its dims would gain {points(oracle[worst.metric] - worst.full.y)}"
    if best is worst:
        return f"The {metric} of {group.name} is {percent(best.full.y)} at {dims(best.full.dim)} dims{routed}"
    return (
        f"From {best.metric} to {worst.metric}, the {metric} of {group.name} falls from {percent(best.full.y)} to "
        f"{percent(worst.full.y)} at {dims(best.full.dim)} dims{routed}"
    )
