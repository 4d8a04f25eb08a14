"""Results with a figure or two a dim as tables, one for each split: aligned text for a terminal, or Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.evaluation.protocols.sts import Sts
from matryo.evaluation.protocols.zero_shot import ZeroShot
from matryo.tables import Column, as_markdown, as_text, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["sts_table", "zero_shot_table"]


def zero_shot_table(results: ZeroShot | Iterable[ZeroShot], *, markdown: bool = False, width: int = 100) -> str:
    """One result, or several side by side: a part for each split, a line a dim, in percent.

    Text wider than ``width`` goes on below.

    >>> print(zero_shot_table(ZeroShot("mine", "emoji", "test", 20, (8, 16), (0.5, 0.75), (0.875, 1.0))))
    mine, emoji / test: zero-shot by 20 texts
    dim top-1 top-5
      8  50.0  87.5
     16  75.0 100.0
    """
    found = [results] if isinstance(results, ZeroShot) else list(results)
    metrics = {"top-1": "top1", "top-5": "top5"}
    return _tables(found, lambda one: f"zero-shot by {one.prompts:,} texts", metrics, markdown, width)


def sts_table(results: Sts | Iterable[Sts], *, markdown: bool = False, width: int = 100) -> str:
    """The same of correlations, times 100.

    >>> print(sts_table(Sts("mine", "stsb", "test", 1379, (8, 16), (0.625, 0.72), (0.6, 0.7))))
    mine, stsb / test: 1,379 graded pairs
    dim Spearman Pearson
      8     62.5    60.0
     16     72.0    70.0
    """
    found = [results] if isinstance(results, Sts) else list(results)
    metrics = {"Spearman": "spearman", "Pearson": "pearson"}
    return _tables(found, lambda one: f"{one.pairs:,} graded pairs", metrics, markdown, width)


def _tables(
    found: list[Any], what: Callable[[Any], str], metrics: Mapping[str, str], markdown: bool, width: int
) -> str:
    """``what`` a result is, in words, tells apart those that cannot stand side by side; ``metrics``: title, field."""
    if not found:
        raise InputError("there must be a result to show", got=0, cure="evaluate something first")
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for one in found:
        groups.setdefault((one.dataset, one.split, what(one)), []).append(one)
    parts = []
    for (dataset, split, words), group in groups.items():
        several = len(group) > 1
        where = ", ".join(filter(None, ("" if several else group[0].model, " / ".join(filter(None, (dataset, split))))))
        title = ": ".join(filter(None, (where, words)))
        dims = sorted({dim for one in group for dim in one.dims})
        first = Column("", "dim", tuple(map(str, dims)))
        columns = [column for one in group for column in _of(one, metrics, dims)]
        if markdown:
            parts += [f"**{title}**", as_markdown(first, columns, named=several)]
        else:
            parts += [f"{title}\n{as_text(first, columns, width, named=several)}"]
    return "\n\n".join(parts)


def _of(one: Any, metrics: Mapping[str, str], dims: list[int]) -> list[Column]:
    columns = []
    for title, field in metrics.items():
        by_dim = dict(zip(one.dims, getattr(one, field), strict=True))
        columns.append(Column(one.model, title, tuple(percent(by_dim.get(dim)) for dim in dims)))
    return columns
