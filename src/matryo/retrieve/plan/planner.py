"""The planner: the cheapest plan whose recall holds, with confidence, on queries it did not see.

Learn, then test. Some queries, the tuning ones, show where in the order of each first stage their true neighbours
stand. That tells the recall of every keep and margin at once, so thousands of plans are weighed and some dozens are
run. Those that no other beats on these queries are put in order, from the safest to the cheapest. The other queries
had no say in any of this: they test the plans in that order, until one fails. The chance of promising too much is
then that of a single test going wrong (fixed-sequence testing), however many plans there were.

>>> random = np.random.default_rng(0)
>>> blocks = Blocks.of(random.normal(size=(1200, 64)) * np.linspace(2, 0.1, 64), Nesting([8, 16, 32, 64]))
>>> choice = choose(BlocksSearcher(blocks), recall=0.95, cost="bytes")
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
from matryo.retrieve.engines.execute import Engine, Hits, execute
from matryo.retrieve.plan.candidates import FAR, Candidates, Trial
from matryo.retrieve.plan.choice import Choice, Cost, Point, best_stake, fewest_tests, lower_bound
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import Metric
from matryo.retrieve.vectors.queries import as_queries

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Asking", "BlocksSearcher", "Searcher", "choose", "fewest_queries", "openings"]

_TUNING, _MOST = 0.25, 500   # the share of the queries that shape the plans, and how many at most
_STANDINS = 1000   # rows that stand in for queries, or more where the promise takes more
_ALL = slice(None)


class Searcher(Protocol):
    """What can run plans: an index, or bare blocks."""

    @property
    def count(self) -> int:
        """How many rows there are."""

    @property
    def nesting(self) -> Nesting: ...

    @property
    def dtype(self) -> str:
        """What full precision is stored as."""

    @property
    def openings(self) -> Sequence[Plan]:
        """The first stages that can be run, each as a plan of one stage; see :func:`openings`."""

    def search(self, queries: Array, k: int, plan: Plan | None = None) -> Hits:
        """The best ``k`` of each query; exactly, at full dim, without a plan."""

    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """So many rows drawn at random: ids and vectors."""


@dataclass(frozen=True, eq=False)
class BlocksSearcher:
    """Bare blocks, whose ids are row numbers."""

    blocks: Blocks
    metric: Metric = "cosine"
    engine: Engine | None = None

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.blocks.count

    @property
    def nesting(self) -> Nesting:
        """That of the blocks."""
        return self.blocks.nesting

    @property
    def dtype(self) -> str:
        """What the blocks are stored as."""
        return self.blocks.dtype

    @property
    def openings(self) -> Sequence[Plan]:
        """Every dim, and those with copies in int8 again."""
        return openings(self.nesting, int8=[self.nesting.dims[number] for number in self.blocks.int8])

    def search(self, queries: Array, k: int, plan: Plan | None = None) -> Hits:
        """The best ``k`` of each query."""
        full = Plan.single(self.nesting.dim, k=k)
        return Hits(*execute(self.blocks, queries, plan or full, k, self.metric, engine=self.engine))

    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """So many rows drawn at random: numbers and vectors."""
        rows = np.sort(np.random.default_rng(seed).choice(self.count, count, replace=False))
        return rows, self.blocks.rows(rows, self.nesting.dim)


def openings(
    nesting: Nesting, int8: Sequence[int] = (), probes: Sequence[float] = (), efs: Sequence[int] = ()
) -> tuple[Plan, ...]:
    """Every first stage: each dim in full precision, those of ``int8`` in 8 bits too, with and without each guide.

    >>> len(openings(Nesting([8, 16, 32]), int8=[8, 16], probes=[0.01, 0.1]))
    15
    """
    stages = [Stage(dim, 1) for dim in nesting.dims] + [Stage(dim, 1, "int8") for dim in int8]
    guides = [{}, *({"probe": probe} for probe in probes), *({"ef": ef} for ef in efs)]
    return tuple(Plan((stage,), **guide) for guide in guides for stage in stages)   # type: ignore[arg-type]


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
    """The cheapest plan that finds at least ``recall`` of what exact search at full dim finds.

    It holds in the mean over queries like the ``queries`` [n, d], with ``confidence``. Without any, rows stand in for
    queries, and none finds itself. ``cost`` says what is to be cheap, and ``budget`` how much of it a query may cost:
    milliseconds on one thread, bytes read or MFLOPs.

    With ``labels``, those of the queries (None without queries) and those of the rows (an array by row number, or a
    mapping by id), it is the plan's mAP@k that must be at least ``recall`` times that of exact search. Queries whose
    label no row has are left out.
    """
    _check(recall, confidence, cost, budget)
    fewest = fewest_queries(recall, confidence)
    asking = _ask(searcher, queries, k, labels, max(_STANDINS, 2 * fewest), seed)
    if asking.count < fewest:
        raise InputError(
            f"it takes {fewest:,} queries to promise a recall of {recall:g} with {confidence:.0%} confidence",
            got=asking.count,
            cure="give more, promise less, or search exactly, which needs no promise",
        )
    tuning = _tuning(asking.count)
    if not (asking.base[:tuning].any() and asking.base[tuning:].any()):
        raise InputError("exact search must find some of the labels", got="an mAP of 0", cure="check whose they are")
    with tqdm(desc="plan", unit="run", delay=2, disable=not progress) as bar:
        sequence = Candidates(asking, tuning, cost, bar).sequence(recall, asking.count - tuning, confidence)
        bar.total += len(sequence) - 1
        points = _tested(asking, tuning, sequence, recall, confidence, bar)
    cheapest = min((point for point in points if point.held), key=lambda point: point.cost(cost))
    return Choice(
        plan=cheapest.plan if budget is None or cheapest.cost(cost) <= budget else None,
        frontier=tuple(points),
        target=recall,
        k=asking.k,
        tuned_on=tuning,
        tested_on=asking.count - tuning,
        confidence=confidence,
        unit=cost,
        budget=budget,
        metric="recall" if labels is None else "mAP",
    )


def _tested(
    asking: Asking, tuning: int, sequence: Sequence[Trial], recall: float, confidence: float, bar: Any
) -> list[Point]:
    """Plans after the first, exact search, on the queries beyond the ``tuning`` ones: each holds until one fails."""
    exact, *others = sequence
    points = [Point(exact.plan, 1.0, 1.0, True, exact.latency, exact.bytes, exact.mflops)]
    tests = slice(tuning, asking.count)
    before, base = asking.base[:tuning], asking.base[tests]
    for trial in others:
        worth = asking.run(trial.plan, tests)
        stake = best_stake(trial.worth, before, len(base), confidence)   # learned from other queries
        lower = lower_bound(worth, base, stake, confidence)
        share, held = float(worth.sum() / base.sum()), points[-1].held and lower >= recall
        points.append(Point(trial.plan, share, lower, held, trial.latency, trial.bytes, trial.mflops))
        bar.update()
    return points


def fewest_queries(recall: float, confidence: float = 0.95) -> int:
    """How many queries it takes: with fewer, not even a plan that misses nothing could be promised.

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
            raise InputError(f"{name} must lie between 0 and 1", got=value, cure="only exact search is certain")
    if cost not in get_args(Cost):
        raise InputError(f"cost must be one of {', '.join(get_args(Cost))}", got=repr(cost), cure="pick one")
    if budget is not None and not budget > 0:
        raise InputError("budget must be above 0", got=budget, cure="None sets no limit")


