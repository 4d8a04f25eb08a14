"""Plans that follow a guide: how far to look (probe or ef), and how many rows to re-rank.

Both are numbers without steps, and such plans are fast, so they are found by running plans on the tuning queries. For
each shortlist, bisection finds the least effort that is expected to pass the test; a walk over shortlists finds the
cheapest of these plans. Plans around it, from a wide one to a narrow one, are then tested on the test queries.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.plan.trials import Trial, widened

if TYPE_CHECKING:
    from matryo.retrieve.plan.trials import Goal, Trials

_LEAST = 1e-4   # the smallest probe
_MOST_EF = 4096
_START, _STEP = 6.0, 1.6   # the first shortlist, in multiples of k, and the factor to the next one
_LONGEST = 400   # the longest shortlist, in multiples of k
_CLOSE = 1.04   # bisection ends when the effort is known up to this factor
_BETTER = 0.98   # a plan must cost at most this share of another one to replace it
_FEW = (2.0, 1.6, 1.3)   # rows that a stage in int8 at full dim keeps, in multiples of k
_WITHIN = (0.75, 0.5, 0.3)   # the shares of queries whose whole shortlist is within the margin
_WIDER = (4.0, 2.5, 1.7, 1.4, 1.25, 1.15, 1.08, 1.0, 0.94, 0.88, 0.82, 0.74, 0.62)   # factors on the effort
_KEEP_POWER = 0.4   # the shortlist grows by this power of the factor


class GuidedPlans:
    """The plans of one guide, whose first stage is ``opening``."""

    def __init__(self, opening: Plan, trials: Trials) -> None:
        self.opening, self.trials, self.k = opening, trials, trials.workload.k
        self.nesting = trials.workload.searcher.nesting
        self.count = trials.workload.searcher.count

    def chain(self, goal: Goal) -> tuple[Trial, list[Plan]] | None:
        """The cheapest plan that is expected to pass, and plans around it from the widest on; None if none passes."""
        best = self._cheapest(goal)
        if best is None:
            return None
        best = self._with_margin(self._with_middle(best, goal), goal)
        plans = {factor: widened(best.plan, factor, factor**_KEEP_POWER) for factor in _WIDER}
        # Wide plans are slow to test: the first one is the narrowest that is all but certain to pass.
        wider = [factor for factor in reversed(_WIDER) if factor > 1]
        first = next((each for each in wider if goal.is_sure(self.trials.worth(plans[each]))), wider[-1])
        return best, list(dict.fromkeys(plan for factor, plan in plans.items() if factor <= first))

    def _plan(self, keep: int, effort: float) -> Plan:
        full, (first,) = self.nesting.dim, self.opening.stages
        stages: tuple[Stage, ...] = (replace(first, keep=keep),)
        if first.dim < full or first.precision != "full":
            stages += (Stage(full, self.k),)
        if self.opening.probe is not None:
            return Plan(stages, probe=float(f"{effort:.3g}"))
        return Plan(stages, ef=max(round(effort), keep + 1))   # stand-in queries search for one more

    def _cheapest(self, goal: Goal) -> Trial | None:
        best: Trial | None = None
        guess: float | None = None
        keep = _START * self.k
        for step in (_STEP, 1 / _STEP):
            while self.k < keep <= min(_LONGEST * self.k, self.count):
                effort = self._least_effort(round(keep), goal, guess)
                trial = None if effort is None else self.trials.run([self._plan(round(keep), effort)])[0]
                if trial is not None:
                    guess = effort
                if trial is None or (best is not None and self._price(trial) > _BETTER * self._price(best)):
                    # With fewer rows it would fail as well. With more, it may pass.
                    if best is not None or step < 1:
                        break
                else:
                    best = trial
                keep *= step
            keep = _START * self.k / _STEP
        return best

    def _least_effort(self, keep: int, goal: Goal, guess: float | None) -> float | None:
        """The least effort with which a shortlist of ``keep`` is expected to pass; None if the largest does not."""
        by_probe = self.opening.probe is not None
        low, high = (math.log(_LEAST), 0.0) if by_probe else (math.log(keep + 1), math.log(max(_MOST_EF, 2 * keep)))

        def passes(effort: float) -> bool:
            return goal.expected(self.trials.worth(self._plan(keep, math.exp(effort)))) >= goal.target

        if guess is None:
            if not passes(high):
                return None
        else:   # the least effort of the shortlist before is near: bracket from there
            near, step = min(max(math.log(guess), low), high), 0.15
            if passes(near):
                high = near
                while high > low and passes(max(low, near - step)):
                    high, step = max(low, near - step), 2 * step
                low = max(low, near - step)
            else:
                low = near
                while not passes(min(high, near + step)):
                    low, step = min(high, near + step), 2 * step
                    if low >= high:
                        return None
                high = min(high, near + step)
        while high - low > math.log(_CLOSE):
            middle = (low + high) / 2
            low, high = (low, middle) if passes(middle) else (middle, high)
        return math.exp(high)

    def _with_middle(self, best: Trial, goal: Goal) -> Trial:
        """The plan with a stage in int8 between the first and the last, where reading fewer columns is cheaper."""
        first, *later = best.plan.stages
        if first.precision != "int4":   # only partitions have codes in int8 of all dims
            return best
        full = self.nesting.dim
        dims = [dim for dim in self.nesting.dims if first.dim < dim <= full // 2][:3]
        middles = [(dim, first.keep // part) for dim in dims for part in (2, 4) if first.keep // part > 2 * self.k]
        # At full dim, this stage drops rows that the last one would decide by bounds.
        middles += [(full, round(factor * self.k)) for factor in _FEW if factor * self.k < first.keep]
        for dim, keep in middles:
            plan = replace(best.plan, stages=(first, Stage(dim, keep, "int8"), *later))
            best = self._better(best, plan, goal)
        return best

    def _with_margin(self, best: Trial, goal: Goal) -> Trial:
        """The plan with a margin at its first stage, where that is cheaper: some queries need few rows."""
        first = best.plan.stages[0]
        if first.precision != "int4":
            return best
        # Exact scores stand for those of the first stage, which only the search sees.
        whole = replace(best.plan, stages=(first, Stage(self.nesting.dim, first.keep)))
        scores = self.trials.scores(whole, first.keep)
        gaps = scores[:, self.k - 1] - scores[:, -1]
        gaps = gaps[np.isfinite(gaps)]
        for share in _WITHIN if len(gaps) else ():
            margin = float(f"{np.quantile(gaps, share):.3g}")
            if margin > 0:
                plan = replace(best.plan, stages=(replace(best.plan.stages[0], margin=margin), *best.plan.stages[1:]))
                best = self._better(best, plan, goal)
        return best

    def _better(self, best: Trial, plan: Plan, goal: Goal) -> Trial:
        """``plan`` if it is expected to pass and clearly cheaper, else ``best``."""
        if goal.expected(self.trials.worth(plan)) < goal.target:
            return best
        found, best = self.trials.run([plan, best.plan])
        return found if self._price(found) < _BETTER * self._price(best) else best

    def _price(self, trial: Trial) -> float:
        return self.trials.price(trial)
