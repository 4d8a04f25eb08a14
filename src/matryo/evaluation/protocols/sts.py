"""Semantic textual similarity: do cosines put pairs in the order in which people graded them?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from matryo.errors import InputError
from matryo.evaluation.checks import check_columns, chosen_dims
from matryo.evaluation.cosines import cosines
from matryo.metrics import pearson, spearman
from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.relevance import Relevance

__all__ = ["Sts", "sts"]


@dataclass(frozen=True)
class Sts(Result):
    """How well the cosines of graded pairs follow their grades, by dim."""

    kind: ClassVar[str] = "sts"
    model: str
    dataset: str
    split: str
    pairs: int
    dims: tuple[int, ...]
    spearman: tuple[float, ...]
    """Of the order: what benchmarks of sentence embeddings report."""
    pearson: tuple[float, ...]


def sts(
    queries: EmbeddingSet, candidates: EmbeddingSet, relevance: Relevance, *, dims: Sequence[int] | None = None
) -> Sts:
    """Compare the cosines of all pairs that ``relevance`` grades, those of grade 0 too, with the grades.

    The dims are those of the queries' nesting (halved where it has one alone), unless ``dims`` lists others.

    >>> from matryo.embeddings import EmbeddingSet
    >>> from matryo.evaluation import Relevance
    >>> one, other = EmbeddingSet.of([[1, 0], [1, 1], [1, 2]]), EmbeddingSet.of([[1, 0], [1, 0], [1, 9]])
    >>> sts(one, other, Relevance.of([[0, 0], [1, 1], [0, 2]], [5, 3, 0]), dims=[2]).spearman
    (1.0,)
    """
    check_columns(queries, candidates, ("queries", "candidates"))
    pairs, grades = relevance.judged
    relevance.check_judged(queries.count, candidates.count)
    if len({*grades.tolist()}) < 2:
        raise InputError(
            "the pairs must have different grades, or there is no order to follow",
            got=f"{len(grades)} pairs of grade {grades[0]:g}",
            cure="give pairs with a score, 0 where the two have nothing in common",
        )
    nesting, about = chosen_dims(queries, dims), queries.manifest
    alike = cosines((queries, candidates), (pairs[:, 0], pairs[:, 1]), nesting)
    return Sts(
        about.title, about.dataset, about.split, len(pairs), nesting.dims,
        spearman=tuple(spearman(one, grades) for one in alike),
        pearson=tuple(pearson(one, grades) for one in alike),
    )  # fmt: skip
