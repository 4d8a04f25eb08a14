"""Evaluations as a table: aligned text for a terminal, or Markdown for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.evaluation.result import Comparison, DimRow, Evaluation, beside
from matryo.tables import Column, as_markdown, as_text, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["table"]

_SHOWN_BESIDE = ("head", "1-NN", "mAP@10")


@dataclass(frozen=True)
class _Metric:
    title: str
    text: Callable[[DimRow], str]


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
        heading, note, several = _heading(compared), _note(compared), len(compared.names) > 1
        if markdown:
            drawn = as_markdown(_dims(compared, "", "\\*"), columns, named=several)
            parts += [f"**{heading}**", drawn, note.replace("*", "\\*")]
        else:
            drawn = as_text(_dims(compared, " ", "*"), columns, width, named=several)
            parts += ["\n".join(filter(None, [heading, drawn, note]))]
    return "\n\n".join(filter(None, parts))


def _metrics(compared: Comparison) -> list[_Metric]:
    entries = [entry for row in compared.rows for entry in row if entry]
    ks = sorted({k for entry in entries for k in (*entry.map_at, *entry.recall_at)})
    voters = sorted({k for entry in entries for k in entry.knn})
    return [
        _Metric("MFLOPs", lambda row: f"{row.mflops:.3g}" if row.mflops < 100 else f"{row.mflops:.0f}"),
        _Metric("head", lambda row: percent(row.head_top1)),
        _Metric("head-5", lambda row: percent(row.head_top5)),
        _Metric("1-NN", lambda row: percent(row.top1)),
        *(_Metric(f"{k}-NN", lambda row, k=k: percent(row.knn.get(k))) for k in voters),   # type: ignore[misc]
        _Metric("top-5", lambda row: percent(row.top5)),
        _Metric("top-10", lambda row: percent(row.top10)),
        *(_Metric(f"mAP@{k}", lambda row, k=k: percent(row.map_at.get(k))) for k in ks),   # type: ignore[misc]
        *(_Metric(f"P@{k}", lambda row, k=k: percent(row.precision_at.get(k))) for k in ks),  # type: ignore[misc]
        *(_Metric(f"recall@{k}", lambda row, k=k: percent(row.recall_at.get(k))) for k in ks),  # type: ignore[misc]
    ]


def _columns(compared: Comparison, wanted: Sequence[str] | None) -> list[Column]:
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
                columns.append(Column(name, metric.title, cells))
    return columns


def _dims(compared: Comparison, plain: str, star: str) -> Column:
    """The column of dims, marked where no model was trained."""
    marks = [plain if _trained(row) else star for row in compared.rows]
    return Column("", f"dim{plain}", tuple(f"{dim}{mark}" for dim, mark in zip(compared.dims, marks, strict=True)))


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
