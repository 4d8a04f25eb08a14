"""Classification and retrieval by dim: every model and baseline, by head, nearest neighbour and mAP@10."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matryo.report.lines import split_fields
from matryo.report.models import METRICS
from matryo.report.section import Section, rows_of
from matryo.report.series import Z95
from matryo.report.words import dims, listed, plural, reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.report.material import Material
    from matryo.report.models import Line

NEAREST = "1-NN accuracy"


def sections(material: Material) -> Iterator[Section]:
    """A plate per split and metric with a line per model."""
    if not material.lines:
        return
    places = dict.fromkeys(line.place for line in material.lines)
    curves = [
        curve
        for place in places
        for metric in METRICS
        for line in material.lines
        if line.place == place and (curve := line.curve(metric)) and (metric == NEAREST or len(curve.points) > 1)
    ]
    sizes = {line.place: line.groups[0].first for line in reversed(material.lines)}
    about = "; ".join(f"{p}: {sizes[p].queries:,} queries, {sizes[p].database:,} vectors" for p in places)
    yield Section(
        "evaluate", "Accuracy and retrieval by dim", compare(material.lines),
        "Each line is one model truncated to its first dims: the flatter the line, the fewer dims suffice. Hollow "
        f"marks are dims at which the model was not trained. Exact search. {about}.",
        rows=rows_of(material.lines), **split_fields(material, "evaluate", curves),
    )  # fmt: skip


def compare(lines: Sequence[Line]) -> str:
    """Where the first model's 1-NN accuracy differs from the best other model's by more than the 95 % interval.

    It is better at a dim if it is better on every split, and worse if it is worse on any.
    """
    main = lines[0]
    better: dict[float, bool] = {}
    rivals: dict[float, str] = {}
    for line in (line for line in lines if line.label == main.label):
        others = [other for other in lines if other.place == line.place and other is not line]
        curve = line.curve(NEAREST)
        for point in curve.points if curve else ():
            gaps = []
            for other in others:
                against = other.curve(NEAREST)
                if against and (there := against.at(point.dim)):
                    margin = Z95 * math.hypot(line.error(point), other.error(there))
                    gaps.append((point.y - there.y, margin, other.label))
            if not gaps or not (point.trained or main.role != "nested"):
                continue
            better[point.dim] = better.get(point.dim, True) and all(gap > margin for gap, margin, _ in gaps)
            gap, margin, name = min(gaps)
            if -gap > margin:
                rivals.setdefault(point.dim, name)
    if not better:
        return reach([curve for line in lines if (curve := line.curve(NEAREST))])
    ahead, splits = [dim for dim, is_better in better.items() if is_better], len({line.place for line in lines})
    where = f" on each of {splits} splits" if splits > 1 else ""
    parts = [f"is better than every other model at {_span(ahead, [*better])} dims{where}"] if ahead else []
    if rivals:
        names = list(dict.fromkeys(rivals.values()))
        somewhere = " on some split" if splits > 1 else ""
        parts.append(f"is worse than {listed(names)} at {_span([*rivals], [*better])} dims{somewhere}")
    if not parts:
        parts = [f"is neither better nor worse than the best other model at any of {plural(len(better), 'dim')}"]
    return f"By 1-NN accuracy, {main.name} " + " and ".join(parts)


def _span(some: list[float], every: list[float]) -> str:
    """Dims in words: a run of neighbours as its ends.

    >>> _span([8, 16, 32], [8, 16, 32, 64]), _span([8, 32], [8, 16, 32, 64])
    ('8 to 32', '8 and 32')
    """
    some, every = sorted(some), sorted(every)
    start = every.index(some[0])
    if len(some) > 2 and every[start : start + len(some)] == some:
        return f"{dims(some[0])} to {dims(some[-1])}"
    return listed([dims(dim) for dim in some])
