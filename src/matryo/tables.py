"""The text-table renderer: columns under the names of models, as aligned text, Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Block", "Column", "Metric", "as_markdown", "as_text", "number", "percent", "render"]


def percent(value: float | None) -> str:
    """Return a fraction in percent, or a dash for None.

    >>> percent(0.5), percent(None)
    ('50.0', '–')
    """
    return "–" if value is None else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    """Return three significant digits, or a dash for None.

    >>> number(0.12345), number(2623.8), number(None)
    ('0.123', '2624', '–')
    """
    return "–" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


@dataclass(frozen=True)
class Metric:
    """One metric of one result: a value per row of the table."""

    title: str
    values: Mapping[Any, float | None]
    """By the label of the row, which for most tables is the dim."""
    text: Callable[[float | None], str] = percent
    """How a value is written."""


@dataclass(frozen=True)
class Block:
    """The metrics of one result; blocks with the same dataset, split and description stand side by side."""

    model: str
    where: str
    """The dataset and split."""
    about: str
    """A description of the measurement, for the heading ("1,379 graded pairs")."""
    metrics: Sequence[Metric]
    shown: Sequence[str] = ()
    """Titles of the metrics shown by default; empty means all."""
    rows: str = "dim"
    """The title of the first column, which labels the rows."""
    name: str = ""
    """Distinguishes the blocks of one result, such as the direction of a search."""
    starred: frozenset[Any] = frozenset()
    """Rows that get a star where every block has them starred, with ``note`` below the table."""
    note: str = ""

    @property
    def labels(self) -> dict[Any, None]:
        """The rows that have a value in some metric, in order."""
        return dict.fromkeys(label for metric in self.metrics for label in metric.values)


@dataclass(frozen=True)
class Column:
    """One column of text; columns of one model stand under its name."""

    model: str
    title: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        """The length of the longest cell, or of the title."""
        return max(map(len, (self.title, *self.cells)))


def render(blocks: Sequence[Block], *, show: Sequence[str] | None = None, style: str = "text", width: int = 100) -> str:
    """Return ``blocks`` as tables, one per group of blocks that can be compared.

    ``show`` selects metrics by title; an empty one shows all. Blocks without any of these keep their default. Text
    wider than ``width`` continues below. ``style`` is "text", "markdown" or "html".
    """
    if not blocks:
        raise InputError("there must be a result to show", got=0, cure="evaluate something first")
    titles = dict.fromkeys(title for block in blocks for title in (*(m.title for m in block.metrics), *block.shown))
    if strange := [title for title in show or () if title not in titles]:
        raise InputError("show must name metrics", got=strange, cure=f"choose from {', '.join(titles)}")
    groups: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.where, block.about, block.rows, block.name), []).append(block)
    return "\n\n".join(_table(group, show, style, width) for group in groups.values())


def _table(group: Sequence[Block], show: Sequence[str] | None, style: str, width: int) -> str:
    first = group[0]
    labels = dict.fromkeys(label for block in group for label in block.labels)
    rows = sorted(labels) if first.rows == "dim" else list(labels)
    texts = _texts(group, show)
    columns = [
        Column(model, title, tuple(cells.get(row, "–") for row in rows))
        for model, by_title in texts.items()
        for title, cells in by_title.items()
        if {*cells.values()} != {"–"}   # a model without a head has no such column
    ]
    starred = {row for row in rows if all(row in block.starred for block in group if row in block.labels)}
    named, star = len(texts) > 1, r"\*" if style == "markdown" else "*"
    blank = " " if starred and style == "text" else ""   # keeps the numbers aligned
    stub = Column("", f"{first.rows}{blank}", tuple(f"{row}{star if row in starred else blank}" for row in rows))
    where = ", ".join(filter(None, ("" if named else first.model, first.where)))
    heading, note = ": ".join(filter(None, (where, first.about))), f"{star} {first.note}" if starred else ""
    if style == "html":
        return _as_html(heading, stub, columns, note, named=named)
    if style == "markdown":
        return "\n\n".join(filter(None, (f"**{heading}**", as_markdown(stub, columns, named=named), note)))
    return "\n".join(filter(None, (heading, as_text(stub, columns, width, named=named), note)))


def _texts(group: Sequence[Block], show: Sequence[str] | None) -> dict[str, dict[str, dict[Any, str]]]:
    """Return {model: {title: {row: cell}}}.

    Blocks of one model with different rows share its columns, such as fixed models of one dim each. Further blocks
    with the same rows, such as other seeds, get columns of their own.
    """
    texts: dict[str, dict[str, dict[Any, str]]] = {}
    rows: dict[str, set[Any]] = {}
    for block in group:
        metrics = {metric.title: metric for metric in block.metrics}
        default = () if show is not None and not show else block.shown
        titles = [title for title in show or () if title in metrics] or default or metrics
        name, turn = block.model, 1
        while rows.get(name, set()) & block.labels.keys():
            turn += 1
            name = f"{block.model} ({turn})"
        rows.setdefault(name, set()).update(block.labels)
        for metric in (metrics[title] for title in titles if title in metrics):
            cells = {row: metric.text(value) for row, value in metric.values.items()}
            texts.setdefault(name, {}).setdefault(metric.title, {}).update(cells)
    return texts


def as_text(first: Column, columns: list[Column], width: int, *, named: bool) -> str:
    """Return ``first`` with as many ``columns`` as fit in ``width`` beside it, then again with the next ones below.

    >>> print(as_text(Column("", "dim", ("8", "16")), [Column("a", "1-NN", ("5", "7"))], 80, named=False))
    dim 1-NN
      8    5
     16    7
    """
    parts = _parts(columns, width - first.width)
    return "\n\n".join("\n".join(_lines([first, *part], named=named)) for part in parts)


def as_markdown(first: Column, columns: list[Column], *, named: bool) -> str:
    """Return a Markdown table; with ``named``, titles begin with the model."""
    heads, *lines = _rows(first, columns, named)
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---:"] * len(heads), *lines))


def _as_html(heading: str, first: Column, columns: list[Column], note: str, *, named: bool) -> str:
    body = ""
    for number, line in enumerate(_rows(first, columns, named)):
        tag = "td" if number else "th"
        body += f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in line)}</tr>"
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><caption>{escape(heading)}</caption>{body}</table>{below}"


def _rows(first: Column, columns: list[Column], named: bool) -> list[tuple[str, ...]]:
    """Return the titles and then the cells of each line; with ``named``, titles begin with the model."""
    heads = (first.title, *(f"{c.model} {c.title}" if named else c.title for c in columns))
    return [heads, *zip(first.cells, *(column.cells for column in columns), strict=True)]


def _parts(columns: list[Column], width: int) -> Iterator[list[Column]]:
    # Models stay whole while they fit; a model that is too wide alone is divided between its columns.
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
