"""Checks of the arguments of a search, before any vector is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.arrays import as_array
from matryo.errors import EmbeddingsError, InputError, shown
from matryo.retrieve.plan.choice import as_plan
from matryo.retrieve.plan.plan import Plan, check_count
from matryo.retrieve.store.origin import how_to_encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matryo.retrieve.vectors.types import Array

    Model = str | Mapping[str, Any]

MOST_HITS = 100_000_000
"""The most hits that one search returns, queries × k."""


def check_search(
    queries: Any, k: int, plan: Any, exact: bool, threads: int, model: Callable[[], Model]
) -> tuple[Array, Plan | None]:
    """Return the queries as an array [n, d] and the plan; None for exact search.

    ``model`` returns the model that made the vectors, for an error.
    """
    if threads < 1:
        raise InputError("threads must be at least 1", got=threads, cure="pass threads=1 or more")
    if exact and plan is not None:
        raise InputError("an exact search takes no plan", got="plan and exact=True", cure="drop one of them")
    check_count("k", k, example=10)
    stages = None if plan is None else as_plan(plan)
    vectors = _as_vectors(queries, model)
    if len(vectors) * int(k) > MOST_HITS:
        raise InputError(
            f"a search returns at most {MOST_HITS:,} hits",
            got=f"{len(vectors):,} queries × k={k}",
            cure="search fewer queries at a time, or lower k",
        )
    return vectors, stages


def _as_vectors(queries: Any, model: Callable[[], Model]) -> Array:
    """Queries as an array [n, d]; a single query may be one-dimensional."""
    first = queries[0] if isinstance(queries, list | tuple) and queries else queries
    if isinstance(first, str | bytes):
        cure = how_to_encode(model(), first if isinstance(first, str) else "a cat")
        raise InputError("an index holds vectors, not texts", got=shown(first), cure=cure)
    array = as_array(queries, "queries", EmbeddingsError)
    return array[None] if array.ndim < 2 else array
