"""Candidate plans: choose, from the tuning queries, which of thousands of plans the planner tests.

Each first stage runs once with a long shortlist. The ranks of the true neighbours in it give the recall of every keep;
their distances below the k-th best score give the recall of every margin. A neighbour that ranks high among all rows at
some dim ranks at least as high within any shortlist, so the same ranks bound the recall of later stages from below.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matryo.retrieve.plan.bounds import predicted_bound
from matryo.retrieve.plan.plan import Plan, Precision, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.retrieve.plan.choice import Cost
    from matryo.retrieve.plan.planner import Workload
    from matryo.retrieve.vectors.types import Bools, Doubles, Indices


FAR = int(np.iinfo(np.int64).max)
"""The rank of a row that is not in the list."""

_LONG = (1024, 4096)   # bounds on the shortlist of the first look, which is a fiftieth of the rows
_MISSES = (0.8, 0.6, 0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.017, 0.012, 0.008, 0.005, 0.003, 0.001, 0.0)
_RIVALS = 2   # first stages run per miss rate; more than one because costs are only estimates until then
_WIDER = (4.0, 2.0, 1.4)   # factors on the keeps of the cheapest plan that is expected to pass
_TIMED, _ROUNDS, _PATIENCE = 50, 3, 1.0   # timing: queries, rounds, and the most seconds per plan


class Trial(NamedTuple):
    """A plan that was run: its recall (or AP) per tuning query, and its cost per query."""

    plan: Plan
    worth: Doubles
    latency: float | None
    bytes: float
    mflops: float


@dataclass(frozen=True, eq=False)
class Look:
    """The outcome of one first stage, run on the tuning queries with a long shortlist."""

    opening: Plan
    ranks: Indices
    """The rank of each true neighbour, [queries, k]."""
    gaps: Doubles
    """How far each shortlisted row scores below the k-th best, [queries, keep]."""

    @property
    def needed(self) -> Doubles:
        """How far each true neighbour scores below the k-th best, [queries, k]."""
        there = self.ranks < FAR
        return np.where(there, np.take_along_axis(self.gaps, np.where(there, self.ranks, 0), 1), np.inf)

    def cuts(self) -> Iterator[tuple[Stage, Bools]]:
        """The first stage with each keep and margin, and which true neighbours survive it."""
        (first,), k, most = self.opening.stages, self.ranks.shape[1], self.gaps.shape[1]
        steps = range(1, 2 * math.ceil(math.log2(max(2, most / k))) + 1)
        keeps = np.unique([min(most, round(k * 2 ** (step / 2))) for step in steps]).tolist()
        for keep in keeps:
            yield replace(first, keep=keep), self.ranks < keep
        needed = self.needed
        for miss in _MISSES:
            least = float(np.quantile(needed, 1 - miss, method="higher"))
            if 0 < least < np.inf:
                digits = 1 - math.floor(math.log10(least))   # two significant digits
                margin = round(math.ceil(least * 10**digits) / 10**digits, max(0, digits))
                # A keep that suffices for 98 % of queries: a few are near everything and would keep all rows.
                near = np.quantile((self.gaps <= margin).sum(axis=1), 0.98)
                keep = keeps[min(int(np.searchsorted(keeps, near)), len(keeps) - 1)]
                yield replace(first, keep=keep, margin=margin), (needed <= margin) & (self.ranks < keep)

    def kept(self, first: Stage) -> int:
        """The mean number of rows that the first stage keeps."""
        if first.margin is None:
            return first.keep
        near = (self.gaps <= first.margin).sum(axis=1)
        # If the whole list is within the margin, more rows may be: assume the full keep.
        near = np.where(near == self.gaps.shape[1], first.keep, np.minimum(near, first.keep))
        return max(1, round(float(near.mean())))


class Candidates:
    """The search for plans to test, on the first ``tuning`` queries."""

    def __init__(self, workload: Workload, tuning: int, cost: Cost, bar: Any) -> None:
        self.workload, self.tuning, self.cost, self.bar = workload, tuning, cost, bar
        self.k, self.searcher, self.dims = workload.k, workload.searcher, workload.searcher.nesting.dims
        self._kept = cache(Look.kept)
        self.exact = Plan.single(self.dims[-1], k=self.k)
        openings = [plan for plan in self.searcher.openings if plan.ef is None or plan.ef > self.k]
        bar.total = len(openings)
        self.looks = {opening: self._look(opening) for opening in openings}

    def sequence(self, target: float, tests: int, confidence: float) -> list[Trial]:
        """Exact search, then plans from the safest to the cheapest, to be tested with ``tests`` queries.

        Before the cheapest plan that is expected to pass come wider versions of it, which find all that it finds. An
        unrelated plan that is dearer but hardly safer could only end the test too early. After it come the cheaper
        plans on the Pareto front.
        """
        (exact,) = self._run([self.exact])
        front: list[Trial] = []
        for trial in sorted(self._run(self._finalists(target)), key=self._price):
            if self._price(trial) < self._price(exact) and (not front or self._share(trial) > self._share(front[-1])):
                front.append(trial)
        if not front:
            return [exact]
        base = self.workload.base[: self.tuning]
        expected = [trial for trial in front if predicted_bound(trial.worth, base, tests, confidence) >= target]
        first = (expected or front[-1:])[0]
        plans = [widened(first.plan, factor) for factor in _WIDER]
        wider = self._run([plan for plan in dict.fromkeys(plans) if plan != first.plan])
        cheaper = front[: front.index(first) + 1]
        return self._timed([exact, *wider, *reversed(cheaper)])

    def guesses(self) -> Iterator[tuple[Plan, float]]:
        """Plans with the share of true neighbours that survive every shortlist, a lower bound on the recall."""
        k, full = self.k, self.dims[-1]
        alone = {(opening.stages[0].dim, opening.stages[0].precision): look.ranks
                 for opening, look in self.looks.items() if opening.probe is opening.ef is None}  # fmt: skip
        last = {dim: ranks < k for (dim, precision), ranks in alone.items() if precision == "full"}
        last |= {full: np.ones((self.tuning, k), np.bool_)}
        for look in self.looks.values():
            (first,) = look.opening.stages
            yield replace(look.opening, stages=(replace(first, keep=k),)), float((look.ranks < k).mean())
            for start, survivors in look.cuts():
                for dim, found in last.items():
                    if dim > first.dim or (dim == full and first.precision == "int8"):
                        yield replace(look.opening, stages=(start, Stage(dim, k))), float((survivors & found).mean())
                kept = self._kept(look, start)
                middles = [*self._middles(start, kept, list(alone))]
                if look.opening.probe is not None and first.precision == "int8":
                    middles += self._rungs(start, kept, list(alone))
                for stages, keeps in middles:
                    stay = [alone[stage.dim, stage.precision] < stage.keep for stage in keeps]
                    share = float(np.logical_and.reduce([survivors, *stay]).mean())
                    yield replace(look.opening, stages=(*stages, Stage(full, k))), share

    def _middles(
        self, start: Stage, kept: int, ranked: list[tuple[int, Precision]]
    ) -> Iterator[tuple[tuple[Stage, ...], tuple[Stage, ...]]]:
        """Stages before the last, and the middle ones among them: precision ladders and funnels."""
        full, k = self.dims[-1], self.k
        for dim, precision in ranked:
            if start.dim < dim <= min(4 * start.dim, full - 1) and start.precision in ("int8", precision):
                for keep in (kept // 2, kept // 4, kept // 8):
                    if keep > k:
                        middle = (Stage(dim, keep, precision),)
                        yield (start, *middle), middle
        if start.margin is None and start.dim < full:
            between = Plan.funnel(start.dim, full, keep=start.keep, k=k).stages[1:-1]
            if len(between) > 1 and all((stage.dim, stage.precision) in ranked for stage in between):
                yield (start, *between), between

    def _rungs(
        self, start: Stage, kept: int, ranked: list[tuple[int, Precision]]
    ) -> Iterator[tuple[tuple[Stage, ...], tuple[Stage, ...]]]:
        """Middle stages in int8 at any dim, which partitions have: few rows remain to be read in full precision."""
        full = self.dims[-1]
        last = Stage(full, max(self.k + 2, self.k * 3 // 2), "int8")
        if kept > last.keep:
            yield (start, last), ()
        for dim, precision in ranked:
            if precision == "full" and start.dim < dim <= min(4 * start.dim, full - 1):
                for keep in (kept // 2, kept // 4):
                    if keep > last.keep:
                        # Assume that int8 ranks about as well as full precision, whose ranks are known.
                        yield (start, Stage(dim, keep, "int8"), last), (Stage(dim, keep),)

    def _look(self, opening: Plan) -> Look:
        count = self.searcher.count - (self.workload.own is not None)
        # At most a quarter of a small index: a longer shortlist is hardly cheaper than exact search.
        most = min(count, max(16 * self.k, min(count // 4, int(np.clip(count // 50, *_LONG)))))
        keep = most if opening.ef is None else min(most, opening.ef - 1)   # stand-in queries search for k + 1
        plan = replace(opening, stages=(replace(opening.stages[0], keep=keep),))
        hits = self.workload.find(plan, keep, slice(self.tuning))
        self.bar.update()
        scores = hits.scores.astype(np.float64)
        with np.errstate(invalid="ignore"):
            gaps = scores[:, self.k - 1 : self.k] - scores   # −∞ if a guide found fewer than k rows
        gaps[np.isneginf(scores)] = np.inf
        return Look(opening, self.workload.ranks(hits, slice(self.tuning)), gaps)

    def _finalists(self, target: float) -> list[Plan]:
        """For each miss rate, the cheapest plans with different first stages."""
        # With labels, a plan that misses many neighbours may still have a good mAP.
        most = 1.0 if self.workload.labels is not None else max(_MISSES[-2], min(0.3, 10 * (1 - target)))
        plans, shares = zip(*self.guesses(), strict=True)
        prices, found = self._estimated(plans), np.array(shares)
        number = {opening: position for position, opening in enumerate(self.looks)}
        begins = np.array([number[_opening(plan)] for plan in plans])
        chosen: dict[Plan, None] = {}
        for miss in (miss for miss in _MISSES if miss <= most):
            good = np.flatnonzero(found >= 1 - miss - 1e-9)
            cheap = good[np.argsort(prices[good], kind="stable")]
            _, firsts = np.unique(begins[cheap], return_index=True)
            chosen |= dict.fromkeys(plans[position] for position in cheap[np.sort(firsts)[:_RIVALS]])
        return [plan for plan in chosen if plan != self.exact]

    def _estimated(self, plans: Sequence[Plan]) -> Doubles:
        if self.cost != "latency":
            return np.array([self._read(plan)[self.cost == "mflops"] for plan in plans])
        # First stages are timed. A later stage is modelled as a constant plus a rate times the bytes it reads.
        firsts = [replace(opening, stages=(replace(opening.stages[0], keep=self.k),)) for opening in self.looks]
        taken = dict(zip(self.looks, self._time(firsts), strict=True))
        start = min(taken, key=lambda opening: (opening.stages[0].dim == self.dims[-1], taken[opening]))
        few, many = (
            replace(start, stages=(replace(start.stages[0], keep=keep), *self.exact.stages))
            for keep in (self.k, self.looks[start].gaps.shape[1])
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
            trials.append(Trial(plan, self.workload.run(plan, slice(self.tuning)), None, *self._read(plan)))
            self.bar.update()
        return self._timed(trials)

    def _timed(self, trials: list[Trial]) -> list[Trial]:
        if self.cost != "latency":
            return trials
        taken = self._time([trial.plan for trial in trials])
        return [trial._replace(latency=latency) for trial, latency in zip(trials, taken, strict=True)]

    def _time(self, plans: Sequence[Plan]) -> list[float]:
        """Milliseconds per query, one at a time: the median over queries and rounds; plans alternate within a round."""
        queries = self.workload.queries[: min(_TIMED, self.tuning)]
        taken: list[list[float]] = [[] for _ in plans]
        for number in range(_ROUNDS + 1):
            for plan, times in zip(plans, taken, strict=True):
                for query in queries if number else queries[:2]:   # round 0 is the warm-up
                    if sum(times) > _PATIENCE and number:
                        break
                    start = time.perf_counter()
                    self.searcher.search(query[None], self.k, plan)
                    times.append(time.perf_counter() - start)
                if not number:
                    times.clear()
        return [1000 * float(np.median(times)) for times in taken]

    def _read(self, plan: Plan) -> tuple[float, float]:
        """Mean bytes and MFLOPs per query."""
        look, (first, *later) = self.looks.get(_opening(plan)), plan.stages
        if look is not None and later and first.margin is not None:
            first = replace(first, keep=max(self._kept(look, first), later[0].keep))
            plan = replace(plan, stages=(first, *later))
        return plan.bytes(self.searcher.count, self.searcher.dtype), plan.mflops(self.searcher.count)

    def _price(self, trial: Trial) -> float:
        return float(getattr(trial, self.cost))

    def _share(self, trial: Trial) -> float:
        return float(trial.worth.sum() / self.workload.base[: self.tuning].sum())


def widened(plan: Plan, factor: float) -> Plan:
    """``plan`` with its keeps, margins, probe and ef multiplied by ``factor``.

    >>> [stage.keep for stage in widened(Plan.of([(16, 100), (32, 40), (64, 10)]), factor=2).stages]
    [200, 80, 10]
    """
    *before, last = plan.stages
    wide = (
        replace(stage, keep=round(stage.keep * factor),
                margin=None if stage.margin is None else float(f"{stage.margin * factor:.3g}"))
        for stage in before
    )
    probe = None if plan.probe is None else min(1.0, plan.probe * factor)
    return Plan((*wide, last), probe, None if plan.ef is None else round(plan.ef * factor))


def _opening(plan: Plan) -> Plan:
    """The first stage alone, in the form that ``Searcher.openings`` lists."""
    return replace(plan, stages=(replace(plan.stages[0], keep=1, margin=None),))
