"""Robustness: several shifted test splits side by side, with oracle accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, ClassVar

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.evaluation.protocol import Protocol
from matryo.evaluation.protocols.trends import Trends, trends
from matryo.results import Result
from matryo.tables import Metric, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.evaluation.protocols.evaluate import Evaluation
    from matryo.evaluation.subject import Subject


@dataclass(frozen=True)
class Robustness(Result):
    """One model on several test splits: classification, retrieval with shifted queries, and the oracle."""

    kind: ClassVar[str] = "robustness"
    model: str
    dataset: str
    dims: tuple[int, ...]
    splits: tuple[str, ...]
    head: tuple[tuple[float | None, ...], ...]
    """[splits, dims]: top-1 of the head; None where there is none at that dim."""
    top1: tuple[tuple[float, ...], ...]
    """[splits, dims]: 1-NN."""
    map10: tuple[tuple[float, ...], ...]
    by: str
    """The classifier behind the oracle: "head" or "1-NN"."""
    oracle: tuple[float, ...]
    """[splits]: the share of examples that are right at some dim."""

    @property
    def about(self) -> str:
        """The oracle accuracy of each split."""
        oracles = (f"{split} {percent(value)}" for split, value in zip(self.splits, self.oracle, strict=True))
        return f"robustness; oracle by {self.by}: {', '.join(oracles)}"

    def metrics(self) -> list[Metric]:
        """Return head, 1-NN and mAP@10 by dim for each split."""
        figures = {"head": self.head, "1-NN": self.top1, "mAP@10": self.map10}
        return [
            Metric(f"{split} {title}", dict(zip(self.dims, by_split[place], strict=True)))
            for place, split in enumerate(self.splits)
            for title, by_split in figures.items()
        ]


@checked
def robustness(evaluations: Sequence[Evaluation], oracles: Sequence[Trends]) -> Robustness:
    """Combine ``evaluations`` of one model in one database, each with the trends of the same split.

    The dims are those that all evaluations share. The dataset is that of the first split; splits of other datasets are
    named with their dataset.
    """
    _check(evaluations, oracles)
    dims = sorted(set.intersection(*({*one.dims} for one in evaluations)))
    if not dims or any(10 not in one.at(dim).map_at for one in evaluations for dim in dims):
        raise InputError(
            "the evaluations must share a dim and have mAP@10",
            got=f"dims {' and '.join(str(one.dims) for one in evaluations)}",
            cure="evaluate all at the same dims with 10 in ks, in a database of at least 10 vectors",
        )
    first, rows = evaluations[0], [[one.at(dim) for dim in dims] for one in evaluations]
    return Robustness(
        model=first.model,
        dataset=first.dataset,
        dims=tuple(dims),
        splits=tuple(e.split if e.dataset == first.dataset else f"{e.dataset} {e.split}" for e in evaluations),
        head=tuple(tuple(row.head_top1 for row in one) for one in rows),
        top1=tuple(tuple(row.top1 for row in one) for one in rows),
        map10=tuple(tuple(row.map_at[10] for row in one) for one in rows),
        by=oracles[0].by,
        oracle=tuple(one.oracle for one in oracles),
    )


def _measure(subject: Subject) -> Iterator[Robustness]:
    if len(subject.queries) < 2:
        raise InputError("robustness needs several query splits", got=len(subject.queries), cure="encode another one")
    yield robustness(subject.evaluations, list(starmap(trends, subject.predictions)))


PROTOCOL = Protocol("robustness", _measure)


def _check(evaluations: Sequence[Evaluation], oracles: Sequence[Trends]) -> None:
    if not evaluations:
        raise InputError("there must be an evaluation", got=0, cure="evaluate a split first")
    if len({(one.model, one.database) for one in evaluations}) > 1:
        raise InputError(
            "the evaluations must be of one model and one database",
            got="; ".join(f"{one.model}, {one.split} in {one.database}" for one in evaluations),
            cure="call robustness once per model",
        )
    graded, routed = ([(one.model, one.dataset, one.split) for one in given] for given in (evaluations, oracles))
    if graded != routed or len({*graded}) < len(graded):
        raise InputError(
            "evaluations and trends must list the same splits in the same order, each once",
            got=f"evaluations of {[split for *_, split in graded]}, trends of {[split for *_, split in routed]}",
            cure="give both lists in the same order",
        )
