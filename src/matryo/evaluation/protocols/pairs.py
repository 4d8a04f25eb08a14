"""Pairs: retrieve the relevant candidates of each query, and the reverse, at every dim.

Queries and candidates may be of different kinds, such as questions and documents or images and captions. Relevance is
given by :class:`~matryo.evaluation.relevance.Relevance` instead of by labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.evaluation.checks import check_columns, chosen_dims
from matryo.evaluation.knn.search import search_batches
from matryo.evaluation.protocol import Protocol
from matryo.metrics import hit_rate, mean_reciprocal_rank, ndcg, recall
from matryo.results import SplitResult, as_tuples
from matryo.tables import Block, Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Array, Doubles, Floats, Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.relevance import Relevance
    from matryo.evaluation.subject import Subject
    from matryo.nesting import Nesting
    Figures = tuple[tuple[tuple[float, ...], ...], ...]

PAIR_METRICS = {"nDCG": "ndcg", "hit": "hit", "recall": "recall", "MRR": "mrr"}
"""The metrics: their titles in tables, and the fields of :class:`Pairs`."""


@dataclass(frozen=True)
class Pairs(SplitResult):
    """Retrieval metrics in both directions, by dim and k; [0] searches the candidates, [1] searches the queries."""

    kind: ClassVar[str] = "pairs"
    shown: ClassVar[tuple[str, ...]] = ("nDCG@10", "hit@1", "hit@10")
    sides: tuple[str, str]
    """The names of queries and candidates."""
    counts: tuple[int, int]
    """The number of each."""
    asked: tuple[int, int]
    """The number of each with something relevant; the others are not searched for."""
    related: int
    """The number of relevant pairs."""
    dims: tuple[int, ...]
    ks: tuple[int, ...]
    ndcg: Figures
    """[directions, dims, ks], with the grades of the pairs as gains; the following have the same shape."""
    hit: Figures
    """The share of queries with something relevant among the first k; papers on images and texts call it recall@k."""
    recall: Figures
    """The mean share of the relevant ones that are among the first k."""
    mrr: Figures

    @property
    def directions(self) -> tuple[str, str]:
        """The names of both directions, "queries → candidates" and the reverse."""
        left, right = self.sides
        return f"{left} → {right}", f"{right} → {left}"

    def blocks(self) -> list[Block]:
        """Return one table per direction."""
        blocks = []
        for place, direction in enumerate(self.directions):
            about = f"{direction}, {self.asked[place]:,} in {self.counts[1 - place]:,}, {self.related:,} relevant pairs"
            metrics = [
                Metric(f"{name}@{k}", dict(zip(self.dims, self.at(name, k, place), strict=True)))
                for name in PAIR_METRICS
                for k in self.ks
            ]
            blocks.append(Block(self.model, self.where, about, metrics, self.shown, name=direction))
        return blocks

    @checked
    def at(self, metric: str, k: int, direction: int = 0) -> tuple[float, ...]:
        """Return a metric of :data:`PAIR_METRICS` at ``k``, by dim."""
        if metric not in PAIR_METRICS or k not in self.ks:
            measured = ", ".join(f"{name}@{k}" for name in PAIR_METRICS for k in self.ks)
            raise InputError("this metric was not measured", got=f"{metric}@{k}", cure=f"choose from {measured}")
        return tuple(row[self.ks.index(k)] for row in getattr(self, PAIR_METRICS[metric])[direction])


@checked
def pairs(
    queries: EmbeddingSet,
    candidates: EmbeddingSet,
    relevance: Relevance,
    *,
    dims: Sequence[int] | None = None,
    ks: Sequence[int] = (1, 5, 10, 100),
    sides: tuple[str, str] = ("queries", "candidates"),
    progress: bool = True,
) -> Pairs:
    """Search each side for the relevant rows of the other at every dim, by cosine.

    Equal cosines are in the order of ids. The dims are those of the queries' nesting (halved if there is only one),
    unless ``dims`` lists others. A k above the size of a side uses all of it.

    >>> from matryo.embeddings import EmbeddingSet
    >>> from matryo.evaluation import Relevance
    >>> images, texts = EmbeddingSet.of([[1, 0], [0, 1]]), EmbeddingSet.of([[2, 1], [1, 3], [3, 1]])
    >>> result = pairs(images, texts, Relevance.of([[0, 0], [0, 2], [1, 1]]), dims=[1, 2], ks=[1, 2])
    >>> result.at("hit", 1), result.at("recall", 2, direction=1)
    ((0.5, 1.0), (1.0, 1.0))
    """
    check_columns(queries, candidates, ("queries", "candidates"))
    relevance.check_fits(queries.count, candidates.count)
    if not ks or min(ks) < 1:
        raise InputError("ks must list at least one k, each at least 1", got=tuple(ks), cure="for example ks=[10]")
    nesting, depths = chosen_dims(queries, dims), sorted({*ks})
    forth = _direction(queries, candidates, relevance, nesting, depths, progress)
    back = _direction(candidates, queries, relevance.reversed, nesting, depths, progress)
    of, figures = relevance.pairs, as_tuples(np.stack([forth, back], axis=1).tolist())
    return Pairs(
        *queries.manifest.origin, sides, (queries.count, candidates.count),
        (len(np.unique(of[:, 0])), len(np.unique(of[:, 1]))), len(of), nesting.dims, tuple(depths),
        **dict(zip(PAIR_METRICS.values(), figures, strict=True)),
    )   # fmt: skip


def _measure(subject: Subject) -> Iterator[Pairs]:
    dims = subject.asked_dims or subject.dims
    for one in subject.queries.values():
        yield pairs(one, subject.database, subject.related, dims=dims, sides=subject.sides, progress=subject.progress)


PROTOCOL = Protocol("pairs", _measure, baselined=True)


def _direction(
    asking: EmbeddingSet, known: EmbeddingSet, relevance: Relevance, nesting: Nesting, ks: list[int], progress: bool
) -> Doubles:
    """Return [metrics, dims, ks]: the means over the rows of ``asking`` with something relevant in ``known``."""
    rows, totals = np.unique(relevance.pairs[:, 0], return_counts=True)
    best = _best(relevance, totals, ks[-1])
    order = _by_id(known.ids)
    keys = relevance.pairs[:, 0] * known.count + relevance.pairs[:, 1]   # sorted, as relevance is
    queries = asking.vectors if len(rows) == asking.count else asking.vectors[rows]
    searched = known.vectors if order is None else known.vectors[order]
    depth = min(ks[-1], known.count)
    sums = np.zeros((len(PAIR_METRICS), len(nesting), len(ks)))
    for batch in search_batches(searched, queries, nesting.dims, depth, progress=progress):
        here = slice(batch.start, batch.start + len(batch.indices[nesting.dim]))
        for place, dim in enumerate(nesting.dims):
            neighbours = batch.indices[dim] if order is None else order[batch.indices[dim]]
            grades = _grades(rows[here, None] * known.count + neighbours, keys, relevance.grades)
            sums[:, place] += len(grades) * _graded(grades, best[here], totals[here], ks)
    return sums / len(rows)


def _graded(grades: Floats, best: Floats, totals: Integers, ks: list[int]) -> Doubles:
    """Return [metrics, ks], in the order of PAIR_METRICS."""
    relevant, depth = grades > 0, grades.shape[1]
    each = [
        (ndcg(grades, best[:, :k], k), hit_rate(relevant, k), recall(relevant, totals, k),
         mean_reciprocal_rank(relevant, k))
        for k in (min(k, depth) for k in ks)
    ]  # fmt: skip
    return np.array(each).T


def _best(relevance: Relevance, totals: Integers, depth: int) -> Floats:
    """Return [queries, depth]: the highest grades of each query, largest first."""
    order = np.lexsort((-relevance.grades, relevance.pairs[:, 0]))
    place = np.arange(len(order)) - np.repeat(np.cumsum(totals) - totals, totals)
    query = np.repeat(np.arange(len(totals)), totals)
    best = np.zeros((len(totals), min(depth, int(totals.max()))), np.float32)
    kept = place < best.shape[1]
    best[query[kept], place[kept]] = relevance.grades[order[kept]]
    return best


def _grades(pairs: Integers, keys: Integers, grades: Floats) -> Floats:
    """Return the grade of each pair, 0 where it is not among the ``keys``."""
    place = np.minimum(np.searchsorted(keys, pairs), len(keys) - 1)
    return np.where(keys[place] == pairs, grades[place], np.float32(0))


def _by_id(ids: Array) -> Integers | None:
    """Return the rows in the order of their ids, because search prefers early rows among equals; None if in order."""
    order = np.argsort(ids, kind="stable")
    return None if (order == np.arange(len(order))).all() else order
