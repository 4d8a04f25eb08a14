"""Adaptive classification as a protocol: accuracy against expected dim, for each strategy of thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.classify import CascadeCurve, cascade_curve
from matryo.classify.thresholds.risk import fewest_rows
from matryo.errors import InputError
from matryo.evaluation.checks import class_counts
from matryo.evaluation.protocol import Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.evaluation.subject import Subject


def _measure(subject: Subject) -> Iterator[CascadeCurve]:
    for queries in subject.queries.values():
        if queries.head is None or len(queries.head.dims) < 2:
            raise InputError(
                "a cascade needs a head at several dims",
                got="none" if queries.head is None else f"dim {queries.head.dim} only",
                cure="train one with --head.kind separate or tied",
            )
        # Half of the rows are fitted on; with too few, not even a loss of five points could be certified.
        certifiable = class_counts(queries).sum() // 2 >= fewest_rows(0.05, 0.95)
        for strategy in ("greedy", "budget", *(["risk"] if certifiable else [])):
            yield cascade_curve(queries, strategy=strategy, progress=subject.progress)


PROTOCOL = Protocol("cascade", _measure, searches=False)
