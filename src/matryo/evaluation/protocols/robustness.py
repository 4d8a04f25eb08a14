"""Robustness: several shifted test splits side by side, with the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from matryo.errors import InputError
from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.evaluation.protocols.trends import Trends
    from matryo.evaluation.result import Evaluation

__all__ = ["Robustness", "robustness"]


@dataclass(frozen=True)
class Robustness(Result):
    """One model on several test splits: classification, retrieval with shifted queries, and the oracle."""

    kind: ClassVar[str] = "robustness"
    model: str
    dataset: str
    dims: tuple[int, ...]
    splits: tuple[str, ...]
    head: tuple[tuple[float | None, ...], ...]
    """[splits][dims]: top-1 of the head; None where there is none at that dim."""
    top1: tuple[tuple[float, ...], ...]
    """[splits][dims]: 1-NN."""
    map10: tuple[tuple[float, ...], ...]
    by: str
    """What the oracle routes: the "head", or "1-NN"."""
    oracle: tuple[float, ...]
    """[splits]."""


def robustness(evaluations: Sequence[Evaluation], oracles: Sequence[Trends]) -> Robustness:
    """Line up ``evaluations`` of one model in one database, each with the trends of the same split.

    The dims are those that all evaluations share. The first split gives the dataset; one of another dataset bears
    that name too.
    """
    _check(evaluations, oracles)
    dims = sorted(set.intersection(*({*one.dims} for one in evaluations)))
    if not dims or any(10 not in one.at(dim).map_at for one in evaluations for dim in dims):
        raise InputError(
            "the evaluations must share a dim, and have mAP@10",
            got=f"dims {' and '.join(str(one.dims) for one in evaluations)}",
            cure="evaluate all at the same dims with 10 among the ks, in a database of 10 vectors or more",
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


def _check(evaluations: Sequence[Evaluation], oracles: Sequence[Trends]) -> None:
    if not evaluations:
        raise InputError("there must be an evaluation to line up", got=0, cure="evaluate a split first")
    if len({(one.model, one.database) for one in evaluations}) > 1:
        raise InputError(
            "splits beside each other must be of one model, searched in one database",
            got="; ".join(f"{one.model}, {one.split} in {one.database}" for one in evaluations),
            cure="make one comparison a model",
        )
    graded, routed = ([(one.model, one.dataset, one.split) for one in given] for given in (evaluations, oracles))
    if graded != routed or len({*graded}) < len(graded):
        raise InputError(
            "each split must come once, with its evaluation and its trends in the same place",
            got=f"evaluations of {[split for *_, split in graded]}, trends of {[split for *_, split in routed]}",
            cure="give both lists in one order",
        )
