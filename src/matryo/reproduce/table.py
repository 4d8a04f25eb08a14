"""A table of the paper as data: its numbers, and its claims as comparisons that can be tested on other numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from matryo.arrays import Array

Label = int | str
"""The label of a row: a dim, or text."""
HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not testable here"


@dataclass(frozen=True, eq=False)
class Cell:
    """A number of a table: one value per seed, and where they are known the outcomes of each query."""

    values: tuple[float, ...]
    samples: tuple[Array, ...] = ()
    """Per seed [queries]; their mean is the value."""

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return fmean(self.values)

    @property
    def sd(self) -> float | None:
        """The standard deviation over the seeds; None with one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    def ahead_of(self, other: Cell) -> tuple[float, float | None]:
        """Return the difference of the means and its standard error; None where nothing tells it.

        With several seeds, the error is that over the seeds. With one, it is that of the differences of the queries,
        to which a bootstrap of the queries converges.
        """
        difference = self.mean - other.mean
        if len(self.values) == len(other.values) > 1:
            each = [one - two for one, two in zip(self.values, other.values, strict=True)]
            return difference, stdev(each) / math.sqrt(len(each))
        if len(self.values) > 1 and len(other.values) > 1:
            variances = (stdev(one.values) ** 2 / len(one.values) for one in (self, other))
            return difference, math.sqrt(sum(variances))
        if self.samples and other.samples and self.samples[0].shape == other.samples[0].shape:
            by_query = np.asarray(self.samples[0], np.float64) - other.samples[0]
            return difference, 100 * float(by_query.std(ddof=1)) / math.sqrt(len(by_query))
        return difference, None


Cells = dict[str, dict[Label, Cell]]
"""The cells of a table: column, then row."""


@dataclass(frozen=True)
class Comparison:
    """One difference that a claim is about."""

    at: str
    difference: float
    error: float | None
    margin: float
    """How far it is from what the claim needs, its error considered."""
    supported: bool

    def __str__(self) -> str:
        spread = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{self.difference:+.2f}{spread} at {self.at}".replace("-", "−", 1 if self.difference < 0 else 0)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, as a comparison of two columns at every row, or at some."""

    text: str
    a: str
    b: str | tuple[str, ...] = ""
    """The other columns, of which the best counts; nothing is the number 0. A name that ends in "*" means every column
    that starts so."""
    by: float = 0.0
    """How many points ``a`` must be ahead; below 0, how many it may be behind."""
    rows: tuple[float, float] = (0.0, 1.0)
    """The dims concerned, as shares of the full dim. The smallest dim is among them if the first is 0."""
    only: tuple[Label, ...] = ()
    """The rows concerned, where they are not dims."""
    some: bool = False
    """Whether one row is enough ("up to")."""
    strict: bool = False
    """Whether the difference must exceed ``by`` by its standard error; else it must not fall short by more."""

    def comparisons(self, cells: Cells) -> list[Comparison]:
        """Return the differences on these numbers."""
        return [
            self._compared(f"{row}{end and ', ' + end}", cells[a][row], other)
            for a, others, end in self._columns(cells)
            for row in self._rows(list(cells[a]))
            if (other := _best(cells, a, others, row)) is not None
        ]

    def verdict(self, found: list[Comparison]) -> str:
        """Return whether the comparisons support the claim."""
        if not found:
            return UNTESTED
        supported = [one.supported for one in found]
        return HOLDS if (any if self.some else all)(supported) else FAILS

    def shown(self, found: list[Comparison]) -> str:
        """Return the comparison that decides, and how many there are."""
        if not found:
            return "–"
        decides = (max if self.some else min)(found, key=lambda one: one.margin)
        return str(decides) + (f" ({'best' if self.some else 'least'} of {len(found)})" if len(found) > 1 else "")

    def _compared(self, at: str, cell: Cell, other: Cell) -> Comparison:
        difference, error = cell.ahead_of(other)
        slack = (error or 0.0) * (-1 if self.strict else 1)
        rounding = 1e-9   # 0.3 − 0.2 is not 0.1
        ahead = difference + slack - self.by
        supported = ahead > rounding if self.strict else ahead >= -rounding
        return Comparison(at, difference, error, ahead, supported)

    def _columns(self, cells: Cells) -> Iterator[tuple[str, tuple[str, ...], str]]:
        others = (self.b,) if isinstance(self.b, str) else self.b
        if not self.a.endswith("*"):
            if self.a in cells:
                yield self.a, others, ""
            return
        start = self.a[:-1]
        for name in cells:
            if name.startswith(start):
                end = name.removeprefix(start)
                yield name, tuple(other[:-1] + end if other.endswith("*") else other for other in others), end

    def _rows(self, rows: list[Label]) -> list[Label]:
        if self.only:
            return [row for row in rows if row in self.only]
        dims = sorted(row for row in rows if isinstance(row, int))
        if len(dims) < len(rows):
            return rows
        low, high = self.rows
        return [dim for place, dim in enumerate(dims)
                if low <= dim / dims[-1] <= high or (place == 0 and low == 0.0)]  # fmt: skip


def _best(cells: Cells, a: str, others: tuple[str, ...], row: Label) -> Cell | None:
    if others == ("",):
        return Cell((0.0,) * len(cells[a][row].values))
    there = [cells[other][row] for other in others if row in cells.get(other, {})]
    return max(there, key=lambda cell: cell.mean, default=None)


@dataclass(frozen=True, eq=False)
class Table:
    """A table of the paper, with the figures drawn from it."""

    name: str
    """As `matryo reproduce` calls it."""
    label: str
    """In the paper's source."""
    title: str
    rows: str
    """The kind of its rows."""
    metric: str
    """The kind of its numbers."""
    paper: Mapping[str, Mapping[Label, float]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    figures: tuple[str, ...] = ()
    """The labels of the figures that show the same numbers."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why it cannot be measured, by scale ("small", "paper")."""
    note: Mapping[str, str] = field(default_factory=dict)
    """The stand-in for the paper's data, by scale."""
    digits: int = 1
    drawn: tuple[str, ...] = ()
    """The columns of its figure; empty: no figure."""

    derive: Callable[[Cells], None] = field(default=lambda _: None)
    """Adds the columns that claims compare and that follow from the others, to the paper's cells and to ours."""

    def with_derived(self, cells: Cells) -> Cells:
        """Return ``cells`` with the columns that follow from them."""
        cells = {column: dict(by) for column, by in cells.items()}
        self.derive(cells)
        return cells

    @cached_property
    def paper_cells(self) -> Cells:
        """The paper's numbers as cells."""
        cells = {column: {row: Cell((value,)) for row, value in by.items()} for column, by in self.paper.items()}
        return self.with_derived(cells)


def grid(text: str) -> dict[str, dict[Label, float]]:
    """Return the columns of numbers in ``text``: a header, then rows, all separated by "|"; "–" is no number.

    >>> grid("FF | MRL\\n8 | 65.3 | 66.6\\n16 | 72.8 | –")
    {'FF': {8: 65.3, 16: 72.8}, 'MRL': {8: 66.6}}
    """
    header, *lines = (line for line in text.strip().splitlines() if line.strip())
    names = [name.strip() for name in header.split("|")]
    columns: dict[str, dict[Label, float]] = {name: {} for name in names}
    for line in lines:
        label, *values = (part.strip() for part in line.split("|"))
        for name, value in zip(names, values, strict=True):
            if value != "–":
                columns[name][_label(label)] = float(value)
    return columns


def _label(text: str) -> Label:
    return int(text) if text.isdecimal() else text
