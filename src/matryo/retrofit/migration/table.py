"""The recall table of a migration: an index of mapped rows, searched by the new model, against a full re-encode.

Queries are items whose pairs no bridge was fitted to. Each row of the database is mapped by bridges that were fitted
without it (cross-fitting), so the table holds for rows that only the old model has encoded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from matryo.nesting import truncate
from matryo.retrofit.choice import lower_bound
from matryo.retrofit.held_out import Held, Rung
from matryo.retrofit.migration import bridges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matryo.arrays import Array, Doubles, Floats, Integers
    from matryo.retrofit.held_out import Metric
    from matryo.retrofit.migration.bridges import Bridge

_FOLDS = 4
_TESTS, _TEST_SHARE = 1000, 0.2   # queries, at most
_TUNING_SHARE = 0.1   # of the other items: they choose penalties and ranks
SHARES = (0.25, 0.5, 0.75)
"""The shares of re-encoded rows that are measured between none and all."""


@dataclass(frozen=True)
class Measured:
    """The shares of the true ``k`` nearest after a full re-encode that a search finds."""

    name: str
    recall: float
    """The share that is among the ``k`` nearest."""
    shortlist: float
    """The share that is among the ``shortlist`` nearest: what re-ranking can reach."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Items encoded by both models, divided into the database, queries, and those that tune."""

    old: Floats
    new: Floats
    metric: Metric
    k: int
    shortlist: int
    tuning: Integers
    queries: Integers
    rows: Integers
    """The database."""

    @classmethod
    def split(cls, old: Floats, new: Floats, metric: Metric, k: int, shortlist: int, rng: np.random.Generator) -> Pairs:
        """Divide the items at random; for cosine, vectors get norm 1."""
        if metric == "cosine":
            old, new = (truncate(vectors, vectors.shape[1]) for vectors in (old, new))
        order = rng.permutation(len(old))
        tests = min(_TESTS, round(_TEST_SHARE * len(order)))
        tuned = tests + round(_TUNING_SHARE * (len(order) - tests))
        rows = order[tuned:]
        return cls(old, new, metric, min(k, len(rows)), min(shortlist, len(rows)), order[tests:tuned], order[:tests],
                   rows)  # fmt: skip

    def finish(self, vectors: Floats) -> Floats:
        """Mapped vectors as an index compares them."""
        return truncate(vectors, vectors.shape[1]) if self.metric == "cosine" else vectors



def fitters(pairs: Pairs, seed: int) -> dict[str, Callable[[Array, Array], Bridge]]:
    """How each bridge is fitted, with the penalties and the rank that suit the tuning items best."""
    old, new = pairs.old[pairs.rows], pairs.new[pairs.rows]
    tuning = pairs.old[pairs.tuning], pairs.new[pairs.tuning]

    def error(bridge: Bridge) -> float:
        return float(np.square(pairs.finish(bridge.apply(tuning[0])) - tuning[1]).sum())

    settings = [(ridge, rank) for ridge in bridges.RIDGES for rank in bridges.RANKS]
    ridge, rank = min(settings, key=lambda each: error(bridges.low_rank(old, new, *each)))
    start = bridges.low_rank(old, new, ridge, rank)
    second = min(bridges.RIDGES, key=lambda each: error(bridges.residual(old, new, start, each, seed)))
    return {
        "procrustes": bridges.procrustes,
        "low_rank": lambda old, new: bridges.low_rank(old, new, ridge, rank),
        "residual": lambda old, new: bridges.residual(
            old, new, bridges.low_rank(old, new, ridge, rank), second, seed),
    }  # fmt: skip


def cross_fitted(pairs: Pairs, fit: Callable[[Array, Array], Bridge], rng: np.random.Generator) -> Floats:
    """The rows of the database, each mapped by a bridge that was fitted to other rows."""
    rows, mapped = pairs.rows, np.empty((len(pairs.rows), pairs.new.shape[1]), np.float32)
    fold = rng.permutation(len(rows)) % _FOLDS
    for number in range(_FOLDS):
        out, held = rows[fold != number], fold == number
        mapped[held] = fit(pairs.old[out], pairs.new[out]).apply(pairs.old[rows[held]])
    return pairs.finish(mapped)


def measure(
    pairs: Pairs, mapped: Mapping[str, Floats], confidence: float, rng: np.random.Generator
) -> tuple[str, tuple[Measured, ...], dict[float, Measured]]:
    """The bridge that is taken, the recall of each, and that of the taken one while rows are re-encoded."""
    truth = Held.by_recall(pairs.new[pairs.rows], pairs.new[pairs.queries], pairs.metric, pairs.k, pairs.k)
    found = {name: _per_query(truth, rows, pairs) for name, rows in mapped.items()}
    level = (1 - confidence) / max(1, len(found) - 1)
    names = list(found)
    taken = names[0]
    for name in names[1:]:   # from the simplest on: a richer bridge must prove its gain, over both lists
        first, short = (new - old for new, old in zip(found[name], found[taken], strict=True))
        if lower_bound(first + short, level) > 0:
            taken = name
    stay = replace(truth, queries=pairs.old[pairs.queries])
    both = {"stay": _per_query(stay, pairs.old[pairs.rows], pairs), **found}
    table = tuple(_mean(name, values) for name, values in both.items())
    mixed = {}
    for share in SHARES:
        again = rng.random(len(pairs.rows)) < share
        database = np.where(again[:, None], pairs.new[pairs.rows], mapped[taken])
        mixed[share] = _mean(taken, _per_query(truth, database, pairs))
    return taken, table, mixed


def _per_query(truth: Held, database: Floats, pairs: Pairs) -> tuple[Doubles, Doubles]:
    """Recall in the first k and in the shortlist."""
    dim = database.shape[1]
    held = replace(truth, database=database)
    whole = Rung("identity", np.eye(dim))
    first, short = (replace(held, shortlist=keep).worth(whole, [dim])[:, 0] for keep in (pairs.k, pairs.shortlist))
    return first, short


def _mean(name: str, values: tuple[Doubles, Doubles]) -> Measured:
    return Measured(name, *(float(value.mean()) for value in values))


__all__ = ["SHARES", "Measured", "Pairs", "cross_fitted", "fitters", "measure"]
