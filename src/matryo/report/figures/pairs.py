"""Pairs: how well each side retrieves its counterparts on the other side, by dim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation.protocols.pairs import PAIR_METRICS, Pairs
from matryo.report.lines import split_fields
from matryo.report.models import role_of
from matryo.report.section import Section, curve_table, rows_of
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.words import reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.report.material import Material

_DRAWN = (("nDCG", 10), ("hit", 1))


def sections(material: Material) -> Iterator[Section]:
    """A plate per split, direction and metric with a line per model."""
    groups = gather(material.rows, Pairs, lambda one: (one.dims, one.ks, one.sides, one.counts, one.related))
    groups.sort(key=lambda group: role_of(group) == "post hoc")   # baselines last
    if not groups:
        return
    first = groups[0].first
    wanted = [one for one in _DRAWN if one[1] in first.ks] or [("nDCG", first.ks[-1])]
    every = {
        (direction, metric, k, id(group)): _curve(group, metric, k, direction)
        for direction in (0, 1) for metric in PAIR_METRICS for k in sorted({*first.ks}) for group in groups
        if k in group.first.ks
    }  # fmt: skip
    drawn = [one for (_, metric, k, _), one in every.items() if (metric, k) in wanted]
    sizes = "; ".join(
        f"{first.directions[d]}: {first.asked[d]:,} queries, {first.counts[1 - d]:,} candidates" for d in (0, 1)
    )
    yield Section(
        "pairs", "Pairs", f"By {drawn[0].metric}, {reach(drawn)}",
        "Each side is used as queries against the other. nDCG@10 grades the order of the first ten results; hit@1 "
        f"(recall@1 in the image-text literature) is the share of correct first results. {sizes}.",
        rows=rows_of(groups), **split_fields(material, "pairs", drawn) | {"table": curve_table(every.values())},
    )  # fmt: skip


def _curve(group: Group[Pairs], metric: str, k: int, direction: int) -> Curve:
    title = f"{metric}@{k}, {group.first.directions[direction]}"
    return curve(group, lambda one: one.at(metric, k, direction), metric=title)
