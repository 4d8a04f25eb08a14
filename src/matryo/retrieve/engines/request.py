"""A search request: the queries of one batch, the vectors to search, and the rows that may be found.

The stages of a plan share one request. A stage itself (:class:`matryo.retrieve.Stage`) says at which dim and in which
precision it scores, and how many rows it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array, Bools, Doubles


@dataclass(frozen=True, eq=False)
class Request:
    """Find the rows of ``blocks`` nearest to each of the ``queries``, [queries, d]."""

    blocks: Blocks
    queries: Array
    metric: Metric = "cosine"
    allowed: Bools | None = None
    """Mask of the rows that may be found, [rows]; None allows all."""
    threads: int = 1
    """The most threads that share the queries."""
    tail: Any = None
    """Rows that joined the guide after it was built; ``allowed`` covers them, behind the rows of ``blocks``."""
    bars: Doubles | None = None
    """For each query, the k-th best score that is known from other rows: a search may leave out rows below it."""
    counted: int | None = None
    """The number of rows that may be found, if it is known."""

    @cached_property
    def count(self) -> int:
        """The number of rows that may be found."""
        if self.counted is not None:
            return self.counted
        return self.blocks.count if self.allowed is None else int(np.count_nonzero(self.allowed))
