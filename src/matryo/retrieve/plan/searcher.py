"""The interface between the planner and what runs plans: an index, or a database (:mod:`matryo.engines`).

The planner asks a searcher for its first stages (``openings``), runs plans on it, and times them. An object with these
six members can be planned for: ``choose(searcher, queries, recall=0.99)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from matryo.nesting import Nesting
from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from matryo.retrieve.hits import Hits
    from matryo.retrieve.vectors.types import Array


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
        """The available first stages, each as a plan of one stage; see :func:`openings`.

        A guide has one opening, with any ``probe`` or ``ef``.
        """

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
