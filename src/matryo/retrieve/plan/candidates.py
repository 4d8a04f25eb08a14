"""Candidate plans without a guide: choose, from the tuning queries, which of thousands of plans the planner tests.

Each first stage runs once with a long shortlist. The ranks of the true neighbours in it give the recall of every keep;
their distances below the k-th best score give the recall of every margin. A neighbour that ranks high among all rows at
some dim ranks at least as high within any shortlist, so the same ranks bound the recall of later stages from below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.plan.plan import Plan, Precision, Stage
from matryo.retrieve.plan.trials import Trial, widened
from matryo.retrieve.plan.workload import FAR

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.retrieve.plan.trials import Goal, Trials
    from matryo.retrieve.vectors.types import Bools, Doubles, Indices


_LONG = (1024, 4096)   # bounds on the shortlist of the first look, which is a fiftieth of the rows
_MISSES = (0.8, 0.6, 0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.017, 0.012, 0.008, 0.005, 0.003, 0.001, 0.0)
_RIVALS = 2   # first stages run per miss rate; more than one because costs are only estimates until then
_WIDER = (4.0, 2.0, 1.4)   # factors on the keeps of the cheapest plan that is expected to pass


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
    """The search for plans without a guide."""

    def __init__(self, trials: Trials) -> None:
        self.trials, self.workload, self.tuning = trials, trials.workload, trials.tuning
        self.k, self.searcher, self.dims = self.workload.k, self.workload.searcher, self.workload.searcher.nesting.dims
        self._kept = cache(Look.kept)
        self.exact = Plan.single(self.dims[-1], k=self.k)
        openings = [plan for plan in self.searcher.openings if plan.probe is plan.ef is None]
        trials.bar.total += len(openings)
        self.looks = {opening: self._look(opening) for opening in openings}

    def chain(self, goal: Goal, exact: Trial) -> tuple[Trial, list[Plan]] | None:
        """The cheapest plan that is expected to pass, and plans from the safest to the cheapest.

        Before the cheapest plan that is expected to pass come wider versions of it, which find all that it finds. An
        unrelated plan that is dearer but hardly safer could only end the test too early. After it come the cheaper
        plans on the Pareto front.
        """
        if not self.looks:   # a database without an index of first dims
            return None
        price, share = self.trials.price, self.trials.share
        front: list[Trial] = []
        for trial in sorted(self.trials.run(self._finalists(goal.target), self._read), key=price):
            if price(trial) < price(exact) and (not front or share(trial) > share(front[-1])):
                front.append(trial)
        if not front:
            return None
        expected = [trial for trial in front if goal.expected(trial.worth) >= goal.target]
        first = (expected or front[-1:])[0]
        wider = [widened(first.plan, factor, factor) for factor in _WIDER]
        cheaper = [trial.plan for trial in reversed(front[: front.index(first) + 1])]
        return first, list(dict.fromkeys([*wider, *cheaper]))

    def read(self, plan: Plan) -> tuple[float, float]:
        """Mean bytes and MFLOPs per query."""
        return self._read(plan)

    def guesses(self) -> Iterator[tuple[Plan, float]]:
        """Plans with the share of true neighbours that survive every shortlist, a lower bound on the recall."""
        k, full = self.k, self.dims[-1]
        alone = {(opening.stages[0].dim, opening.stages[0].precision): look.ranks
                 for opening, look in self.looks.items()}  # fmt: skip
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
                for stages, keeps in self._middles(start, kept, list(alone)):
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

    def _look(self, opening: Plan) -> Look:
        count = self.searcher.count - (self.workload.own is not None)
        # At most a quarter of a small index: a longer shortlist is hardly cheaper than exact search.
        most = min(count, max(16 * self.k, min(count // 4, int(np.clip(count // 50, *_LONG)))))
        plan = replace(opening, stages=(replace(opening.stages[0], keep=most),))
        hits = self.workload.find(plan, most, slice(self.tuning))
        self.trials.bar.update()
        scores = hits.scores.astype(np.float64)
        with np.errstate(invalid="ignore"):
            gaps = scores[:, self.k - 1 : self.k] - scores
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
        cost = self.trials.cost
        if cost != "latency":
            return np.array([self._read(plan)[cost == "mflops"] for plan in plans])
        # First stages are timed. A later stage is modelled as a constant plus a rate times the bytes it reads.
        firsts = [replace(opening, stages=(replace(opening.stages[0], keep=self.k),)) for opening in self.looks]
        taken = dict(zip(self.looks, self.trials.time(firsts), strict=True))
        start = min(taken, key=lambda opening: (opening.stages[0].dim == self.dims[-1], taken[opening]))
        few, many = (
            replace(start, stages=(replace(start.stages[0], keep=keep), *self.exact.stages))
            for keep in (self.k, self.looks[start].gaps.shape[1])
        )
        short, long = self.trials.time([few, many])
        stage, rate = max(0.0, short - taken[start]), max(0.0, long - short) / max(1.0, self._later(many))
        return np.array([
            taken[_opening(plan)] + stage * (len(plan.stages) - 1) + rate * self._later(plan) for plan in plans
        ])  # fmt: skip

    def _later(self, plan: Plan) -> float:
        return self._read(plan)[0] - self._read(replace(plan, stages=plan.stages[:1]))[0]

    def _read(self, plan: Plan) -> tuple[float, float]:
        """Mean bytes and MFLOPs per query."""
        look, (first, *later) = self.looks.get(_opening(plan)), plan.stages
        if look is not None and later and first.margin is not None:
            first = replace(first, keep=max(self._kept(look, first), later[0].keep))
            plan = replace(plan, stages=(first, *later))
        return self.trials.read(plan)


def _opening(plan: Plan) -> Plan:
    """The first stage alone, in the form that ``Searcher.openings`` lists."""
    return replace(plan, stages=(replace(plan.stages[0], keep=1, margin=None),))
