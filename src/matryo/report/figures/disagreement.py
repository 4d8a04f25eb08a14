"""Disagreement: examples that a small and a large dim classify differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation.protocols.disagreement import Disagreement
from matryo.report.section import Card, Gallery, Section, Table, rows_of
from matryo.report.series import Group, gather
from matryo.report.words import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.report.material import Material


def sections(material: Material) -> Iterator[Section]:
    """A gallery per model and split, of its first seed."""
    groups = gather(material.rows, Disagreement, lambda one: (one.by, one.dims))
    if not groups:
        return
    first = groups[0].first
    low, high = first.dims
    total = first.both_right + first.only_low + first.only_high + first.both_wrong
    yield Section(
        "disagreement", "Where dims disagree",
        f"{low} dims are right and {high} wrong on {first.only_low:,} of {total:,} examples; the reverse on "
        f"{first.only_high:,}",
        "The examples on which the two dims disagree with the highest confidence.",
        rows=rows_of(groups), table=_examples(groups), shown=(_counts(groups),),
        galleries=tuple(_gallery(group, material) for group in groups),
    )


def _gallery(group: Group[Disagreement], material: Material) -> Gallery:
    first = group.first
    cards = tuple(
        Card(
            label, first.ids[index], material.pictures.get(f"{first.dataset}/{first.split}/{first.rows[index]}"),
            tuple(zip(first.dims, first.said[index], first.confidence[index], strict=True)),
        )
        for index, label in enumerate(first.labels)
    )  # fmt: skip
    seed = f", seed {group.rows[0].seed}" if len(group.rows) > 1 else ""
    return Gallery(f"{group.name} on {group.place}, by {first.by}{seed}", cards)


def _examples(groups: Sequence[Group[Disagreement]]) -> Table:
    heads = ("place", "series", "id", "row", "class", "low dim", "low prediction", "low confidence", "high dim",
             "high prediction", "high confidence")   # fmt: skip
    lines = []
    for group in groups:
        one = group.first
        for index, label in enumerate(one.labels):
            answers = zip(one.dims, one.said[index], one.confidence[index], strict=True)
            flat = [value for answer in answers for value in answer]
            lines.append((group.place, group.name, one.ids[index], one.rows[index], label, *flat))
    return Table(heads, tuple(lines))


def _counts(groups: Sequence[Group[Disagreement]]) -> Table:
    lines = []
    for group in groups:
        for row, one in zip(group.rows, group.results, strict=True):
            counts = (one.both_right, one.only_low, one.only_high, one.both_wrong)
            total = max(1, sum(counts))
            shares = (f"{count:,} ({percent(count / total)})" for count in counts)
            seed = "–" if row.seed is None else row.seed
            lines.append((group.name, group.place, seed, f"{one.dims[0]} | {one.dims[1]}", *shares))
    return Table(("model", "split", "seed", "dims", "both right", "only low", "only high", "both wrong"), tuple(lines))
