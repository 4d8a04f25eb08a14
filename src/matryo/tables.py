"""Columns of text under the names of models: aligned for a terminal, or as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Column", "as_markdown", "as_text", "percent"]


@dataclass(frozen=True)
class Column:
    """One column of text; columns of one model stand under its name."""

    model: str
    title: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        """How many signs the widest of it has."""
        return max(map(len, (self.title, *self.cells)))


def percent(value: float | None) -> str:
    """A fraction in percent, or a dash.

    >>> percent(0.5), percent(None)
    ('50.0', '–')
    """
    return "–" if value is None else f"{100 * value:.1f}"


def as_text(first: Column, columns: list[Column], width: int, *, named: bool) -> str:
    """``first`` with as many ``columns`` as fit beside it, then again with the next ones below.

    >>> print(as_text(Column("", "dim", ("8", "16")), [Column("a", "1-NN", ("5", "7"))], 80, named=False))
    dim 1-NN
      8    5
     16    7
    """
    parts = _parts(columns, width - first.width)
    return "\n\n".join("\n".join(_lines([first, *part], named=named)) for part in parts)


def as_markdown(first: Column, columns: list[Column], *, named: bool) -> str:
    """The same as a table for a page."""
    heads = [first.title, *(f"{c.model} {c.title}" if named else c.title for c in columns)]
    lines = [heads, ["---:"] * len(heads)]
    lines += [list(cells) for cells in zip(first.cells, *(column.cells for column in columns), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _parts(columns: list[Column], width: int) -> Iterator[list[Column]]:
    # Models stay whole while they fit; one that is too wide alone is cut between its columns.
    part: list[Column] = []
    for _, group in groupby(columns, key=lambda column: column.model):
        whole = list(group)
        for piece in [whole] if _span(whole) <= width else [[column] for column in whole]:
            if part and _span(part) + _span(piece) > width:
                yield part
                part = []
            part = part + piece
    yield part


def _span(columns: list[Column]) -> int:
    models = groupby(columns, key=lambda column: column.model)
    return sum(max(sum(c.width + 1 for c in group), len(name) + 2) for name, group in models)


def _lines(columns: list[Column], *, named: bool) -> Iterator[str]:
    widths = [column.width for column in columns]
    heads = []
    for model, places in groupby(range(len(columns)), key=lambda place: columns[place].model):
        group = list(places)
        room = sum(widths[place] + 1 for place in group) - 1
        if named and len(model) >= room:
            widths[group[0]] += len(model) + 1 - room   # a long name widens its first column
            room = len(model) + 1
        heads.append(model.rjust(room))
    if named:
        yield " ".join(heads).rstrip()
    for cells in zip(*((column.title, *column.cells) for column in columns), strict=True):
        yield " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
