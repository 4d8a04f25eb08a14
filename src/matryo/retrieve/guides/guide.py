"""The interface of a guide: a structure beside the vectors of a segment that speeds up its searches.

To add a guide, write a subclass of :class:`Guide`, list it in ``guides/__init__.py`` and test it. The index then
builds, stores, verifies and opens the guide, offers its plans to the planner, and follows it in searches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from matryo.retrieve.engines.request import Request
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.vectors.types import Doubles, Indices

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.nesting import Nesting
    from matryo.retrieve.engines.execute import Engine
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric


VERIFIED_BYTES = 1 << 20
"""A guide that is opened compares the checksums of its smallest arrays, up to this size together."""

Search = Callable[[Request, int], tuple[Indices, Doubles]]
"""The rows and scores of a request, for a k."""


class Guide(ABC):
    """A guide of the vectors of one segment."""

    kind: ClassVar[str]
    """The name of the guide, also in ``index.build(kind=…)``. Its folder has a header ``kind.json``."""
    plan_field: ClassVar[str | None] = None
    """The plan field that selects this guide (``probe``, ``ef``); None for a guide of exact search."""
    default: ClassVar[bool] = False
    """Whether ``index.build()`` without arguments builds the guide for a new index."""
    joins: ClassVar[bool] = False
    """Whether rows that are added later are guided with the help of an existing guide; see ``retrieve/parts.py``."""
    threaded: ClassVar[bool] = False
    """Whether its searches share the queries between the threads of a request; otherwise :func:`shared` does."""

    @classmethod
    def options(cls, nesting: Nesting, value: Any) -> dict[str, Any]:
        """Return the options of :meth:`of` for ``index.build(kind=value)``, as JSON values."""
        Plan.single(value).check_fits(nesting)
        return {"dim": value}

    @classmethod
    def settled(cls, options: dict[str, Any], blocks: Blocks, metric: Metric) -> dict[str, Any]:  # noqa: ARG003
        """Return ``options`` with what is chosen from the vectors, so that later guides are like the first.

        A plan that was made for an index keeps its meaning when guides are built again.
        """
        return options

    @classmethod
    @abstractmethod
    def of(cls, blocks: Blocks, metric: Metric, *args: Any, **options: Any) -> Self:
        """Build the guide of ``blocks``; the options are keywords."""

    @abstractmethod
    def write(self, folder: str | Path) -> None:
        """Write the guide to a new folder, with :func:`matryo.retrieve.vectors.array_folder.write_arrays`."""

    @classmethod
    @abstractmethod
    def open(cls, folder: str | Path) -> Self:
        """Open the guide that :meth:`write` wrote; raise if what compiled loops rely on is damaged.

        Indices must be in range, and the checksums of small arrays must match. A wrong number in a large array may
        remain unnoticed until ``index.verify()``, but must not crash a search.
        """

    def opening(self) -> Plan | None:
        """Return the first stage that the guide offers the planner, with any ``probe`` or ``ef``."""
        return None

    def reads(self, plan: Plan, share: float) -> float | None:  # noqa: ARG002
        """Return the bytes that the first stage of ``plan`` reads if a filter leaves a ``share`` of the rows."""
        return None

    @classmethod
    def serves(cls, plan: Plan | None, engine: Engine | None) -> bool:  # noqa: ARG003
        """Whether to open the guide for a search along ``plan`` (None: exact) on ``engine`` (None: the default)."""
        return plan is None if cls.plan_field is None else getattr(plan, cls.plan_field, None) is not None

    @abstractmethod
    def searcher(self, blocks: Blocks, plan: Plan | None, engine: Engine | None) -> Search | None:
        """Return a function that searches along ``plan``, given a request and k; None if a scan should do it.

        The function is prepared once per plan and called from any number of threads.
        """


def shared(search: Search) -> Search:
    """Return a search whose queries are split between the threads of the request."""

    def search_parts(request: Request, k: int) -> tuple[Indices, Doubles]:
        threads = min(request.threads, len(request.queries))
        if threads <= 1:
            return search(request, k)
        parts = [replace(request, queries=part) for part in np.array_split(request.queries, threads)]
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(lambda part: search(part, k), parts))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found])

    return search_parts


def unguided(plan: Plan, blocks: Blocks) -> Plan:
    """Return ``plan`` without a guide, and in full precision where the blocks have no copies in int8.

    Partitions have codes of their own, so a plan for them may ask for int8 at any dim, and begin at a dim that the
    blocks do not have. Without partitions, such a plan begins at its next stage, and misses nothing by that.
    """
    stages = plan.stages
    if len(stages) > 1 and stages[0].dim not in blocks.nesting.dims:
        stages = stages[1:]
    kept = (
        stage if stage.precision == "full" or (stage.precision == "int8" and blocks.level(stage.dim) in blocks.int8)
        else replace(stage, precision="full")
        for stage in stages
    )  # fmt: skip
    return replace(plan, stages=tuple(kept), probe=None, ef=None)
