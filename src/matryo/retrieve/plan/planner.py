"""The planner: the cheapest plan whose recall reaches a target, with confidence, on queries it has not seen.

The queries are split in two. On the tuning queries, the planner looks for plans that are expected to reach the target:
plans that follow a guide by running them (:mod:`matryo.retrieve.plan.guided`), others by the ranks of the true
neighbours at each first stage (:mod:`matryo.retrieve.plan.candidates`). Plans around the cheapest one are ordered from
the safest to the cheapest. The test queries, which had no influence on that order, test the plans in turn until one
fails (fixed-sequence testing). The probability of a wrong guarantee is that of one failed test, however many plans were
compared.

>>> import tempfile
>>> from matryo.retrieve.index import Index
>>> index = Index.create(f"{tempfile.mkdtemp()}/mine", nesting=[8, 16, 32, 64])
>>> ids = index.add(np.random.default_rng(0).normal(size=(1200, 64)) * np.linspace(2, 0.1, 64))
>>> choice = choose(index, recall=0.95, cost="bytes")
>>> choice.met, choice.point.bytes < choice.frontier[0].bytes / 2
(True, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from matryo.errors import InputError
from matryo.progress import tqdm
from matryo.retrieve.guides.partition.means import find_means, nearest_mean
from matryo.retrieve.plan.bounds import fewest_tests
from matryo.retrieve.plan.candidates import Candidates
from matryo.retrieve.plan.choice import Choice, Cost, Point
from matryo.retrieve.plan.guided import GuidedPlans
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.plan.promise import Promise
from matryo.retrieve.plan.trials import Goal, Trial, Trials
from matryo.retrieve.plan.workload import Workload, workload_of

if TYPE_CHECKING:
    from matryo.retrieve.plan.searcher import Searcher
    from matryo.retrieve.vectors.types import Indices

_TUNING, _MOST = 0.25, 500   # the share of tuning queries, and the most of them
_STANDINS = 2000   # rows used as queries if there are none; more if the target needs more
_MOST_GROUPS = 8   # of similar queries
_SHOWN_FAILURES = 2   # plans that are tested beyond the first failure, to be shown


def choose(searcher: Searcher, queries: Any = None, *, recall: float = 0.99, **settings: Any) -> Choice:
    """Choose the cheapest plan that finds at least ``recall`` of the hits of exact search at full dim.

    See :func:`choose_each`, whose other arguments this takes.
    """
    return choose_each(searcher, queries, recalls=[recall], **settings)[0]


def choose_each(
    searcher: Searcher,
    queries: Any = None,
    *,
    recalls: Sequence[float],
    k: int = 10,
    confidence: float = 0.95,
    cost: Cost = "latency",
    budget: float | None = None,
    labels: tuple[Any, Any] | None = None,
    robust: Any = False,
    seed: int = 0,
    progress: bool = True,
) -> list[Choice]:
    """Choose a plan for each of ``recalls``: the cheapest that finds this share of the hits of exact search.

    The guarantee is on the mean recall over queries like ``queries`` [n, d], with ``confidence``. Without queries,
    random rows are used instead, and a row is not counted as its own neighbour. ``cost`` is the quantity to minimise,
    and ``budget`` its limit per query: milliseconds on one thread, bytes read, or MFLOPs.

    ``labels`` is a pair: the labels of the queries (None without queries) and those of the rows (an array by row
    number, or a mapping by id). With it, the mAP@k of the plan must be at least the recall times that of exact search.
    Queries whose label no row has are excluded.

    With ``robust``, the guarantee is on the mean over each group of queries: of groups of similar queries (True), or of
    the groups that an array names, one entry per query.
    """
    for recall in recalls:
        _check(recall, confidence, cost, budget)
    fewest = fewest_queries(max(recalls), confidence)
    with tqdm(desc="plan: exact hits", unit="run", total=0, delay=2, disable=not progress) as bar:
        workload = workload_of(searcher, queries, k, labels, max(_STANDINS, 5 * fewest), seed, robust)
        if workload.count < fewest:
            raise InputError(
                f"recall={max(recalls):g} with {confidence:.0%} confidence needs at least {fewest:,} queries",
                got=workload.count,
                cure="pass more queries, lower recall or confidence, or use exact=True, which needs no plan",
            )
        tuning = _tuning(workload.count)
        groups = _groups(workload, tuning, robust, max(recalls), confidence)
        if not (workload.base[:tuning].any() and workload.base[tuning:].any()):
            rule = "exact search must find rows with the labels of the queries"
            raise InputError(rule, got="mAP 0", cure="check labels")
        search = _Search(Trials(workload, tuning, cost, bar))
        choices = []
        for recall in recalls:
            goal = Goal(recall, confidence, workload.base, groups, tuning)
            points = search.tested(goal)
            cheapest = min((point for point in reversed(points) if point.held), key=lambda point: point.cost(cost))
            within = budget is None or cheapest.cost(cost) <= budget
            choices.append(Choice(
                plan=_promised(cheapest.plan, workload, goal) if within else None,
                frontier=tuple(points),
                target=recall,
                k=workload.k,
                tuned_on=tuning,
                tested_on=workload.count - tuning,
                confidence=confidence,
                unit=cost,
                budget=budget,
                metric=workload.metric,
                from_rows=workload.own is not None,
            ))  # fmt: skip
    return choices


class _Search:
    """The search for plans: those that follow a guide, and the others where no guide can be faster."""

    def __init__(self, trials: Trials) -> None:
        self.trials, self.workload = trials, trials.workload
        openings = self.workload.searcher.openings
        self.guided = [GuidedPlans(opening, trials) for opening in openings if not opening.probe is opening.ef is None]
        # Scans of short dims read fewer bytes than some guides, but take longer.
        self.unguided = None if self.guided and trials.cost == "latency" else Candidates(trials)

    def tested(self, goal: Goal) -> list[Point]:
        """Exact search and a chain of plans, tested in order; ``held`` is true up to the first failure."""
        bar, trials = self.trials.bar, self.trials
        bar.set_description(f"plan {goal.target:g}: tuning")
        (exact,) = trials.run([Plan.single(self.workload.searcher.nesting.dim, k=self.workload.k)])
        chains = [guided.chain(goal) for guided in self.guided]
        if self.unguided is not None:
            chains.append(self.unguided.chain(goal, exact))
        found = [chain for chain in chains if chain is not None]
        plans = min(found, key=lambda chain: trials.price(chain[0]))[1] if found else []
        read = trials.read if self.unguided is None else self.unguided.read
        chosen = trials.run([exact.plan, *(plan for plan in plans if plan != exact.plan)], read)
        if trials.cost == "latency":
            chosen = _steady(chosen)
        bar.set_description(f"plan {goal.target:g}: testing")
        return _tested(self.workload, goal, chosen, trials.price, bar)


def _promised(plan: Plan, workload: Workload, goal: Goal) -> Plan:
    """``plan`` with its promise; that of exact search has no scores, because it holds for all queries."""
    is_exact = plan == Plan.single(workload.searcher.nesting.dim, k=workload.k)
    groups = []
    if not is_exact:
        scores = workload.find(plan, workload.k).scores[:, -1]
        groups = [scores[goal.groups == group] for group in range(int(goal.groups.max()) + 1)]
    fields = {"recall": goal.target, "k": workload.k, "confidence": goal.confidence, "metric": workload.metric}
    return replace(plan, promise=Promise.of(groups, **fields))


def _steady(chosen: list[Trial]) -> list[Trial]:
    """The trials with latencies that do not rise along the chain: each plan does less work than the one before."""
    exact, *chain = chosen
    latencies = np.minimum.accumulate(np.array([trial.latency for trial in chain], np.float64))
    return [exact, *(trial._replace(latency=float(value)) for trial, value in zip(chain, latencies, strict=True))]


def _tested(workload: Workload, goal: Goal, sequence: list[Trial], price: Any, bar: Any) -> list[Point]:
    exact, *others = sequence
    points = [Point(exact.plan, 1.0, 1.0, True, exact.latency, exact.bytes, exact.mflops)]
    tests = slice(goal.tuning, workload.count)
    base, failures = workload.base[tests], 0
    for trial in others:
        if price(trial) >= price(exact) and points[-1].held:
            continue   # exact search is better; known before the test, so the guarantee does not depend on it
        worth = workload.run(trial.plan, tests)
        lower = goal.lower(trial.worth, worth)
        share, held = float(worth.sum() / base.sum()), points[-1].held and lower >= goal.target
        points.append(Point(trial.plan, share, lower, held, trial.latency, trial.bytes, trial.mflops))
        bar.update()
        failures += not held
        if failures > _SHOWN_FAILURES:
            break
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


def _groups(workload: Workload, tuning: int, robust: Any, recall: float, confidence: float) -> Indices:
    """The group of each query, each large enough for the test."""
    least = fewest_tests(recall, confidence)

    def smallest(groups: Indices) -> int:
        parts = groups[:tuning], groups[tuning:]
        sizes = [np.bincount(part, minlength=int(groups.max(initial=0)) + 1).min() for part in parts]
        return int(min(sizes[1], least if sizes[0] else 0))

    if workload.groups is not None:
        if smallest(workload.groups) < least:
            rule = f"each group must have at least {fewest_queries(recall, confidence):,} queries for recall={recall:g}"
            raise InputError(rule, cure="pass more queries, merge groups, or lower recall")
        return workload.groups
    if robust is True:
        queries = workload.queries / np.maximum(np.linalg.norm(workload.queries, axis=1, keepdims=True), 1e-30)
        for count in range(_MOST_GROUPS, 1, -1):
            means = find_means(queries.astype(np.float32), count, round_=True, rng=np.random.default_rng(0))
            groups = nearest_mean(queries.astype(np.float32), means, round_=True)
            if smallest(groups) >= least:
                return groups
        rule = f"robust=True needs at least two groups of {fewest_queries(recall, confidence):,} similar queries"
        raise InputError(rule, got=f"{workload.count:,} queries", cure="pass more queries, or lower recall")
    return np.zeros(workload.count, np.int64)
