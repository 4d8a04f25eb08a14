"""Results of pairs as tables, one for each direction: aligned text for a terminal, or Markdown for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.evaluation.protocols.pairs import PAIR_METRICS, Pairs
from matryo.tables import Column, as_markdown, as_text, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["pairs_table"]

_SHOWN = ("nDCG@10", "hit@1", "hit@10")


def pairs_table(
    results: Pairs | Iterable[Pairs], *, show: Sequence[str] | None = None, markdown: bool = False, width: int = 100
) -> str:
    """One result, or several side by side: a part for each split and direction, a line a dim, in percent.

    ``show`` picks metrics by their titles ("nDCG@10", "hit@1", "recall@100", "MRR@10"), an empty one shows all. Text
    wider than ``width`` goes on below.
    """
    found = [results] if isinstance(results, Pairs) else list(results)
    if not found:
        raise InputError("there must be a result to show", got=0, cure="evaluate something first")
    known = {f"{name}@{k}": (name, k) for name in PAIR_METRICS for k in sorted({k for one in found for k in one.ks})}
    wanted = [title for title in _SHOWN if title in known] if show is None else list(show)
    if strange := [title for title in wanted if title not in known]:
        raise InputError("show must name metrics", got=strange, cure=f"choose from {', '.join(known)}")
    chosen = {title: known[title] for title in wanted or known}
    parts = []
    for heading, group in _groups(found).items():
        for direction in (0, 1):
            title = f"{heading}: {group[0].directions[direction]}, {_size(group[0], direction)}"
            first, columns = _columns(group, chosen, direction)
            several = len(group) > 1
            if markdown:
                parts += [f"**{title}**", as_markdown(first, columns, named=several)]
            else:
                parts += [f"{title}\n{as_text(first, columns, width, named=several)}"]
    return "\n\n".join(parts)


def _groups(found: Iterable[Pairs]) -> dict[str, list[Pairs]]:
    """Results on the same pairs, which stand side by side."""
    groups: dict[tuple[object, ...], list[Pairs]] = {}
    for one in found:
        groups.setdefault((one.dataset, one.split, one.sides, one.counts, one.asked, one.related), []).append(one)
    named = {}
    for group in groups.values():
        one = group[0]
        model = one.model if len(group) == 1 else ""
        where = " / ".join(filter(None, (one.dataset, one.split)))
        heading = ", ".join(filter(None, (model, where))) or "pairs"
        named[heading if heading not in named else f"{heading} ({one.related:,} pairs)"] = group
    return named


def _size(one: Pairs, direction: int) -> str:
    asked, searched = one.asked[direction], one.counts[1 - direction]
    return f"{asked:,} ask, {searched:,} are searched"


def _columns(group: list[Pairs], chosen: dict[str, tuple[str, int]], direction: int) -> tuple[Column, list[Column]]:
    dims = sorted({dim for one in group for dim in one.dims})
    columns = []
    for one in group:
        for title, (metric, k) in chosen.items():
            if k in one.ks:
                by_dim = dict(zip(one.dims, one.at(metric, k, direction), strict=True))
                columns.append(Column(one.model, title, tuple(percent(by_dim.get(dim)) for dim in dims)))
    return Column("", "dim", tuple(map(str, dims))), columns