# ── what is asked, and what an answer is worth ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Labels:
    """A number for each label: of the queries, and of the rows by id."""

    of_queries: Indices
    of_rows: Indices | dict[Any, int]
    totals: Indices
    """How many rows have the label of each query, itself not counted."""

    @classmethod
    def of(cls, labels: tuple[Any, Any], count: int, rows: int, own: Array | None) -> _Labels:
        asked, given = labels
        keys, values = (list(given), list(given.values())) if isinstance(given, Mapping) else (None, given)
        asked, values = np.asarray([] if asked is None else asked), np.asarray(values)
        if values.shape != (rows,) or (own is None and asked.shape != (count,)):
            raise InputError(
                f"labels must be one for each of the {count} queries, and one for each of the {rows} rows",
                got=f"{asked.shape} and {values.shape}",
                cure="pass (labels of the queries, labels of the rows)",
            )
        names, numbers = np.unique(values, return_inverse=True)
        of_rows = numbers if keys is None else dict(zip(keys, numbers.tolist(), strict=True))
        if own is None:
            found = np.minimum(np.searchsorted(names, asked), len(names) - 1)
            known = np.where(names[found] == asked, found, -1)
        else:
            known = _numbered(of_rows, own)
        totals = np.append(np.bincount(numbers), 0)[known] - (own is not None)
        return cls(known, of_rows, totals)

    def select(self, queries: Indices | slice) -> _Labels:
        return _Labels(self.of_queries[queries], self.of_rows, self.totals[queries])

    def worth(self, hits: Hits, k: int) -> Doubles:
        relevant = _numbered(self.of_rows, hits.ids) == self.of_queries[:, None]
        return average_precision(relevant & np.isfinite(hits.scores), self.totals, k)


