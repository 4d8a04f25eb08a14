"""Columns that follow from others, computed alike for the paper's numbers and for ours.

Tables do not show a column whose name starts with "_".
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from matryo.reproduce.table import Cell

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.reproduce.table import Cells, Label

ALONE = "_alone "
"""The start of columns with the quality of each dim alone, beside tables whose rows are not dims."""


def dims_between(trained: str, column: str) -> Callable[[Cells], None]:
    """Split a column into its trained dims and those between, each beside the trained dim below it."""

    def derive(cells: Cells) -> None:
        known, every = sorted(_dims(cells.get(trained, {}))), cells.get(column, {})
        between = {dim: cell for dim, cell in every.items() if dim not in known and known and _int(dim) > known[0]}
        cells[f"_{column} between"] = between
        cells[f"_{column} below"] = {dim: every[max(one for one in known if one < _int(dim))] for dim in between}

    return derive


def unseen(cells: Cells) -> None:
    """The dim before each, and the share of the quality of the full dim that is lost."""
    column = cells.get("MRL mAP@10", {})
    dims = sorted(_dims(column))
    cells["_below"] = {high: column[low] for low, high in pairwise(dims)}
    full = column[dims[-1]].mean if dims else 1.0
    cells["_lost share"] = {dim: Cell((100 * (1 - column[dim].mean / full),)) for dim in dims}


def stages(cells: Cells) -> None:
    """For each plan: a search at its first dim alone, and one at the full dim."""
    for metric in ("Top-1", "mAP@10"):
        alone = cells.get(ALONE + metric, {})
        if not alone:
            continue
        full = max(_dims(alone))
        cells[f"_first dim {metric}"] = {label: alone[_first(label)] for label in cells[metric]}
        cells[f"_full dim {metric}"] = dict.fromkeys(cells[metric], alone[full])
        for dim in _dims(alone):   # re-ranked at the full dim
            ends = f"{dim} → {full}"
            cells[f"_from {dim} {metric}"] = {row: cell for row, cell in cells[metric].items() if row == ends}


def shortlists(cells: Cells) -> None:
    """The quality with a shortlist of 200, beside every other length."""
    column = cells.get("mAP@10", {})
    cells["_at 200"] = dict.fromkeys(column, column[200]) if 200 in column else {}


def saving(cells: Cells) -> None:
    """The dims that a cascade saves, at the accuracy of the fixed model of a quarter of the full dim."""
    expected, accuracy, alone = (cells.get(name, {}) for name in ("Expected dims", "Accuracy", "_FF"))
    dims = sorted(_dims(alone))
    if not (expected and dims):
        return
    cells["_FF of that size"] = {row: _at_size(alone, dims, cell.mean) for row, cell in expected.items()}
    cells["_FF of full dim"] = dict.fromkeys(accuracy, alone[dims[-1]])
    quarter = max((dim for dim in dims if 4 * dim <= dims[-1]), default=dims[0])
    enough = [expected[row].mean for row, cell in accuracy.items() if cell.mean >= alone[quarter].mean]
    # The ratio is 0 where no stop is as accurate.
    cells["_saving"] = {"times fewer dims": Cell((quarter / min(enough, default=math.inf),))}


def lowest_trained(cells: Cells) -> None:
    """For dims between: the accuracy of the trained dim below."""
    trained, between = cells.get("_trained", {}), cells.get("ALIGN-MRL", {})
    known = sorted(_dims(trained))
    cells["_of the dim below"] = {
        dim: trained[max(one for one in known if one < _int(dim))] for dim in between if known and _int(dim) > known[0]
    }


def span(cells: Cells) -> None:
    """The cosine of positive pairs less that of random ones."""
    for column in [*cells]:
        by = cells[column]
        if {"positive text to image", "random text to image"} <= {*by}:
            by["span"] = Cell((by["positive text to image"].mean - by["random text to image"].mean,))


def superclass_loss(cells: Cells) -> None:
    """How much accuracy the smallest dim keeps of the full one's, for superclasses and for classes."""
    for source, name in (("MRL", "_kept of superclasses"), ("_MRL classes", "_kept of classes")):
        by = cells.get(source, {})
        if dims := sorted(_dims(by)):
            cells[name] = {dims[0]: Cell((100 * by[dims[0]].mean / by[dims[-1]].mean,))}


def oracle(cells: Cells) -> None:
    """The accuracy of the full dim alone, beside that of perfect routing."""
    by = cells.get("_MRL alone", {})
    if by and "oracle" in cells.get("MRL", {}):
        cells["_best dim"] = {"oracle": max(by.values(), key=lambda cell: cell.mean)}


def full_dim(column: str) -> Callable[[Cells], None]:
    """The full dim of a column, beside each of its dims."""

    def derive(cells: Cells) -> None:
        by = cells.get(column, {})
        cells[f"_{column} full"] = dict.fromkeys(by, by[max(_dims(by))]) if _dims(by) else {}

    return derive


def smallest_dims(cells: Cells) -> None:
    """Dim 8 of the usual model beside dim 4 of the one that has it."""
    usual, smaller = cells.get("MRL-8", {}), cells.get("MRL-4", {})
    if 8 in usual and 4 in smaller:
        cells["_8 of MRL-8"], cells["_4 of MRL-4"] = {"8 instead of 4": usual[8]}, {"8 instead of 4": smaller[4]}


def _at_size(alone: dict[Label, Cell], dims: list[int], size: float) -> Cell:
    """The accuracy of fixed models at a size between dims, on a line over the logarithm of the dim."""
    low = max((dim for dim in dims if dim <= size), default=dims[0])
    high = min((dim for dim in dims if dim >= size), default=dims[-1])
    if low == high:
        return alone[low]
    share = (math.log(size) - math.log(low)) / (math.log(high) - math.log(low))
    pairs = zip(alone[low].values, alone[high].values, strict=True)
    return Cell(tuple((1 - share) * one + share * two for one, two in pairs))


def _first(label: Label) -> int:
    return int(str(label).replace(",", " ").split()[0])


def _dims(by: dict[Label, Cell]) -> list[int]:
    return [label for label in by if isinstance(label, int)]


def _int(label: Label) -> int:
    return int(label)
