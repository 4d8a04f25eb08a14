"""The models of a report: nested ones first, then fixed ones, then what is had without training for a dim."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from matryo.evaluation.result import DimRow, Evaluation
from matryo.report.series import Curve, Group, Point, gather, over_seeds
from matryo.report.style import Look, categories

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.results import Row

__all__ = ["METRICS", "Line", "Looks", "evaluated", "main_line", "places"]

METRICS: dict[str, Callable[[DimRow], float | None]] = {
    "head top-1": lambda row: row.head_top1,
    "1-NN": lambda row: row.top1,
    "mAP@10": lambda row: row.map_at.get(10),
}
ROLES = ("nested", "fixed", "post hoc")


@dataclass(frozen=True)
class Line:
    """One model on one split: its evaluations over seeds, and for models of one dim each, those of every dim."""

    place: str
    name: str
    label: str
    role: str
    """One of ROLES: trained for many dims, trained for one, or made from another's vectors."""
    groups: tuple[Group[Evaluation], ...]
    """More than one where every dim has a model of its own."""

    def curve(self, metric: str, *, against_cost: bool = False) -> Curve | None:
        """A metric by dim, or None if no row has it."""
        found: list[Point] = []
        alone = len(self.groups) == 1
        for group in self.groups:
            by_dim: dict[int, list[DimRow]] = {}
            for row in (row for one in group.results for row in one.rows if alone or row.trained):
                if METRICS[metric](row) is not None:
                    by_dim.setdefault(row.dim, []).append(row)
            for dim, rows in by_dim.items():
                mean, deviation = over_seeds(rows, METRICS[metric])
                cost = rows[0].mflops if against_cost else float("nan")
                trained = any(row.trained for row in rows)
                found.append(Point(dim, float(mean), float(deviation), cost, trained=trained))
        if not found:
            return None
        most = max(self.groups, key=lambda group: len(group.results))
        found.sort(key=lambda point: point.dim)
        return Curve(self.place, self.label, metric, tuple(found), len(most.results), most.spread)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows it is drawn from."""
        return tuple(row for group in self.groups for row in group.rows)


def evaluated(rows: Iterable[Row]) -> list[Line]:
    """A line for each evaluated model and split, in the order of ROLES.

    Fixed models of one name, or of names that differ only in the dim at their end ("fixed-8", "fixed-64"), give two:
    the largest one truncated, and each at its own dim.
    """
    together: dict[tuple[str, str], list[Group[Evaluation]]] = {}
    for group in _families(gather(rows, "evaluate", Evaluation, lambda one: one.dims[-1:])):
        together.setdefault((group.place, group.name), []).append(group)
    lines = []
    for (place, name), groups in together.items():
        largest = max(groups, key=lambda group: group.first.dims[-1])
        role = _role(name, largest.first)
        cut = role == "fixed" and len(largest.first.dims) > 1
        lines.append(Line(place, name, f"{name}, truncated" if cut else name, role, (largest,)))
        if role == "fixed" and len(groups) > 1:
            lines.append(Line(place, name, f"{name}, one for each dim", role, tuple(groups)))
    order = list(dict.fromkeys(line.place for line in lines))
    return sorted(lines, key=lambda line: (order.index(line.place), ROLES.index(line.role)))


def places(lines: Sequence[Line]) -> list[str]:
    """The datasets and splits, in order."""
    return list(dict.fromkeys(line.place for line in lines))


def main_line(lines: Sequence[Line], role: str = "nested") -> Line | None:
    """The first line of a role on the first split; for "nested" any other, where there is none."""
    here = [line for line in lines if line.place == lines[0].place]
    found = [line for line in here if line.role == role]
    return found[0] if found else here[0] if here and role == "nested" else None


class Looks:
    """The look of each model, the same in every figure: handed out in the order in which names are first asked for."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._found: dict[str, Look] = {}
        for line in sorted(lines, key=lambda line: ROLES.index(line.role)):
            self.of(line.label, line.role)

    def of(self, name: str, role: str = "fixed") -> Look:
        """The look of a model; a nested one is bold, one made post hoc is dashed."""
        known = self._found.get(name) or self._found.get(f"{name}, truncated")
        if known is None:
            known = categories(len(self._found) + 1)[-1]
            if role == "nested":
                known = replace(known, width=2.4)
            if role == "post hoc":
                known = replace(known, width=1.3, dash=known.dash or (4, 2))
            self._found[name] = known
        return known


def _families(groups: Sequence[Group[Evaluation]]) -> list[Group[Evaluation]]:
    def family(group: Group[Evaluation]) -> str:
        fixed = _role(group.name, group.first) == "fixed"
        return re.sub(rf"[- ]{group.first.dims[-1]}$", "", group.name) if fixed else group.name

    members = Counter((group.place, family(group)) for group in groups)
    return [replace(g, name=family(g)) if members[g.place, family(g)] > 1 else g for g in groups]


def _role(name: str, one: Evaluation) -> str:
    if " + " in name:   # "demo-fixed + PCA"
        return "post hoc"
    return "nested" if sum(row.trained for row in one.rows) > 1 else "fixed"
