"""Semantic textual similarity: correlation of cosines with the grades that people gave to pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.evaluation.checks import check_columns, chosen_dims
from matryo.evaluation.cosines import cosines
from matryo.evaluation.protocol import Protocol
from matryo.metrics import pearson, spearman
from matryo.results import SplitResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.relevance import Relevance
    from matryo.evaluation.subject import Subject


@dataclass(frozen=True)
class Sts(SplitResult):
    """Correlation of the cosines of graded pairs with their grades, by dim."""

    kind: ClassVar[str] = "sts"
    titles: ClassVar[dict[str, str]] = {"spearman": "Spearman", "pearson": "Pearson"}
    pairs: int
    dims: tuple[int, ...]
    spearman: tuple[float, ...]
    """Rank correlation, which benchmarks of sentence embeddings report."""
    pearson: tuple[float, ...]

    @property
    def about(self) -> str:
        """The number of pairs; tables show correlations times 100."""
        return f"{self.pairs:,} graded pairs"


@checked
def sts(
    queries: EmbeddingSet, candidates: EmbeddingSet, relevance: Relevance, *, dims: Sequence[int] | None = None
) -> Sts:
    """Return the correlation of cosines and grades over all pairs in ``relevance``, including those of grade 0.

    The dims are those of the queries' nesting (halved if there is only one), unless ``dims`` lists others.

    >>> from matryo.embeddings import EmbeddingSet
    >>> from matryo.evaluation import Relevance
    >>> one, other = EmbeddingSet.of([[1, 0], [1, 1], [1, 2]]), EmbeddingSet.of([[1, 0], [1, 0], [1, 9]])
    >>> sts(one, other, Relevance.of([[0, 0], [1, 1], [0, 2]], [5, 3, 0]), dims=[2]).spearman
    (1.0,)
    """
    check_columns(queries, candidates, ("queries", "candidates"))
    pairs, grades = relevance.judged
    relevance.check_fits(queries.count, candidates.count, judged=True)
    if len({*grades.tolist()}) < 2:
        raise InputError(
            "the pairs must have different grades",
            got=f"{len(grades)} pairs of grade {grades[0]:g}",
            cure="include pairs with other scores, such as 0 for unrelated ones",
        )
    nesting = chosen_dims(queries, dims)
    alike = cosines((queries, candidates), (pairs[:, 0], pairs[:, 1]), nesting)
    return Sts(
        *queries.manifest.origin, len(pairs), nesting.dims,
        spearman=tuple(spearman(values, grades) for values in alike),
        pearson=tuple(pearson(values, grades) for values in alike),
    )  # fmt: skip


def _measure(subject: Subject) -> Iterator[Sts]:
    for queries in subject.queries.values():
        yield sts(queries, subject.database, subject.related, dims=subject.asked_dims or subject.dims)


PROTOCOL = Protocol("sts", _measure, baselined=True)
