"""Similarity span: how far apart the cosines of pairs that belong together lie from those of random pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_columns, check_pair, chosen_dims, labels_of
from matryo.evaluation.cosines import cosines
from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.relevance import Relevance

    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Similarity", "similarity_span"]


@dataclass(frozen=True)
class Similarity(Result):
    """Cosines of positive and of random pairs, by dim."""

    kind: ClassVar[str] = "similarity"
    model: str
    dataset: str
    split: str
    pairs: int
    dims: tuple[int, ...]
    positive_mean: tuple[float, ...]
    positive_sd: tuple[float, ...]
    random_mean: tuple[float, ...]
    random_sd: tuple[float, ...]
    auc: tuple[float, ...]
    """[dims]: how often a positive pair is more alike than a random one."""
    edges: tuple[float, ...]
    """The bounds of the histogram's bins."""
    positive: tuple[tuple[float, ...], ...]
    """[dims][bins]: the share of positive pairs in each bin."""
    random: tuple[tuple[float, ...], ...]


def similarity_span(
    embeddings: EmbeddingSet,
    others: EmbeddingSet | None = None,
    *,
    relevance: Relevance | None = None,
    pairs: int = 20_000,
    dims: Sequence[int] | None = None,
    seed: int = 0,
) -> Similarity:
    """Draw as many positive as random ``pairs`` with ``seed``, and compare their cosines at every dim.

    A positive pair is two different rows of one class, drawn evenly among all such pairs; a random pair is any two
    different rows. With ``others`` a pair is a row of each instead: say an image and a text that describes it. Rows
    of unknown class (−1) are left out. With ``relevance`` labels do not matter: it lists the positive pairs, and any
    row of ``embeddings`` with any of ``others`` is a random one. An equal cosine counts half in the auc. The dims are
    those of the nesting (halved where it has one alone), unless ``dims`` lists others.
    """
    if pairs < 1:
        raise InputError("pairs must be at least 1", got=pairs, cure="20 000 settle the second decimal")
    sides = (embeddings, embeddings if others is None else others)
    nesting, rng = chosen_dims(embeddings, dims), np.random.default_rng(seed)
    if relevance is None:
        check_pair(*sides, ("embeddings", "others"))
        drawn = _draw(sides, pairs, rng)
    else:
        check_columns(*sides, ("embeddings", "others"))
        drawn = _draw_related(sides, relevance, pairs, rng)
    positive, random = (cosines(sides, rows, nesting) for rows in drawn)
    edges, about = np.linspace(-1, 1, 41), embeddings.manifest
    return Similarity(
        about.title, about.dataset, about.split, pairs, nesting.dims,
        positive_mean=tuple(positive.mean(axis=1).tolist()),
        positive_sd=tuple(positive.std(axis=1).tolist()),
        random_mean=tuple(random.mean(axis=1).tolist()),
        random_sd=tuple(random.std(axis=1).tolist()),
        auc=tuple(map(_auc, positive, random)),
        edges=tuple(edges.tolist()),
        positive=_shares(positive, edges),
        random=_shares(random, edges),
    )   # fmt: skip


def _draw(sides: tuple[EmbeddingSet, EmbeddingSet], pairs: int, rng: np.random.Generator) -> list[list[Integers]]:
    """The rows of the positive and of the random pairs, those of each side."""
    labels = [labels_of(side, role) for side, role in zip(sides, ("embeddings", "others"), strict=True)]
    # In the order of the classes, where the partners of a row are a range of rows.
    rows = [np.argsort(one, kind="stable")[np.count_nonzero(one == UNKNOWN) :] for one in labels]
    left, right = (one[order] for one, order in zip(labels, rows, strict=True))
    alike = np.searchsorted(right, left, "left"), np.searchsorted(right, left, "right")
    any_at_all = np.zeros_like(alike[0]), np.full_like(alike[0], len(right))
    distinct = sides[0] is sides[1]
    _check_pairs(*(int((last - first - distinct).sum()) for first, last in (alike, any_at_all)))
    drawn = [_draw_within(*partners, distinct, pairs, rng) for partners in (alike, any_at_all)]
    return [[order[places] for order, places in zip(rows, pair, strict=True)] for pair in drawn]


def _draw_related(
    sides: tuple[EmbeddingSet, EmbeddingSet], relevance: Relevance, pairs: int, rng: np.random.Generator
) -> list[list[Integers]]:
    """The same, of positive pairs that are listed."""
    relevance.check_fits(*map(len, sides))
    related = relevance.pairs[rng.integers(len(relevance.pairs), size=pairs)]
    return [[related[:, 0], related[:, 1]], [rng.integers(len(side), size=pairs) for side in sides]]


def _draw_within(
    first: Integers, last: Integers, distinct: bool, pairs: int, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """Pairs (i, j) with first[i] ≤ j < last[i], each as likely as any other; with ``distinct``, j is not i."""
    counts = last - first - distinct
    ends = np.cumsum(counts)
    number = rng.integers(ends[-1], size=pairs)   # which of all pairs, counted i by i
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
            "some class must have two rows to be compared, one on each side of a pair",
            got="no such class",
            cure="label more examples of each class",
        )
    if same == every:
        raise EmbeddingsError(
            "there must be rows of two classes, or random pairs are positive ones", got="one class", cure="add others"
        )
