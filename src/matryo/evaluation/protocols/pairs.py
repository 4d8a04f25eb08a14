"""Pairs: find what belongs to a query among the candidates, and the other way round, at every dim.

The queries and the candidates may be of different kinds: questions and documents, images and captions. What belongs
together is known by :class:`~matryo.evaluation.relevance.Relevance` instead of by labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.errors import InputError
from matryo.evaluation.checks import check_columns, chosen_dims
from matryo.evaluation.knn.search import search_batches
from matryo.metrics import hit_rate, mean_reciprocal_rank, ndcg, recall
from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.relevance import Relevance
    from matryo.nesting import Nesting

    Array = np.ndarray[Any, np.dtype[Any]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]
    Figures = tuple[tuple[tuple[float, ...], ...], ...]

__all__ = ["PAIR_METRICS", "Pairs", "pairs"]

PAIR_METRICS = {"nDCG": "ndcg", "hit": "hit", "recall": "recall", "MRR": "mrr"}
"""The metrics as tables call them, and the fields of :class:`Pairs` that hold them."""


@dataclass(frozen=True)
class Pairs(Result):
    """How well each side finds the other, by dim and k; [0] asks with the queries, [1] with the candidates."""

    kind: ClassVar[str] = "pairs"
    model: str
    dataset: str
    split: str
    sides: tuple[str, str]
    """What the queries and the candidates are called."""
    counts: tuple[int, int]
    """How many there are of each."""
    asked: tuple[int, int]
    """How many of each belong to something; the others ask nothing."""
    related: int
    """How many pairs belong together."""
    dims: tuple[int, ...]
    ks: tuple[int, ...]
    ndcg: Figures
    """[directions][dims][ks], with the grades of the pairs as gains; so are the following."""
    hit: Figures
    """Whether anything that belongs is among the first k: the recall@k of papers on images and texts."""
    recall: Figures
    """How much of what belongs is among the first k."""
    mrr: Figures

    @property
    def directions(self) -> tuple[str, str]:
        """What asks for what, in words."""
        one, other = self.sides
        return f"{one} → {other}", f"{other} → {one}"

    def at(self, metric: str, k: int, direction: int = 0) -> tuple[float, ...]:
        """A metric of :data:`PAIR_METRICS` at ``k``, by dim."""
        if metric not in PAIR_METRICS or k not in self.ks:
            known = ", ".join(f"{name}@{k}" for name in PAIR_METRICS for k in self.ks)
            raise InputError("this must be a measured metric", got=f"{metric}@{k}", cure=f"choose from {known}")
        return tuple(row[self.ks.index(k)] for row in getattr(self, PAIR_METRICS[metric])[direction])


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
    """Search each side for what belongs to the other at every dim, and grade what is found.

    Near means cosine; of equally near ones that of the smaller id comes first. The dims are those of the queries'
    nesting (halved where it has one alone), unless ``dims`` lists others. A k beyond the size of a side looks at all
    of it.

    >>> from matryo.embeddings import EmbeddingSet
    >>> from matryo.evaluation import Relevance
    >>> images, texts = EmbeddingSet.of([[1, 0], [0, 1]]), EmbeddingSet.of([[2, 1], [1, 3], [3, 1]])
    >>> found = pairs(images, texts, Relevance.of([[0, 0], [0, 2], [1, 1]]), dims=[1, 2], ks=[1, 2])
    >>> found.at("hit", 1), found.at("recall", 2, direction=1)
    ((0.5, 1.0), (1.0, 1.0))
    """
    check_columns(queries, candidates, ("queries", "candidates"))
    relevance.check_fits(queries.count, candidates.count)
    if not ks or min(ks) < 1:
        raise InputError("every k must be at least 1, and there must be one", got=tuple(ks), cure="say for example 10")
    nesting, depths = chosen_dims(queries, dims), sorted({*ks})
    forth = _direction(queries, candidates, relevance, nesting, depths, progress)
    back = _direction(candidates, queries, relevance.reversed, nesting, depths, progress)
    about, of = queries.manifest, relevance.pairs
    named = {name: (_tuples(forth[place]), _tuples(back[place])) for place, name in enumerate(PAIR_METRICS.values())}
    return Pairs(
        about.title, about.dataset, about.split, sides, (queries.count, candidates.count),
        (len(np.unique(of[:, 0])), len(np.unique(of[:, 1]))), len(of), nesting.dims, tuple(depths), **named,
    )   # fmt: skip


def _direction(
    asking: EmbeddingSet, known: EmbeddingSet, relevance: Relevance, nesting: Nesting, ks: list[int], progress: bool
) -> Doubles:
    """[metrics, dims, ks]: the means over what asks."""
    rows, totals = np.unique(relevance.pairs[:, 0], return_counts=True)
    best = _best(relevance, totals, ks[-1])
    order = _by_id(known.ids)
    keys = relevance.pairs[:, 0] * known.count + relevance.pairs[:, 1]   # in order, as relevance is
    queries = asking.vectors if len(rows) == asking.count else asking.vectors[rows]
    searched = known.vectors if order is None else known.vectors[order]
    depth = min(ks[-1], known.count)
    sums = np.zeros((len(PAIR_METRICS), len(nesting), len(ks)))
    for batch in search_batches(searched, queries, nesting.dims, depth, progress=progress):
        here = slice(batch.start, batch.start + len(batch.indices[nesting.dim]))
        for place, dim in enumerate(nesting.dims):
            found = batch.indices[dim] if order is None else order[batch.indices[dim]]
            grades = _grades(rows[here, None] * known.count + found, keys, relevance.grades)
            sums[:, place] += len(grades) * _graded(grades, best[here], totals[here], ks)
    return sums / len(rows)


def _graded(grades: Floats, best: Floats, totals: Integers, ks: list[int]) -> Doubles:
    """[metrics, ks], in the order of PAIR_METRICS."""
    relevant, depth = grades > 0, grades.shape[1]
    each = [
        (ndcg(grades, best[:, :k], k), hit_rate(relevant, k), recall(relevant, totals, k),
         mean_reciprocal_rank(relevant, k))
        for k in (min(k, depth) for k in ks)
    ]  # fmt: skip
    return np.array(each).T


def _best(relevance: Relevance, totals: Integers, depth: int) -> Floats:
    """[queries, depth]: the highest grades of each query, largest first."""
    order = np.lexsort((-relevance.grades, relevance.pairs[:, 0]))
    place = np.arange(len(order)) - np.repeat(np.cumsum(totals) - totals, totals)
    query = np.repeat(np.arange(len(totals)), totals)
    best = np.zeros((len(totals), min(depth, int(totals.max()))), np.float32)
    kept = place < best.shape[1]
    best[query[kept], place[kept]] = relevance.grades[order[kept]]
    return best


def _grades(asked: Integers, keys: Integers, grades: Floats) -> Floats:
    """The grade of each pair, 0 where it is not among the ``keys``."""
    place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[place] == asked, grades[place], np.float32(0))


def _by_id(ids: Array) -> Integers | None:
    """The rows in the order of their ids, so that search, which prefers early rows, prefers small ids; None if so."""
    order = np.argsort(ids, kind="stable")
    return None if (order == np.arange(len(order))).all() else order


def _tuples(values: Doubles) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
