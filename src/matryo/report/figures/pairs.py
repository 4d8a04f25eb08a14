"""Pairs: how well each side finds what belongs to it on the other, by dim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation.protocols.pairs import PAIR_METRICS, Pairs
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, by_dim, curve_table, rows_of
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.words import bars, dims, ends, percent, stem

if TYPE_CHECKING:
    from matryo.report.material import Material

__all__ = ["main_pairs", "pairs"]

_DRAWN = (("nDCG", 10), ("hit", 1))


def pairs(material: Material) -> Section | None:
    """For each split and direction a figure with a panel a metric, and a line a model."""
    groups = _groups(material)
    if not groups:
        return None
    plates: list[Plate] = []
    curves: list[Curve] = []
    for place in dict.fromkeys(group.place for group in groups):
        here = [group for group in groups if group.place == place]
        for direction in (0, 1):
            one = here[0].first
            panels = {
                f"{metric}@{k}, %": [
                    (found, material.looks.of(found.name), found.name)
                    for group in here
                    if k in group.first.ks and (found := _curve(group, metric, k, direction))
                ]
                for metric, k in _DRAWN
            }
            shown = {title: drawn for title, drawn in panels.items() if drawn}
            if shown:
                lines = [found for drawn in shown.values() for found, _, _ in drawn]
                caption = f"{place}: {one.directions[direction]}, {_sizes(one, direction)}.{bars(lines)}"
                name = stem("pairs", len(plates) + 1, f"{place} {one.sides[direction]}")
                plates.append(Plate(name, caption, export(chart(shown, height=2.6))))
                curves += lines
    first = main_pairs(material)
    assert first is not None
    low, full = ends(first)
    every = [found for group in groups for found in _curves(group)]
    return Section(
        key="pairs",
        title="Pairs",
        finding=f"{first.name} reaches a {first.metric} of {percent(low.y)} at {dims(low.dim)} dims and "
        f"{percent(full.y)} at {dims(full.dim)}",
        meaning="Each side is searched for what belongs to the other. nDCG@10 grades the order of the first ten; hit@1 "
        "says how often the very nearest belongs, which papers on images and texts call recall@1.",
        rows=rows_of(groups),
        plates=tuple(plates),
        table=curve_table(every),
        shown=by_dim(curves),   # what is drawn; the file has every metric and k
    )


def main_pairs(material: Material) -> Curve | None:
    """The line that stands for all: of the first model on the first split, queries asking."""
    groups = _groups(material)
    return _curve(groups[0], "nDCG", min(groups[0].first.ks, key=lambda k: abs(k - 10)), 0) if groups else None


def _groups(material: Material) -> list[Group[Pairs]]:
    same = gather(material.rows, "pairs", Pairs, lambda one: (one.dims, one.ks, one.sides, one.counts, one.related))
    return sorted(same, key=lambda group: " + " in group.name)   # what is made post hoc comes last


def _curves(group: Group[Pairs]) -> list[Curve]:
    return [
        _curve(group, metric, k, direction) for direction in (0, 1) for metric in PAIR_METRICS for k in group.first.ks
    ]


def _curve(group: Group[Pairs], metric: str, k: int, direction: int) -> Curve:
    title = f"{metric}@{k}, {group.first.directions[direction]}"
    return curve(group, lambda one: one.at(metric, k, direction), metric=title)


def _sizes(one: Pairs, direction: int) -> str:
    return f"{one.asked[direction]:,} ask and {one.counts[1 - direction]:,} are searched"
