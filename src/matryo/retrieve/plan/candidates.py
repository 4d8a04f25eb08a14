"""Candidates of a planner: which of thousands of plans are worth a test, by what the tuning queries show.

Each first stage is run once with a generous keep. Where the true neighbours stand in its order tells the recall of
every keep; how far below the k-th best they score, that of every margin. A neighbour that is among the best of all rows
at some dim is among the best of any shortlist too, so the same orders tell what later stages keep, at least.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.retrieve.plan.choice import predicted_bound
from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.retrieve.plan.choice import Cost
    from matryo.retrieve.plan.plan import Precision
    from matryo.retrieve.plan.planner import Asking

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["FAR", "Candidates", "Look", "Trial"]

FAR = int(np.iinfo(np.int64).max)
"""The place of a row that is not there."""

_GENEROUS = (1024, 4096)   # the keep with which first stages are looked at: a fiftieth of the rows, if in this range
_MISSES = (0.8, 0.6, 0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.017, 0.012, 0.008, 0.005, 0.003, 0.001, 0.0)
_RIVALS = 2   # first stages tried for each of these, as what they cost is only estimated before
_WIDER = (4.0, 2.0, 1.4)   # times the keeps of the cheapest plan that seems sure
_TIMED, _ROUNDS, _PATIENCE = 50, 3, 1.0   # queries, times each, and seconds after which a plan is timed no more


class Trial(NamedTuple):
    """A plan that was run: what it is worth for each tuning query, and what it costs one."""

    plan: Plan
    worth: Doubles
    latency: float | None
    bytes: float
    mflops: float


@dataclass(frozen=True, eq=False)
class Look:
    """What a first stage with a generous keep shows of the tuning queries."""

    opening: Plan
    places: Indices
    """Where each true neighbour stands, [queries, k]."""
    falls: Doubles
    """How far each of those kept is below the k-th best, [queries, keep]."""

    @property
    def needs(self) -> Doubles:
        """How far below the k-th best each true neighbour is."""
        there = self.places < FAR
        return np.where(there, np.take_along_axis(self.falls, np.where(there, self.places, 0), 1), np.inf)

    def cuts(self) -> Iterator[tuple[Stage, Bools]]:
        """The first stage with every keep and margin, and which true neighbours each leaves in."""
        (first,), k, most = self.opening.stages, self.places.shape[1], self.falls.shape[1]
        steps = range(1, 2 * math.ceil(math.log2(max(2, most / k))) + 1)
        keeps = np.unique([min(most, round(k * 2 ** (step / 2))) for step in steps]).tolist()
        for keep in keeps:
            yield replace(first, keep=keep), self.places < keep
        needs = self.needs
        for miss in _MISSES:
            least = float(np.quantile(needs, 1 - miss, method="higher"))
            if 0 < least < np.inf:
                digits = 1 - math.floor(math.log10(least))   # two that count
                margin = round(math.ceil(least * 10**digits) / 10**digits, max(0, digits))
                # A keep for nearly all queries: the few that are alike to everything would have no end.
                near = np.quantile((self.falls <= margin).sum(axis=1), 0.98)
                keep = keeps[min(int(np.searchsorted(keeps, near)), len(keeps) - 1)]
                yield replace(first, keep=keep, margin=margin), (needs <= margin) & (self.places < keep)

    def kept(self, first: Stage) -> int:
        """How many rows a first stage keeps, in the mean."""
        if first.margin is None:
            return first.keep
        near = (self.falls <= first.margin).sum(axis=1)
        # Where all that was looked at is near, there may be more.
        near = np.where(near == self.falls.shape[1], first.keep, np.minimum(near, first.keep))
        return max(1, round(float(near.mean())))


class Candidates:
    """The search for plans worth a test, on the first ``tuning`` queries."""

    def __init__(self, asking: Asking, tuning: int, cost: Cost, bar: Any) -> None:
        self.asking, self.tuning, self.cost, self.bar = asking, tuning, cost, bar
        self.k, self.searcher, self.dims = asking.k, asking.searcher, asking.searcher.nesting.dims
        self._kept = cache(Look.kept)
        self.exact = Plan.single(self.dims[-1], k=self.k)
        openings = [plan for plan in self.searcher.openings if plan.ef is None or plan.ef > self.k]
        bar.total = len(openings)
        self.looks = {opening: self._look(opening) for opening in openings}

    def sequence(self, target: float, tests: int, confidence: float) -> list[Trial]:
        """Exact search, and then plans from the safest to the cheapest, to be tested with so many queries.

        The cheapest plan that seems sure to pass comes after wider ones of its kind, which miss nothing that it finds:
        a rival that costs more and is hardly safer could only stop the test too early. Those that are cheaper follow,
        as far as no other beats them.
        """
        (exact,) = self._run([self.exact])
        front: list[Trial] = []
        for trial in sorted(self._run(self._finalists(target)), key=self._price):
            if self._price(trial) < self._price(exact) and (not front or self._share(trial) > self._share(front[-1])):
                front.append(trial)
        if not front:
            return [exact]
        base = self.asking.base[: self.tuning]
        sure = [one for one in front if predicted_bound(one.worth, base, tests, confidence) >= target] or front[-1:]
        plans = [widened(sure[0].plan, by) for by in _WIDER]
        wider = self._run([plan for plan in dict.fromkeys(plans) if plan != sure[0].plan])
        cheaper = front[: front.index(sure[0]) + 1]
        return self._timed([exact, *wider, *reversed(cheaper)])

    def guesses(self) -> Iterator[tuple[Plan, float]]:
        """Plans, with the share of the true neighbours that stay in every shortlist: at least what the plan finds."""
        k, full = self.k, self.dims[-1]
        alone = {(opening.stages[0].dim, opening.stages[0].precision): look.places
                 for opening, look in self.looks.items() if opening.probe is opening.ef is None}  # fmt: skip
        last = {dim: places < k for (dim, precision), places in alone.items() if precision == "full"}
        last |= {full: np.ones((self.tuning, k), np.bool_)}
        for look in self.looks.values():
            (first,) = look.opening.stages
            yield replace(look.opening, stages=(replace(first, keep=k),)), float((look.places < k).mean())
            for start, left in look.cuts():
                for dim, found in last.items():
                    if dim > first.dim or (dim == full and first.precision == "int8"):
                        yield replace(look.opening, stages=(start, Stage(dim, k))), float((left & found).mean())
                kept = self._kept(look, start)
                middles = [*self._middles(start, kept, list(alone))]
                if look.opening.probe is not None and first.precision == "int8":
                    middles += self._rungs(start, kept, list(alone))
                for stages, keeps in middles:
                    stay = [alone[stage.dim, stage.precision] < stage.keep for stage in keeps]
                    share = float(np.logical_and.reduce([left, *stay]).mean())
                    yield replace(look.opening, stages=(*stages, Stage(full, k))), share

    def _middles(
        self, start: Stage, kept: int, known: list[tuple[int, Precision]]
    ) -> Iterator[tuple[tuple[Stage, ...], tuple[Stage, ...]]]:
        """Stages before the last, and those among them that were not the first: ladders of precision, and funnels."""
        full, k = self.dims[-1], self.k
        for dim, precision in known:
            if start.dim < dim <= min(4 * start.dim, full - 1) and start.precision in ("int8", precision):
                for keep in (kept // 2, kept // 4, kept // 8):
                    if keep > k:
                        middle = (Stage(dim, keep, precision),)
                        yield (start, *middle), middle
        if start.margin is None and start.dim < full:
            between = Plan.funnel(start.dim, full, keep=start.keep, k=k).stages[1:-1]
            if len(between) > 1 and all((stage.dim, stage.precision) in known for stage in between):
                yield (start, *between), between

    def _rungs(
        self, start: Stage, kept: int, known: list[tuple[int, Precision]]
    ) -> Iterator[tuple[tuple[Stage, ...], tuple[Stage, ...]]]:
        """The same with partitions, which hold all columns in 8 bits: few rows are left to be read in full."""
        full = self.dims[-1]
        last = Stage(full, max(self.k + 2, self.k * 3 // 2), "int8")
        if kept > last.keep:
            yield (start, last), ()
        for dim, precision in known:
            if precision == "full" and start.dim < dim <= min(4 * start.dim, full - 1):
                for keep in (kept // 2, kept // 4):
                    if keep > last.keep:
                        # In 8 bits about as good as in full precision, where it was looked at.
                        yield (start, Stage(dim, keep, "int8"), last), (Stage(dim, keep),)

    def _look(self, opening: Plan) -> Look:
        count = self.searcher.count - (self.asking.own is not None)
        # Of few rows a quarter: to keep more is hardly cheaper than exact search.
        most = min(count, max(16 * self.k, min(count // 4, int(np.clip(count // 50, *_GENEROUS)))))
        keep = most if opening.ef is None else min(most, opening.ef - 1)   # one more is asked for where rows stand in
        generous = replace(opening, stages=(replace(opening.stages[0], keep=keep),))
        hits = self.asking.find(generous, keep, slice(self.tuning))
        self.bar.update()
        scores = hits.scores.astype(np.float64)
        with np.errstate(invalid="ignore"):
            falls = scores[:, self.k - 1 : self.k] - scores   # −∞ where a guide led to fewer than k
        falls[np.isneginf(scores)] = np.inf
        return Look(opening, self.asking.places(hits, slice(self.tuning)), falls)

    def _finalists(self, target: float) -> list[Plan]:
        """For each share of misses, the cheapest plans that begin in different ways."""
        # By labels, a plan may be good that misses much.
        most = 1.0 if self.asking.labels is not None else max(_MISSES[-2], min(0.3, 10 * (1 - target)))
        plans, shares = zip(*self.guesses(), strict=True)
        prices, found = self._estimated(plans), np.array(shares)
        number = {opening: place for place, opening in enumerate(self.looks)}
        begins = np.array([number[_opening(plan)] for plan in plans])
        chosen: dict[Plan, None] = {}
        for miss in (miss for miss in _MISSES if miss <= most):
            good = np.flatnonzero(found >= 1 - miss - 1e-9)
            cheap = good[np.argsort(prices[good], kind="stable")]
            _, firsts = np.unique(begins[cheap], return_index=True)
            chosen |= dict.fromkeys(plans[place] for place in cheap[np.sort(firsts)[:_RIVALS]])
        return [plan for plan in chosen if plan != self.exact]

    def _estimated(self, plans: Sequence[Plan]) -> Doubles:
        if self.cost != "latency":
            return np.array([self._read(plan)[self.cost == "mflops"] for plan in plans])
        # What the first stage takes is measured. A later one takes some time by itself, and more by its bytes.
        firsts = [replace(opening, stages=(replace(opening.stages[0], keep=self.k),)) for opening in self.looks]
        taken = dict(zip(self.looks, self._time(firsts), strict=True))
        start = min(taken, key=lambda opening: (opening.stages[0].dim == self.dims[-1], taken[opening]))
        few, many = (
            replace(start, stages=(replace(start.stages[0], keep=keep), *self.exact.stages))
            for keep in (self.k, self.looks[start].falls.shape[1])
        )
        short, long = self._time([few, many])
        stage, rate = max(0.0, short - taken[start]), max(0.0, long - short) / max(1.0, self._later(many))
        return np.array([
            taken[_opening(plan)] + stage * (len(plan.stages) - 1) + rate * self._later(plan) for plan in plans
        ])  # fmt: skip

    def _later(self, plan: Plan) -> float:
        return self._read(plan)[0] - self._read(replace(plan, stages=plan.stages[:1]))[0]

    def _run(self, plans: Sequence[Plan]) -> list[Trial]:
        self.bar.total += len(plans)
        trials = []
        for plan in plans:
            trials.append(Trial(plan, self.asking.run(plan, slice(self.tuning)), None, *self._read(plan)))
            self.bar.update()
        return self._timed(trials)

    def _timed(self, trials: list[Trial]) -> list[Trial]:
        if self.cost != "latency":
            return trials
        taken = self._time([trial.plan for trial in trials])
        return [trial._replace(latency=latency) for trial, latency in zip(trials, taken, strict=True)]

    def _time(self, plans: Sequence[Plan]) -> list[float]:
        """Milliseconds a query, one at a time: the median over queries and rounds, in which the plans take turns."""
        queries = self.asking.queries[: min(_TIMED, self.tuning)]
        taken: list[list[float]] = [[] for _ in plans]
        for number in range(_ROUNDS + 1):
            for plan, times in zip(plans, taken, strict=True):
                for query in queries if number else queries[:2]:   # the first round warms up
                    if sum(times) > _PATIENCE and number:
                        break
                    start = time.perf_counter()
                    self.searcher.search(query[None], self.k, plan)
                    times.append(time.perf_counter() - start)
                if not number:
                    times.clear()
        return [1000 * float(np.median(times)) for times in taken]

    def _read(self, plan: Plan) -> tuple[float, float]:
        """Bytes and MFLOPs a query, in the mean."""
        look, (first, *later) = self.looks.get(_opening(plan)), plan.stages
        if look is not None and later and first.margin is not None:
            first = replace(first, keep=max(self._kept(look, first), later[0].keep))
            plan = replace(plan, stages=(first, *later))
        return plan.bytes(self.searcher.count, self.searcher.dtype), plan.mflops(self.searcher.count)

    def _price(self, trial: Trial) -> float:
        return float(getattr(trial, self.cost))

    def _share(self, trial: Trial) -> float:
        return float(trial.worth.sum() / self.asking.base[: self.tuning].sum())


def widened(plan: Plan, by: float) -> Plan:
    """The same plan with ``by`` times the keeps, margin and reach of its guide.

    >>> [stage.keep for stage in widened(Plan.of([(16, 100), (32, 40), (64, 10)]), by=2).stages]
    [200, 80, 10]
    """
    *before, last = plan.stages
    wide = (
        replace(one, keep=round(one.keep * by), margin=None if one.margin is None else float(f"{one.margin * by:.3g}"))
        for one in before
    )
    probe = None if plan.probe is None else min(1.0, plan.probe * by)
    return Plan((*wide, last), probe, None if plan.ef is None else round(plan.ef * by))


def _opening(plan: Plan) -> Plan:
    """The first stage by itself, as a searcher lists it."""
    return replace(plan, stages=(replace(plan.stages[0], keep=1, margin=None),))
