"""Cascade: accuracy against the expected dim, beside every dim alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from matryo.classify.curve import CascadeCurve
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, Table, curve_table, rows_of
from matryo.report.series import Curve, Group, Point, gather, over_seeds
from matryo.report.style import Look, light
from matryo.report.words import bars, dims, percent, points, spread, stem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.report.draw import Drawn
    from matryo.report.material import Material

LOSS = 0.005
"""The accuracy that the claim lets a cascade lose against the full dim."""
_LAST, _ALL = "last dim used", "all dims computed"
_DASHES = {"greedy": (), "budget": (5.0, 2.0), "risk": (1.5, 1.5)}
_MARKS = {"greedy": "o", "budget": "s", "risk": "D"}


def sections(material: Material) -> Iterator[Section]:
    """A plate per split by the last dim used, and one by all dims computed where heads are separate."""
    groups = gather(material.rows, CascadeCurve, lambda one: (one.dims, one.head, one.strategy, one.stop))
    if not groups:
        return
    plates: list[Plate] = []
    curves: list[Curve] = []
    for place in dict.fromkeys(group.place for group in groups):
        here = [group for group in groups if group.place == place]
        alone = _alone(here)
        curves += [one for one, _, _ in alone]
        for count in (_LAST, _ALL):
            drawn = [(_curve(group, count), _look(material, group), f"{group.name}, {group.first.strategy}")
                     for group in here if count in _counts(group)]   # fmt: skip
            if drawn:
                title = f"{place}\naccuracy, %, by {count}"
                figure = export(chart(title, [*alone, *drawn], x="expected dims"))
                plates.append(Plate(stem("cascade", len(plates) + 1, f"{place} {count}"), title, figure))
                curves += [one for one, _, _ in drawn]
    first = groups[0].first
    legend = {label: look for _, look, label in _alone(groups)}
    legend |= {f"{group.name}, {group.first.strategy}": _look(material, group) for group in groups}
    yield Section(
        "cascade", "Cascade", _claim(groups),
        "A cascade stops at the smallest dim that is confident enough. Marks to the left of the single dims reach the "
        f"same accuracy with fewer dims. Thresholds are fitted on {first.fitted_on:,} examples and tested on "
        f"{first.tested_on:,} others.",
        note=bars(curves), rows=rows_of(groups), plates=tuple(plates), legend=tuple(legend.items()),
        table=curve_table(curves, "expected dim", at="stop"), shown=tuple(map(_table, groups)),
    )  # fmt: skip


def cheapest(groups: Sequence[Group[CascadeCurve]]) -> tuple[Group[CascadeCurve], Point, float] | None:
    """The cascade of the hardest split that loses at most LOSS with the fewest dims, and the full dim's accuracy.

    Only one strategy is considered, the paper's if available: choosing the best of several strategies on the examples
    that they are tested on would be optimistic.
    """
    groups = [group for group in groups if group.first.strategy == "greedy"] or list(groups)
    full = {id(group): float(over_seeds(group.results, lambda one: one.single)[0][-1]) for group in groups}
    place = min(groups, key=lambda group: full[id(group)]).place
    candidates = [
        (group, point, full[id(group)])
        for group in groups
        for point in _curve(group, _LAST).points
        if group.place == place and point.y >= full[id(group)] - LOSS
    ]
    return min(candidates, key=lambda candidate: candidate[1].x, default=None)


def _look(material: Material, group: Group[CascadeCurve]) -> Look:
    strategy = group.first.strategy
    base = material.looks.of(group.name)
    return replace(base, dash=_DASHES.get(strategy, ()), marker=_MARKS.get(strategy, "o"), width=1.6)


def _curve(group: Group[CascadeCurve], count: str) -> Curve:
    field = "expected_dim" if count == _LAST else "cumulative_dim"
    (y, sd), (x, x_sd) = (
        over_seeds(group.results, lambda one, name=name: getattr(one, name))   # type: ignore[misc]
        for name in ("accuracy", field)
    )
    first, bar = group.first, group.spread
    if not bar and first.holdouts > 1:
        sd, x_sd = np.array(first.accuracy_sd), np.array(getattr(first, f"{field}_sd"))
        bar = f"sd over {first.holdouts} hold-outs"
    marks = sorted(map(Point, first.stop, *(array.tolist() for array in (y, sd, x, x_sd))), key=lambda point: point.x)
    return Curve(group.place, f"{group.name}, {first.strategy}", count, tuple(marks), len(group.results), bar)


def _table(group: Group[CascadeCurve]) -> Table:
    first, counts = group.first, _counts(group)
    limits = {"greedy": "last dim allowed", "budget": "dims allowed", "risk": "loss allowed"}
    by_count = [{point.dim: point for point in _curve(group, count).points} for count in counts]
    lines = tuple(
        (f"{p.dim:g}", spread(100 * p.y, 100 * p.sd), *(spread(by[p.dim].x, by[p.dim].x_sd) for by in by_count))
        for p in _curve(group, _LAST).points
    )
    title = f"{group.name} on {group.place}: {first.strategy}, {first.head} heads"
    return Table((limits.get(first.strategy, "stop"), "accuracy, %", *counts), lines, title)


def _counts(group: Group[CascadeCurve]) -> list[str]:
    # A tied head reuses its partial sums, so the last dim used is all that it computes.
    return [_LAST] if group.first.head == "tied" else [_LAST, _ALL]


def _alone(groups: Sequence[Group[CascadeCurve]]) -> list[Drawn]:
    # Strategies share their single dims: one grey line per model.
    by_model: dict[str, Drawn] = {}
    for group in groups:
        mean, deviation = over_seeds(group.results, lambda one: one.single)
        marks = tuple(map(Point, group.first.dims, mean.tolist(), deviation.tolist()))
        label = f"{group.name}, each dim alone"
        one = Curve(group.place, label, "single dim", marks, len(group.results), group.spread)
        by_model.setdefault(group.name, (one, Look(light("s8"), "s", (1.5, 1.5), 1.3), label))
    return list(by_model.values())


def _claim(groups: Sequence[Group[CascadeCurve]]) -> str:
    if (best := cheapest(groups)) is None:
        top = max(_curve(groups[0], _LAST).points, key=lambda point: point.y)
        lost = points(groups[0].first.single[-1] - top.y)
        return f"No cascade comes within {points(LOSS)} of the full dim: the best loses {lost} at {dims(top.x)} dims"
    group, point, full = best
    where = f" on {group.place}" if len({group.place for group in groups}) > 1 else ""
    paid = _curve(group, _ALL).at(point.dim) if _ALL in _counts(group) else None
    computed = f" ({dims(paid.x)} computed in total)" if paid else ""   # separate heads compute every dim on the way
    return (
        f"A cascade of {group.name} stops at {dims(point.x)} of {dims(group.first.dims[-1])} dims on average{computed}"
        f"{where} and reaches {percent(point.y)}; the full dim reaches {percent(full)}"
    )
