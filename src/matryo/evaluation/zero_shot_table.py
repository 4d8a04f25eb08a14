"""Zero-shot accuracy as a table: aligned text for a terminal, or Markdown for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.evaluation.columns import Column, as_markdown, as_text, percent
from matryo.evaluation.zero_shot import ZeroShot

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["zero_shot_table"]


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
    if not found:
        raise InputError("there must be a result to show", got=0, cure="evaluate something first")
    groups: dict[tuple[str, str, int], list[ZeroShot]] = {}
    for one in found:
        groups.setdefault((one.dataset, one.split, one.prompts), []).append(one)
    parts = []
    for (dataset, split, prompts), group in groups.items():
        several = len(group) > 1
        where = ", ".join(filter(None, ("" if several else group[0].model, " / ".join(filter(None, (dataset, split))))))
        title = ": ".join(filter(None, (where, f"zero-shot by {prompts:,} texts")))
        dims = sorted({dim for one in group for dim in one.dims})
        first = Column("", "dim", tuple(map(str, dims)))
        columns = [column for one in group for column in _of(one, dims)]
        if markdown:
            parts += [f"**{title}**", as_markdown(first, columns, named=several)]
        else:
            parts += [f"{title}\n{as_text(first, columns, width, named=several)}"]
    return "\n\n".join(parts)


def _of(one: ZeroShot, dims: list[int]) -> list[Column]:
    columns = []
    for title, values in (("top-1", one.top1), ("top-5", one.top5)):
        by_dim = dict(zip(one.dims, values, strict=True))
        columns.append(Column(one.model, title, tuple(percent(by_dim.get(dim)) for dim in dims)))
    return columns
