"""The planner: the cheapest plan whose recall reaches a target, with confidence, on queries it has not seen.

The queries are split in two. On the tuning queries, the planner ranks the true neighbours at each first stage. The
ranks give the recall of every keep and margin at once, so thousands of plans are compared and some dozens are run. The
Pareto-optimal ones are ordered from the safest to the cheapest. The test queries, which had no influence on that order,
test the plans in turn until one fails (fixed-sequence testing). The probability of a wrong guarantee is that of one
failed test, however many plans were compared.

>>> import tempfile
>>> from matryo.retrieve.index import Index
>>> index = Index.create(f"{tempfile.mkdtemp()}/mine", nesting=[8, 16, 32, 64])
>>> ids = index.add(np.random.default_rng(0).normal(size=(1200, 64)) * np.linspace(2, 0.1, 64))
>>> choice = choose(index, recall=0.95, cost="bytes")
>>> choice.met, choice.point.bytes < choice.frontier[0].bytes / 2
(True, True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np
from tqdm import tqdm

from matryo.errors import InputError
from matryo.metrics import average_precision
from matryo.nesting import Nesting
from matryo.retrieve.engines.execute import Hits
from matryo.retrieve.plan.bounds import best_stake, fewest_tests, lower_bound
from matryo.retrieve.plan.candidates import FAR, Candidates, Trial
from matryo.retrieve.plan.choice import Choice, Cost, Point
from matryo.retrieve.plan.plan import Plan, Stage, check_count
from matryo.retrieve.vectors.queries import as_queries

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Array, Doubles, Indices

_TUNING, _MOST = 0.25, 500   # the share of tuning queries, and the most of them
_STANDINS = 1000   # rows used as queries if there are none; more if the target needs more
_MOST_HITS = 1000   # the largest k: the planner compares each true neighbour with shortlists of 16 k rows
_ALL = slice(None)


class Searcher(Protocol):
    """An object that runs plans, such as an index."""

    @property
    def count(self) -> int:
        """The number of rows."""

    @property
    def nesting(self) -> Nesting: ...

    @property
    def dtype(self) -> str:
        """The dtype of stored vectors."""

    @property
    def openings(self) -> Sequence[Plan]:
        """The available first stages, each as a plan of one stage; see :func:`openings`."""

    def search(self, queries: Array, k: int, plan: Plan | None = None) -> Hits:
        """The best ``k`` rows per query; without a plan, by exact search at full dim."""

    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """Ids and vectors of ``count`` random rows."""


def openings(nesting: Nesting, int8: Sequence[int] = ()) -> tuple[Plan, ...]:
    """The first stages without a guide: each dim in full precision, and the dims of ``int8`` also in int8.

    >>> [plan.stages[0].dim for plan in openings(Nesting([8, 16, 32]), int8=[8])]
    [8, 16, 32, 8]
    """
    stages = [Stage(dim, 1) for dim in nesting.dims] + [Stage(dim, 1, "int8") for dim in int8]
    return tuple(Plan((stage,)) for stage in stages)


def choose(
    searcher: Searcher,
    queries: Any = None,
    *,
    recall: float = 0.99,
    k: int = 10,
    confidence: float = 0.95,
    cost: Cost = "latency",
    budget: float | None = None,
    labels: tuple[Any, Any] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Choice:
    """Choose the cheapest plan that finds at least ``recall`` of the hits of exact search at full dim.

    The guarantee is on the mean recall over queries like ``queries`` [n, d], with ``confidence``. Without queries,
    random rows are used instead, and a row is not counted as its own neighbour. ``cost`` is the quantity to minimise,
    and ``budget`` its limit per query: milliseconds on one thread, bytes read, or MFLOPs.

    ``labels`` is a pair: the labels of the queries (None without queries) and those of the rows (an array by row
    number, or a mapping by id). With it, the mAP@k of the plan must be at least ``recall`` times that of exact search.
    Queries whose label no row has are excluded.
    """
    _check(recall, confidence, cost, budget)
    fewest = fewest_queries(recall, confidence)
    workload = _workload(searcher, queries, k, labels, max(_STANDINS, 2 * fewest), seed)
    if workload.count < fewest:
        raise InputError(
            f"recall={recall:g} with {confidence:.0%} confidence needs at least {fewest:,} queries",
            got=workload.count,
            cure="pass more queries, lower recall or confidence, or use exact=True, which needs no plan",
        )
    tuning = _tuning(workload.count)
    if not (workload.base[:tuning].any() and workload.base[tuning:].any()):
        raise InputError("exact search must find rows with the labels of the queries", got="mAP 0", cure="check labels")
    with tqdm(desc="plan", unit="run", delay=2, disable=not progress) as bar:
        sequence = Candidates(workload, tuning, cost, bar).sequence(recall, workload.count - tuning, confidence)
        bar.total += len(sequence) - 1
        points = _tested(workload, tuning, sequence, recall, confidence, bar)
    cheapest = min((point for point in points if point.held), key=lambda point: point.cost(cost))
    return Choice(
        plan=cheapest.plan if budget is None or cheapest.cost(cost) <= budget else None,
        frontier=tuple(points),
        target=recall,
        k=workload.k,
        tuned_on=tuning,
        tested_on=workload.count - tuning,
        confidence=confidence,
        unit=cost,
        budget=budget,
        metric="recall" if labels is None else "mAP",
    )


def _tested(
    workload: Workload, tuning: int, sequence: Sequence[Trial], recall: float, confidence: float, bar: Any
) -> list[Point]:
    """Test the plans in order on the test queries; ``held`` is true up to the first failure."""
    exact, *others = sequence
    points = [Point(exact.plan, 1.0, 1.0, True, exact.latency, exact.bytes, exact.mflops)]
    tests = slice(tuning, workload.count)
    before, base = workload.base[:tuning], workload.base[tests]
    for trial in others:
        worth = workload.run(trial.plan, tests)
        stake = best_stake(trial.worth, before, len(base), confidence)   # from the tuning queries only
        lower = lower_bound(worth, base, stake, confidence)
        share, held = float(worth.sum() / base.sum()), points[-1].held and lower >= recall
        points.append(Point(trial.plan, share, lower, held, trial.latency, trial.bytes, trial.mflops))
        bar.update()
    return points


def fewest_queries(recall: float, confidence: float = 0.95) -> int:
    """The fewest queries for a guarantee: with fewer, not even a plan that misses nothing would pass.

    >>> fewest_queries(0.95), fewest_queries(0.99)
    (82, 418)
    """
    tests = fewest_tests(recall, confidence)
    return next(count for count in range(tests, 2 * tests + 2) if count - _tuning(count) >= tests)


def _tuning(count: int) -> int:
    return min(_MOST, round(_TUNING * count))


def _check(recall: float, confidence: float, cost: Any, budget: float | None) -> None:
    for name, value in (("recall", recall), ("confidence", confidence)):
        if not 0 < value < 1:
            percent = 1 < value < 100
            cure = f"write {value:g} % as {value / 100:g}" if percent else f"pass {name}=0.95; exact=True finds all"
            raise InputError(f"{name} must be between 0 and 1", got=value, cure=cure)
    if cost not in get_args(Cost):
        raise InputError(f"cost must be one of {', '.join(get_args(Cost))}", got=repr(cost), cure="try latency")
    if budget is not None and not budget > 0:
        raise InputError("budget must be above 0", got=budget, cure="pass None for no limit")


# ── queries, and the quality of their hits ────────────────────────────────────────────────────────────────────────


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

    @property
    def count(self) -> int:
        return len(self.queries)

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


def _workload(
    searcher: Searcher, queries: Any, k: int, labels: tuple[Any, Any] | None, standins: int, seed: int
) -> Workload:
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
    return Workload(searcher, vectors[order], None if own is None else own[order], int(k), checked)
