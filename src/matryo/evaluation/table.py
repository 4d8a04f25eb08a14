"""Evaluations as a table: aligned text for a terminal, or Markdown for a page."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.evaluation.result import Comparison, DimRow, Evaluation, beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["table"]

_SHOWN_BESIDE = ("head", "1-NN", "mAP@10")


@dataclass(frozen=True)
class _Metric:
    title: str
    text: Callable[[DimRow], str]


@dataclass(frozen=True)
class _Column:
    """One column of text; columns of one model stand under its name."""

    model: str
    title: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))


def table(
    results: Evaluation | Iterable[tuple[str, Evaluation]],
    *,
    show: Sequence[str] | None = None,
    markdown: bool = False,
    width: int = 100,
) -> str:
    """One evaluation with every metric, or named ones side by side: a part for each split, a column a model.

    ``show`` picks metrics by their titles ("head", "1-NN", "mAP@10", …), an empty one shows all. Text wider than
    ``width`` goes on below. No model in the table was trained at a dim with a star.
    """
    alone = isinstance(results, Evaluation)
    named = [(results.model, results)] if isinstance(results, Evaluation) else list(results)
    if not named:
        raise InputError("there must be an evaluation to show", got=0, cure="evaluate something first")
    wanted = (None if alone else _SHOWN_BESIDE) if show is None else show or None
    splits = dict.fromkeys((one.dataset, one.split) for _, one in named)
    parts = []
    for split in splits:
        compared = beside((name, one) for name, one in named if (one.dataset, one.split) == split)
        columns = _columns(compared, wanted)
        heading, note = _heading(compared), _note(compared)
        if markdown:
            parts += [f"**{heading}**", _markdown(compared, columns), note.replace("*", "\\*")]
        else:
            parts += ["\n".join(filter(None, [heading, "\n\n".join(_text(compared, columns, width)), note]))]
    return "\n\n".join(filter(None, parts))


def _metrics(compared: Comparison) -> list[_Metric]:
    entries = [entry for row in compared.rows for entry in row if entry]
    ks = sorted({k for entry in entries for k in (*entry.map_at, *entry.recall_at)})
    voters = sorted({k for entry in entries for k in entry.knn})
    return [
        _Metric("MFLOPs", lambda row: f"{row.mflops:.3g}" if row.mflops < 100 else f"{row.mflops:.0f}"),
        _Metric("head", lambda row: _percent(row.head_top1)),
        _Metric("head-5", lambda row: _percent(row.head_top5)),
        _Metric("1-NN", lambda row: _percent(row.top1)),
        *(_Metric(f"{k}-NN", lambda row, k=k: _percent(row.knn.get(k))) for k in voters),   # type: ignore[misc]
        _Metric("top-5", lambda row: _percent(row.top5)),
        _Metric("top-10", lambda row: _percent(row.top10)),
        *(_Metric(f"mAP@{k}", lambda row, k=k: _percent(row.map_at.get(k))) for k in ks),   # type: ignore[misc]
        *(_Metric(f"P@{k}", lambda row, k=k: _percent(row.precision_at.get(k))) for k in ks),  # type: ignore[misc]
        *(_Metric(f"recall@{k}", lambda row, k=k: _percent(row.recall_at.get(k))) for k in ks),  # type: ignore[misc]
    ]


def _columns(compared: Comparison, wanted: Sequence[str] | None) -> list[_Column]:
    metrics = _metrics(compared)
    known = {metric.title: metric for metric in metrics}
    if wanted is not None:
        standing = {*known, *_SHOWN_BESIDE}   # a small database has no mAP@10; asking for it is no mistake
        if strange := [title for title in wanted if title not in standing]:
            raise InputError("show must name metrics", got=strange, cure=f"choose from {', '.join(known)}")
        metrics = [known[title] for title in wanted if title in known]
    columns = []
    for place, name in enumerate(compared.names):
        rows = [row[place] for row in compared.rows]
        for metric in metrics:
            cells = tuple("–" if row is None else metric.text(row) for row in rows)
            if set(cells) != {"–"}:   # a model without a head has no such column
                columns.append(_Column(name, metric.title, cells))
    return columns


def _text(compared: Comparison, columns: list[_Column], width: int) -> Iterator[str]:
    marks = [" " if _trained(row) else "*" for row in compared.rows]
    dims = _Column("", "dim ", tuple(f"{dim}{mark}" for dim, mark in zip(compared.dims, marks, strict=True)))
    for part in _parts(columns, width - dims.width):
        yield "\n".join(_lines([dims, *part], named=len(compared.names) > 1))


def _parts(columns: list[_Column], width: int) -> Iterator[list[_Column]]:
    # Models stay whole while they fit; one that is too wide alone is cut between its columns.
    part: list[_Column] = []
    for _, group in groupby(columns, key=lambda column: column.model):
        whole = list(group)
        for piece in [whole] if _span(whole) <= width else [[column] for column in whole]:
            if part and _span(part) + _span(piece) > width:
                yield part
                part = []
            part = part + piece
    yield part


def _span(columns: list[_Column]) -> int:
    models = groupby(columns, key=lambda column: column.model)
    return sum(max(sum(c.width + 1 for c in group), len(name) + 2) for name, group in models)


def _lines(columns: list[_Column], *, named: bool) -> Iterator[str]:
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


def _markdown(compared: Comparison, columns: list[_Column]) -> str:
    several = len(compared.names) > 1
    heads = ["dim", *(f"{c.model} {c.title}" if several else c.title for c in columns)]
    lines = [heads, ["---:"] * len(heads)]
    for place, (dim, row) in enumerate(zip(compared.dims, compared.rows, strict=True)):
        label = f"{dim}" if _trained(row) else f"{dim}\\*"
        lines.append([label, *(column.cells[place] for column in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _heading(compared: Comparison) -> str:
    model = compared.names[0] if len(compared.names) == 1 else ""
    where = " / ".join(filter(None, (compared.dataset, compared.split)))
    left = f" ({compared.left_out:,} left out)" if compared.left_out else ""
    size = f"{compared.queries:,} queries{left} in a database of {compared.database:,}"
    return ": ".join(filter(None, (model, ", ".join(filter(None, (where, size))))))


def _note(compared: Comparison) -> str:
    every = all(_trained(row) for row in compared.rows)
    return "" if every else "* no model here was trained at this dim"


def _trained(row: tuple[DimRow | None, ...]) -> bool:
    return any(entry.trained for entry in row if entry)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
