"""Superclasses: how often the predicted class has the right superclass, and which superclasses need more dims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation.protocols.superclass import Superclasses
from matryo.report.lines import model_fields
from matryo.report.section import Section, curve_table
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.words import dims, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.report.material import Material

_FIELDS = {"class": "fine", "superclass": "accuracy", "no superclass (rejected)": "rejected"}
_NAMED = 2   # superclasses drawn of those that gain most, and of those that gain least


def sections(material: Material) -> Iterator[Section]:
    """Two plates per model and split: classes against superclasses, and single superclasses."""
    groups = gather(material.rows, Superclasses, lambda one: (one.by, one.dims, one.names))
    if not groups:
        return
    fine, coarse = (one.points[0] for one in _whole(groups[0])[:2])
    first = groups[0].first
    every = [one for group in groups for one in (*_whole(group), *_each(group))]
    yield Section(
        "superclass", "Superclasses",
        f"At {dims(fine.dim)} dims, {groups[0].name} predicts the class of {percent(fine.y)} and the superclass of "
        f"{percent(coarse.y)} of the examples",
        f"{len(first.names)} superclasses, {sum(first.counts):,} examples, predicted by {first.by}. Few dims may "
        "confuse a class with a sibling of the same superclass. Single superclasses are those that gain most and least "
        "from more dims; the CSV has all.",
        **model_fields(groups, _panels, key="superclass") | {"table": curve_table(every)},
    )  # fmt: skip


def _whole(group: Group[Superclasses]) -> list[Curve]:
    return [
        curve(group, lambda one, field=field: getattr(one, field), metric=metric)   # type: ignore[misc]
        for metric, field in _FIELDS.items()
    ]


def _each(group: Group[Superclasses]) -> list[Curve]:
    return [
        curve(group, lambda one, index=index: one.each[index], metric=name)   # type: ignore[misc]
        for index, name in enumerate(group.first.names)
    ]


def _panels(group: Group[Superclasses]) -> dict[str, list[Curve]]:
    order = sorted((c for c in _each(group) if c.points), key=lambda c: c.points[-1].y - c.points[0].y)
    named = order if len(order) <= 2 * _NAMED else [*order[:_NAMED], *order[-_NAMED:]]
    return {"accuracy": _whole(group)[:2], "superclass accuracy": named}
