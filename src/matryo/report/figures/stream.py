"""Long-tail stream: accuracy by dim on known and novel, frequent and rare classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation.protocols.stream import Stream
from matryo.report.lines import model_fields
from matryo.report.section import Section
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.words import ends, percent, plural, reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.report.material import Material


def sections(material: Material) -> Iterator[Section]:
    """A plate per model and split with a line per group of classes."""
    if groups := gather(material.rows, Stream, lambda one: (one.dims, one.groups)):
        first = groups[0].first
        yield Section(
            "stream", "Long-tail stream", _claim(_curves(groups[0])),
            f"Each of {first.length:,} examples is classified and then learnt; tail classes have fewer than "
            f"{first.tail_below} examples. Means over {plural(first.draws, 'draw')}.",
            **model_fields(groups, lambda group: {"accuracy over the stream": _curves(group)}, key="stream"),
        )  # fmt: skip


def _curves(group: Group[Stream]) -> list[Curve]:
    spread = f"sd over {plural(group.first.draws, 'draw')}"
    every = [
        curve(
            group, lambda one, index=index: one.accuracy[index], metric=name,   # type: ignore[misc]
            own=lambda one, index=index: one.sd[index], own_spread=spread,   # type: ignore[misc]
        )
        for index, name in enumerate(group.first.groups)
    ]  # fmt: skip
    return [one for one in every if one.points]   # a group of classes may have no examples


def _claim(curves: list[Curve]) -> str:
    overall = next((one for one in curves if one.metric == "overall"), curves[-1])
    tail = next((one for one in curves if one.metric == "novel-tail"), None)
    text = f"Over the stream, {reach([overall])}"
    at = tail.at(ends(overall)[0].dim) if tail else None
    return f"{text}; on rare novel classes {percent(at.y)} and {percent(tail.full.y)}" if tail and at else text
