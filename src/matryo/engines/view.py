"""The view of the planner on an engine: under a filter, or with the indexes of some dims only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from matryo.retrieve.plan.plan import Plan

if TYPE_CHECKING:
    from matryo.engines.engine import Engine
    from matryo.nesting import Nesting
    from matryo.retrieve.hits import Hits
    from matryo.retrieve.plan.choice import Choice


@dataclass(frozen=True, eq=False)
class View:
    """An engine restricted to matching rows, or to the indexes of some dims: what the planner plans for."""

    engine: Engine
    where: dict[str, Any] | None = None
    dims: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        """The number of rows of the table."""
        return self.engine.count

    @property
    def nesting(self) -> Nesting:
        """The dims of the engine."""
        return self.engine.nesting

    @property
    def dtype(self) -> str:
        """The dtype of the vectors."""
        return self.engine.dtype

    @property
    def openings(self) -> Sequence[Plan]:
        """The first stages of the engine, or those of ``dims``."""
        every = self.engine.openings
        return [plan for plan in every if self.dims is None or plan.stages[0].dim in self.dims]

    def search(self, queries: Any, k: int, plan: Plan | None = None) -> Hits:
        """Search with the filter of this view."""
        return self.engine.search(queries, k, None if plan is None else without_margins(plan), self.where)

    def sample(self, count: int, seed: int) -> tuple[Any, Any]:
        """Random rows of the table."""
        return self.engine.sample(count, seed)


def without_margins(plan: Plan) -> Plan:
    """``plan`` with shortlists of a fixed length, as databases keep them; it finds at least as much.

    >>> from matryo.retrieve.plan.plan import Stage
    >>> without_margins(Plan((Stage(8, 50, margin=0.1), Stage(32, 10)))) == Plan.adaptive(8, 32, keep=50)
    True
    """
    return replace(plan, stages=tuple(replace(stage, margin=None) for stage in plan.stages))


def chosen_without_margins(choice: Choice) -> Choice:
    """``choice`` with the plans that the view ran."""
    points = tuple(replace(point, plan=without_margins(point.plan)) for point in choice.frontier)
    return replace(choice, plan=None if choice.plan is None else without_margins(choice.plan), frontier=points)
