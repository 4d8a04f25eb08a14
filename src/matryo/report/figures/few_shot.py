"""Few-shot: nearest-class-mean accuracy by dim, with a line per number of shots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from matryo.evaluation.protocols.few_shot import FewShot
from matryo.report.lines import model_fields
from matryo.report.section import Section
from matryo.report.series import Curve, Group, curve, gather
from matryo.report.style import ramp
from matryo.report.words import plural, reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.report.material import Material


def sections(material: Material) -> Iterator[Section]:
    """A plate per model, split and choice of classes."""
    if groups := gather(material.rows, FewShot, lambda one: (one.dims, one.shots, one.classes, one.ways)):
        middle = [_curves(group)[len(group.first.shots) // 2] for group in groups]
        yield Section(
            "few-shot", "Few-shot", f"With {middle[0].metric} per class, {reach(middle)}",
            "Nearest-class-mean accuracy after n examples per class. A line that is flat early needs few dims for new "
            f"classes. Means over {plural(groups[0].first.draws, 'draw')}.",
            **model_fields(groups, _panels, key="few-shot", looks=ramp),
        )  # fmt: skip


def _panels(group: Group[FewShot]) -> dict[str, list[Curve]]:
    return {f"accuracy, {_which(group)}": _curves(group)}


def _which(group: Group[FewShot]) -> str:
    classes = group.first.classes
    return f"{group.first.ways}-way, " + ("all classes" if classes == "all" else f"classes {classes}")


def _curves(group: Group[FewShot]) -> list[Curve]:
    chosen = replace(group, place=f"{group.place}: {_which(group)}")
    return [
        curve(
            chosen, lambda one, index=index: one.accuracy[index], metric=plural(shots, "shot"),   # type: ignore[misc]
            own=lambda one, index=index: one.margin[index], own_spread="95 % interval",   # type: ignore[misc]
        )
        for index, shots in enumerate(group.first.shots)
    ]  # fmt: skip
