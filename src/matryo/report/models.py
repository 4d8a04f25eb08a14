"""The models of a report: nested models first, then fixed ones, then baselines made from another model's vectors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from matryo.evaluation import DimRow, Evaluation
from matryo.report.series import Z95, Curve, Group, Point, gather, over_seeds, sampling_variance
from matryo.report.style import Look, categories
from matryo.results import ROLES, infer_role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.results import Row

METRICS: dict[str, Callable[[DimRow], float | None]] = {
    "head top-1": lambda row: row.head_top1,
    "1-NN accuracy": lambda row: row.top1,
    "mAP@10": lambda row: row.map_at.get(10),
}


@dataclass(frozen=True)
class Line:
    """One model on one split: its evaluations over seeds."""

    place: str
    name: str
    label: str
    role: str
    """One of ROLES: trained for many dims, trained for one dim, or made from another model's vectors."""
    groups: tuple[Group[Evaluation], ...]
    """One group, or one per dim where every dim has a model of its own."""

    def curve(self, metric: str) -> Curve | None:
        """A metric by dim, or None if no row has it. With one seed, bars are the 95 % interval over queries."""
        marks: list[Point] = []
        most = max(self.groups, key=lambda group: len(group.results))
        for group in self.groups:
            by_dim: dict[int, list[DimRow]] = {}
            for row in (row for one in group.results for row in one.rows if len(self.groups) == 1 or row.trained):
                if METRICS[metric](row) is not None:
                    by_dim.setdefault(row.dim, []).append(row)
            for dim, rows in by_dim.items():
                mean, deviation = map(float, over_seeds(rows, METRICS[metric]))
                if not most.spread:
                    deviation = Z95 * math.sqrt(sampling_variance(mean, group.first.queries))
                marks.append(Point(dim, mean, deviation, trained=any(row.trained for row in rows)))
        spread = most.spread or "95 % interval from the number of queries"
        marks.sort(key=lambda point: point.dim)
        return Curve(self.place, self.label, metric, tuple(marks), len(most.results), spread) if marks else None

    def error(self, point: Point) -> float:
        """Standard error of a curve's point: over seeds, and over queries."""
        first, seeds = self.groups[0].first, len(self.groups[0].results)
        over = point.sd**2 / seeds if seeds > 1 and not math.isnan(point.sd) else 0.0
        return math.sqrt(over + sampling_variance(point.y, first.queries))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that the line is drawn from."""
        return tuple(row for group in self.groups for row in group.rows)


def evaluated(rows: Iterable[Row]) -> list[Line]:
    """A line per evaluated model and split, in the order of ROLES.

    Fixed models with one name, or with names that differ only in the dim at their end ("fixed-8", "fixed-64"), give
    two lines: the largest model truncated, and each model at its own dim.
    """
    by_model: dict[tuple[str, str], list[Group[Evaluation]]] = {}
    for group in _families(gather(rows, Evaluation, lambda one: one.dims[-1:])):
        by_model.setdefault((group.place, group.name), []).append(group)
    lines = []
    for (place, name), groups in by_model.items():
        largest = max(groups, key=lambda group: group.first.dims[-1])
        role = role_of(largest)
        several = role == "fixed" and len(groups) > 1
        lines.append(Line(place, name, f"{name}, truncated" if several else name, role, (largest,)))
        if several:
            lines.append(Line(place, name, f"{name}, one per dim", role, tuple(groups)))
    order = list(dict.fromkeys(line.place for line in lines))
    return sorted(lines, key=lambda line: (order.index(line.place), ROLES.index(line.role)))


class Looks:
    """The look of each model, the same in every figure."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._looks: dict[str, Look] = {}
        for line in sorted(lines, key=lambda line: ROLES.index(line.role)):
            self.of(line.label, line.role)

    def of(self, name: str, role: str = "fixed") -> Look:
        """The look of a model. Nested models are bold, baselines dashed; a new name gets the next free look."""
        look = self._looks.get(name) or self._looks.get(f"{name}, truncated")
        if look is None:
            look = categories(len(self._looks) + 1)[-1]
            if role == "nested":
                look = replace(look, width=2.4)
            if role == "post hoc":
                look = replace(look, width=1.3, dash=look.dash or (4, 2))
            self._looks[name] = look
        return look


def role_of(group: Group[Any]) -> str:
    """The role of a model in its first row: one of ROLES, or "" if the row does not show it."""
    return group.rows[0].role or infer_role(group.rows[0].figures)


def source_of(name: str) -> str:
    """The model whose vectors a baseline is made from; any other model is its own source.

    >>> source_of("demo-fixed + PCA")
    'demo-fixed'
    """
    return name.partition(" + ")[0]


def _families(groups: Sequence[Group[Evaluation]]) -> list[Group[Evaluation]]:
    def family(group: Group[Evaluation]) -> str:
        fixed = role_of(group) == "fixed"
        return re.sub(rf"[- ]{group.first.dims[-1]}$", "", group.name) if fixed else group.name

    members = Counter((group.place, family(group)) for group in groups)
    return [replace(g, name=family(g)) if members[g.place, family(g)] > 1 else g for g in groups]