def _numbered(rows: Indices | dict[Any, int], ids: Array) -> Indices:
    """The labels of the rows with these ids; −1 where there is none."""
    if not isinstance(rows, dict):
        return rows[ids]
    return np.array([rows.get(one, -1) for one in ids.ravel().tolist()]).reshape(ids.shape)


@dataclass(frozen=True, eq=False)
class Asking:
    """Queries in random order, and what exact search finds for them."""

    searcher: Searcher
    queries: Array
    own: Array | None
    """The id of each, where rows stand in for queries: none finds itself."""
    k: int
    labels: _Labels | None

    @property
    def count(self) -> int:
        return len(self.queries)

    @cached_property
    def true(self) -> Hits:
        """What exact search finds."""
        return self.find(None, self.k)

    @cached_property
    def base(self) -> Doubles:
        """What that is worth, for each query."""
        return self.worth(self.true)

    def run(self, plan: Plan, some: slice) -> Doubles:
        """What ``plan`` is worth for some of the queries, each."""
        return self.worth(self.find(plan, self.k, some), some)

    def find(self, plan: Plan | None, k: int, some: slice = _ALL) -> Hits:
        """What ``plan`` finds for some of the queries."""
        if self.own is None:
            return self.searcher.search(self.queries[some], k, plan)
        hits = self.searcher.search(self.queries[some], k + 1, plan)
        others = np.argsort(hits.ids == self.own[some, None], axis=1, kind="stable")[:, :k]   # itself comes last
        return Hits(np.take_along_axis(hits.ids, others, 1), np.take_along_axis(hits.scores, others, 1))

    def worth(self, hits: Hits, some: slice = _ALL) -> Doubles:
        """The recall, or the AP by labels, of some of the queries."""
        if self.labels is not None:
            return self.labels.select(some).worth(hits, self.k)
        found = (self.places(hits, some) < FAR).sum(axis=1)
        return np.asarray(found / np.isfinite(self.true.scores[some]).sum(axis=1))

    def places(self, hits: Hits, some: slice) -> Indices:
        """Where among the hits of some of the queries each true neighbour stands, [queries, k]."""
        found, true = np.full((len(hits.ids), self.k), FAR), self.true.ids[some]
        for column in range(self.k):
            same = (hits.ids == true[:, column, None]) & np.isfinite(hits.scores)
            found[:, column] = np.where(same.any(axis=1), same.argmax(axis=1), FAR)
        return found


def _ask(
    searcher: Searcher, queries: Any, k: int, labels: tuple[Any, Any] | None, standins: int, seed: int
) -> Asking:
    most = searcher.count - (queries is None)
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= most:
        raise InputError(f"k must be an integer in 1 … {most}, the rows to find", got=repr(k), cure="ask for fewer")
    own = None
    if queries is None:
        own, queries = searcher.sample(min(standins, searcher.count), seed)
    given = as_queries(queries, searcher.nesting.dim)
    order = np.random.default_rng(seed).permutation(len(given))
    if own is not None:
        order = order[given[order].any(axis=1)]   # a row of zeros is no query
    known = None if labels is None else _Labels.of(labels, len(given), searcher.count, own)
    if known is not None:
        order = order[known.totals[order] > 0]
        known = known.select(order)
    return Asking(searcher, given[order], None if own is None else own[order], int(k), known)
