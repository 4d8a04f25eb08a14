"""The workload of the planner: queries in random order, and the quality of the hits that a plan finds for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from matryo.errors import InputError
from matryo.metrics import average_precision
from matryo.retrieve.engines.execute import Hits
from matryo.retrieve.plan.plan import check_count
from matryo.retrieve.vectors.queries import as_queries

if TYPE_CHECKING:
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.plan.searcher import Searcher
    from matryo.retrieve.vectors.types import Array, Doubles, Indices

FAR = int(np.iinfo(np.int64).max)
"""The rank of a row that is not in the list."""

_MOST_HITS = 1000   # the largest k: the planner compares each true neighbour with shortlists of 16 k rows
_ALL = slice(None)


@dataclass(frozen=True, eq=False)
class _Labels:
    """Label numbers of the queries, and of the rows by id."""

    of_queries: Indices
    of_rows: Indices | dict[Any, int]
    totals: Indices
    """The number of rows with the label of each query, the query itself excluded."""

    @classmethod
    def of(cls, labels: tuple[Any, Any], count: int, rows: int, own: Array | None) -> _Labels:
        query_labels, row_labels = labels
        by_id = isinstance(row_labels, Mapping)
        keys, values = (list(row_labels), list(row_labels.values())) if by_id else (None, row_labels)
        query_labels, values = np.asarray([] if query_labels is None else query_labels), np.asarray(values)
        if values.shape != (rows,) or (own is None and query_labels.shape != (count,)):
            raise InputError(
                f"labels must have one entry for each of the {count} queries, and one for each of the {rows} rows",
                got=f"shapes {query_labels.shape} and {values.shape}",
                cure="pass (labels of the queries, labels of the rows)",
            )
        names, numbers = np.unique(values, return_inverse=True)
        of_rows = numbers if keys is None else dict(zip(keys, numbers.tolist(), strict=True))
        if own is None:
            found = np.minimum(np.searchsorted(names, query_labels), len(names) - 1)
            of_queries = np.where(names[found] == query_labels, found, -1)
        else:
            of_queries = _numbered(of_rows, own)
        totals = np.append(np.bincount(numbers), 0)[of_queries] - (own is not None)
        return cls(of_queries, of_rows, totals)

    def select(self, queries: Indices | slice) -> _Labels:
        return _Labels(self.of_queries[queries], self.of_rows, self.totals[queries])

    def worth(self, hits: Hits, k: int) -> Doubles:
        relevant = _numbered(self.of_rows, hits.ids) == self.of_queries[:, None]
        return average_precision(relevant & np.isfinite(hits.scores), self.totals, k)


def _numbered(rows: Indices | dict[Any, int], ids: Array) -> Indices:
    """The label numbers of the rows with these ids; −1 for an unknown id."""
    if not isinstance(rows, dict):
        return rows[ids]
    return np.array([rows.get(id, -1) for id in ids.ravel().tolist()]).reshape(ids.shape)


@dataclass(frozen=True, eq=False)
class Workload:
    """Queries in random order, with the hits of exact search."""

    searcher: Searcher
    queries: Array
    own: Array | None
    """The id of each query if rows are used as queries: a row must not find itself."""
    k: int
    labels: _Labels | None
    groups: Indices | None = None
    """The group of each query, if they were given."""

    @property
    def count(self) -> int:
        return len(self.queries)

    @property
    def metric(self) -> Literal["recall", "mAP"]:
        """The quality that :meth:`worth` measures."""
        return "recall" if self.labels is None else "mAP"

    @cached_property
    def true(self) -> Hits:
        """The hits of exact search."""
        return self.find(None, self.k)

    @cached_property
    def base(self) -> Doubles:
        """The quality of exact search per query: recall 1, or its AP by labels."""
        return self.worth(self.true)

    def run(self, plan: Plan, part: slice) -> Doubles:
        """The recall, or the AP by labels, of ``plan`` for each query of ``part``."""
        return self.worth(self.find(plan, self.k, part), part)

    def find(self, plan: Plan | None, k: int, part: slice = _ALL) -> Hits:
        """The hits of ``plan`` for the queries of ``part``."""
        if self.own is None:
            return self.searcher.search(self.queries[part], k, plan)
        hits = self.searcher.search(self.queries[part], k + 1, plan)
        others = np.argsort(hits.ids == self.own[part, None], axis=1, kind="stable")[:, :k]   # the row itself is last
        return Hits(np.take_along_axis(hits.ids, others, 1), np.take_along_axis(hits.scores, others, 1))

    def worth(self, hits: Hits, part: slice = _ALL) -> Doubles:
        """The recall, or the AP by labels, of ``hits`` for each query of ``part``."""
        if self.labels is not None:
            return self.labels.select(part).worth(hits, self.k)
        found = (self.ranks(hits, part) < FAR).sum(axis=1)
        return np.asarray(found / np.isfinite(self.true.scores[part]).sum(axis=1))

    def ranks(self, hits: Hits, part: slice) -> Indices:
        """The rank of each true neighbour among the hits of the queries of ``part``, [queries, k]."""
        ranks, true = np.full((len(hits.ids), self.k), FAR), self.true.ids[part]
        for column in range(self.k):
            same = (hits.ids == true[:, column, None]) & np.isfinite(hits.scores)
            ranks[:, column] = np.where(same.any(axis=1), same.argmax(axis=1), FAR)
        return ranks


def workload_of(
    searcher: Searcher, queries: Any, k: int, labels: tuple[Any, Any] | None, standins: int, seed: int, groups: Any
) -> Workload:
    """Check queries, labels and groups, and shuffle the queries; without queries, take ``standins`` rows."""
    check_count("k", k, example=10)
    if k > _MOST_HITS:
        raise InputError(f"a plan is chosen for k of at most {_MOST_HITS:,}", got=k, cure="plan for a smaller k")
    most = searcher.count - (queries is None)
    if k > most:
        cure = f"pass k={most} or less" if most > 0 else "add vectors first"
        raise InputError(f"the index holds {searcher.count:,} vectors, too few to plan for k={k}", cure=cure)
    own = None
    if queries is None:
        own, queries = searcher.sample(min(standins, searcher.count), seed)
    vectors = as_queries(queries, searcher.nesting.dim)
    order = np.random.default_rng(seed).permutation(len(vectors))
    if own is not None:
        order = order[vectors[order].any(axis=1)]   # a zero vector cannot be a query
    checked = None if labels is None else _Labels.of(labels, len(vectors), searcher.count, own)
    if checked is not None:
        order = order[checked.totals[order] > 0]
        checked = checked.select(order)
    names = None
    if not isinstance(groups, bool):
        names = np.asarray(groups)
        if queries is None or names.shape != (len(vectors),):
            rule = "robust must be True, or name the group of each query"
            cure = f"pass queries and an array of {len(vectors)} names"
            raise InputError(rule, got=f"shape {names.shape}", cure=cure)
        names = np.unique(names[order], return_inverse=True)[1]
    return Workload(searcher, vectors[order], None if own is None else own[order], int(k), checked, names)
