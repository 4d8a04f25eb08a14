"""Similarity span: the cosines of positive pairs compared with those of random pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_columns, check_pair, chosen_dims, labels_of
from matryo.evaluation.cosines import cosines
from matryo.evaluation.protocol import Protocol
from matryo.results import SplitResult
from matryo.tables import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Doubles, Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.relevance import Relevance
    from matryo.evaluation.subject import Subject


@dataclass(frozen=True)
class Similarity(SplitResult):
    """Cosines of positive and of random pairs, by dim."""

    kind: ClassVar[str] = "similarity"
    titles: ClassVar[dict[str, str]] = {"auc": "AUC", "positive_mean": "positive", "random_mean": "random"}
    texts: ClassVar[dict[str, Any]] = {"positive_mean": number, "random_mean": number}
    pairs: int
    dims: tuple[int, ...]
    positive_mean: tuple[float, ...]
    positive_sd: tuple[float, ...]
    random_mean: tuple[float, ...]
    random_sd: tuple[float, ...]
    auc: tuple[float, ...]
    """[dims]: the share of (positive, random) pairs of pairs where the positive one has the larger cosine."""
    edges: tuple[float, ...]
    """The bounds of the histogram's bins."""
    positive: tuple[tuple[float, ...], ...]
    """[dims, bins]: the share of positive pairs in each bin."""
    random: tuple[tuple[float, ...], ...]

    @property
    def about(self) -> str:
        """The number of pairs."""
        return f"cosines of {self.pairs:,} positive and random pairs"


@checked
def similarity_span(
    embeddings: EmbeddingSet,
    others: EmbeddingSet | None = None,
    *,
    relevance: Relevance | None = None,
    pairs: int = 20_000,
    dims: Sequence[int] | None = None,
    seed: int = 0,
) -> Similarity:
    """Draw ``pairs`` positive and as many random pairs with ``seed``, and compare their cosines at every dim.

    A positive pair is two different rows of one class, drawn uniformly from all such pairs; a random pair is any two
    different rows. With ``others`` a pair is a row of each instead, such as an image and a text that describes it.
    Rows of unknown class (−1) are excluded. With ``relevance`` labels are not used: it lists the positive pairs, and
    any row of ``embeddings`` with any row of ``others`` is a random pair. Equal cosines count half in the AUC. The
    dims are those of the nesting (halved if there is only one), unless ``dims`` lists others.
    """
    if pairs < 1:
        raise InputError("pairs must be at least 1", got=pairs, cure="20,000 give two stable decimals")
    sides = (embeddings, embeddings if others is None else others)
    nesting, rng = chosen_dims(embeddings, dims), np.random.default_rng(seed)
    if relevance is None:
        check_pair(*sides, ("embeddings", "others"))
        drawn = _draw(sides, pairs, rng)
    else:
        check_columns(*sides, ("embeddings", "others"))
        drawn = _draw_related(sides, relevance, pairs, rng)
    positive, random = (cosines(sides, rows, nesting) for rows in drawn)
    edges = np.linspace(-1, 1, 41)
    return Similarity(
        *embeddings.manifest.origin, pairs, nesting.dims,
        positive_mean=tuple(positive.mean(axis=1).tolist()),
        positive_sd=tuple(positive.std(axis=1).tolist()),
        random_mean=tuple(random.mean(axis=1).tolist()),
        random_sd=tuple(random.std(axis=1).tolist()),
        auc=tuple(map(_auc, positive, random)),
        edges=tuple(edges.tolist()),
        positive=_shares(positive, edges),
        random=_shares(random, edges),
    )   # fmt: skip


def _measure(subject: Subject) -> Iterator[Similarity]:
    if subject.relevance is not None:
        for queries in subject.queries.values():
            yield similarity_span(queries, subject.database, relevance=subject.relevance, dims=subject.dims)
        return
    for queries in subject.with_repeated_classes():
        yield similarity_span(queries, dims=subject.dims)


PROTOCOL = Protocol("similarity", _measure, searches=False)


def _draw(sides: tuple[EmbeddingSet, EmbeddingSet], pairs: int, rng: np.random.Generator) -> list[list[Integers]]:
    """Return the rows of the positive and of the random pairs, for each side."""
    labels = [labels_of(side, role) for side, role in zip(sides, ("embeddings", "others"), strict=True)]
    # Sorted by class, so that the partners of a row are a range of rows.
    rows = [np.argsort(one, kind="stable")[np.count_nonzero(one == UNKNOWN) :] for one in labels]
    left, right = (one[order] for one, order in zip(labels, rows, strict=True))
    alike = np.searchsorted(right, left, "left"), np.searchsorted(right, left, "right")
    everything = np.zeros_like(alike[0]), np.full_like(alike[0], len(right))
    distinct = sides[0] is sides[1]
    _check_pairs(*(int((last - first - distinct).sum()) for first, last in (alike, everything)))
    drawn = [_draw_within(*partners, distinct, pairs, rng) for partners in (alike, everything)]
    return [[order[places] for order, places in zip(rows, pair, strict=True)] for pair in drawn]


def _draw_related(
    sides: tuple[EmbeddingSet, EmbeddingSet], relevance: Relevance, pairs: int, rng: np.random.Generator
) -> list[list[Integers]]:
    """Return the rows of drawn positive pairs from ``relevance`` and of random pairs, for each side."""
    relevance.check_fits(*map(len, sides))
    related = relevance.pairs[rng.integers(len(relevance.pairs), size=pairs)]
    return [[related[:, 0], related[:, 1]], [rng.integers(len(side), size=pairs) for side in sides]]


def _draw_within(
    first: Integers, last: Integers, distinct: bool, pairs: int, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """Draw pairs (i, j) with first[i] ≤ j < last[i] uniformly; with ``distinct``, j is not i."""
    counts = last - first - distinct
    ends = np.cumsum(counts)
    number = rng.integers(ends[-1], size=pairs)   # the number of the pair, counted by i
    i = np.searchsorted(ends, number, "right")
    j = first[i] + number - (ends[i] - counts[i])
    return i, j + (distinct & (j >= i))


def _auc(positive: Doubles, random: Doubles) -> float:
    ordered = np.sort(random)
    below, up_to = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + up_to).mean() / (2 * len(ordered)))


def _shares(cosines: Doubles, edges: Doubles) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple((np.histogram(one, edges)[0] / len(one)).tolist()) for one in cosines)


def _check_pairs(same: int, every: int) -> None:
    if same == 0:
        raise EmbeddingsError(
            "some class must have two rows, one for each side of a pair",
            got="no such class",
            cure="label more examples of each class",
        )
    if same == every:
        raise EmbeddingsError(
            "there must be rows of two classes, or all random pairs are positive",
            got="one class",
            cure="add rows of other classes",
        )
