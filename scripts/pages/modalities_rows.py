"""Rows of trainings over several seeds: which of them count, how they compare, and how they are spelt on a page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev, variance

from matryo.results import Row
from pages.markdown import grid

__all__ = ["ByDim", "behind", "by_dim", "columns_table", "counted", "points", "spread", "verdicts"]

ByDim = dict[int, list[float]]
"""A figure by dim, with one value per seed."""


def counted(
    rows: Iterable[Row],
    name: Callable[[Row], object],
    settings: Sequence[str] = (),
    series: Callable[[Row], object] = lambda row: row.subject,
) -> list[Row]:
    """Of each name and seed the last row, among those with the machine and the settings of the newest of its series.

    Rows of a quick trial are excluded.
    """
    kept = [row for row in rows if not row.figures.get("quick")]

    def about(row: Row) -> str:
        return json.dumps([row.hardware, *(row.figures.get(key) for key in settings)], sort_keys=True)

    newest = {series(row): about(row) for row in kept}
    return list({(name(row), row.seed): row for row in kept if about(row) == newest[series(row)]}.values())


def by_dim(rows: Iterable[Row], figures: Callable[[Row], Iterable[tuple[int, float]]]) -> ByDim:
    """A figure of several seeds."""
    found: ByDim = {}
    for row in rows:
        for dim, value in figures(row):
            found.setdefault(int(dim), []).append(value)
    return found


def spread(values: Sequence[float] | None, scale: float = 100, digits: int = 1) -> str:
    """Mean ± standard deviation (count); a single value has no deviation.

    >>> spread([0.5, 0.52]), spread([0.5]), spread(None)
    ('51.0 ± 1.4 (2)', '50.0 (1)', '–')
    """
    if not values:
        return "–"
    mean = f"{scale * fmean(values):.{digits}f}"
    return f"{mean} ± {scale * stdev(values):.{digits}f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"


def columns_table(columns: dict[str, ByDim], trained: Iterable[int] | None = None, digits: int = 1) -> str:
    """Dims down, columns across; the best of a dim is bold, among columns whose titles begin alike up to a colon."""
    own = None if trained is None else {*trained}
    lines = []
    for dim in sorted({dim for values in columns.values() for dim in values}):
        means = {name: fmean(values[dim]) for name, values in columns.items() if values.get(dim)}
        cells = []
        for name, values in columns.items():
            rivals = [mean for other, mean in means.items() if _group(other) == _group(name)]
            text, best = spread(values.get(dim), digits=digits), len(rivals) > 1 and means.get(name) == max(rivals)
            cells.append(f"**{text}**" if best else text)
        lines.append([f"{dim}" if own is None or dim in own else f"{dim}\\*", *cells])
    return grid(["dim", *columns], lines, left=0)


def _group(title: str) -> str:
    return title.rpartition(":")[0]


def behind(mine: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """By how much the mean of ``mine`` is behind, and two standard errors of that difference (0 with one seed each).

    >>> behind([0.5, 0.5], [0.6, 0.6])
    (0.1, 0.0)
    """
    error = sum(variance(values) / len(values) for values in (mine, others) if len(values) > 1)
    return round(fmean(others) - fmean(mine), 12), 2 * math.sqrt(error)


def points(difference: float, digits: int = 2) -> str:
    """A difference of two fractions, with its sign.

    >>> points(-0.0), points(0.0123), points(-0.005, 1)
    ('+0.00', '+1.23', '-0.5')
    """
    return f"{100 * difference + 0.0:+.{digits}f}"


def verdicts(lines: Iterable[tuple[str, str, str, bool]]) -> list[str]:
    """A table of targets, measured values, and whether they are reached."""
    shown = [[what, asked, got, "yes" if met else "**no**"] for what, asked, got, met in lines]
    return ["Targets:", grid(["", "target", "measured", "reached"], shown)] if shown else []
