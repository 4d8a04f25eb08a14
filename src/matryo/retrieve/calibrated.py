"""Calibrated search: prune by what tails usually hold instead of what they could hold, at a recall learned on queries.

A certified search keeps a row while its tail could still lift it over the bar, were it to point exactly where the
query does. Tails hardly ever do. So a sample of queries shows how much of its tail each true neighbour needed: at
every level the share of ``reach · tail`` by which what was known fell short of the bar. All but a few neighbours,
the loss that the wanted recall allows, needed no more than some share, and rows that need more are dropped.

How many rows are read then follows each query: few where one stands out, many where all are alike. Half of the
queries teach the shares; the other half, unseen, say what recall they give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.certified import Certified, as_doubles
from matryo.retrieve.queries import as_mask

if TYPE_CHECKING:
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Calibrated", "Calibration"]

_FEWEST = 40   # queries to learn from: fewer say little about the few neighbours that may be lost


@dataclass(frozen=True)
class Calibration:
    """How much of a tail counts at each level, for one k and one recall, and what that gave on unseen queries."""

    dims: tuple[int, ...]
    """The coordinates known at each level of the sketch."""
    k: int
    recall: float
    """What was asked for."""
    shares: tuple[float, ...]
    """Of ``reach · tail``, by level; 1 would be certain, but for rounding."""
    found: float
    """The share of the true neighbours that the unseen queries found."""
    at_least: float
    """The same, with 95 % confidence (the mean less 1.645 standard errors over queries)."""
    kept: float
    """How many rows were left by the sketch, in the mean over the unseen queries."""

    @classmethod
    def fit(cls, exact: Certified, queries: Any, *, k: int = 10, recall: float = 0.99, seed: int = 0) -> Calibration:
        """Learn from ``queries`` [n, d], which must be like those to come; half of them are held out."""
        if not 0 < recall < 1:
            raise InputError("recall must lie between 0 and 1", got=recall, cure="search certified to find all")
        given = as_doubles(queries, exact.blocks, k, exact.sketch.metric)
        if len(given) < _FEWEST:
            raise InputError(f"it takes {_FEWEST} queries to calibrate", got=len(given), cure="give more, or rows")
        order = np.random.default_rng(seed).permutation(len(given))
        learn, test = given[order[::2]], given[order[1::2]]
        needs = np.concatenate([_needs(exact, query, k) for query in learn], axis=1)
        # Each level may lose its part. A neighbour that one level loses is often lost by the next, so it is less.
        part = (1 - recall) / len(needs)
        shares = np.quantile(np.maximum(needs, -1), 1 - part, axis=1, method="higher")
        recalls, kept = zip(*(_try(exact, query, k, tuple(shares.tolist())) for query in test), strict=True)
        error = float(np.std(recalls, ddof=1) / np.sqrt(len(recalls)))
        return cls(
            dims=exact.sketch.dims,
            k=k,
            recall=recall,
            shares=tuple(shares.tolist()),
            found=float(np.mean(recalls)),
            at_least=float(np.mean(recalls) - 1.645 * error),
            kept=float(np.mean(kept)),
        )


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Search of blocks with a sketch and a calibration of it."""

    exact: Certified
    calibration: Calibration

    def __post_init__(self) -> None:
        if self.calibration.dims != self.exact.sketch.dims:
            raise InputError(
                "a calibration belongs to the sketch it was learned with",
                got=f"dims {self.calibration.dims} for a sketch of {self.exact.sketch.dims}",
                cure="calibrate again",
            )

    def search(self, queries: Any, k: int, allowed: Bools | None = None) -> tuple[Indices, Floats]:
        """The best ``k`` rows found of each of the ``queries`` [n, d], and their scores; both [n, k].

        Scores are exact, neighbours may be missing. Where there are fewer than ``k``, the rest has row −1, score −∞.
        """
        if k != self.calibration.k:
            raise InputError(
                f"this calibration is for k = {self.calibration.k}", got=k, cure="calibrate for the k you search with"
            )
        given = as_doubles(queries, self.exact.blocks, k, self.exact.sketch.metric)
        allowed = as_mask(allowed, self.exact.blocks.count)
        rows, scores = np.full((len(given), k), -1, np.int64), np.full((len(given), k), -np.inf, np.float32)
        for i, query in enumerate(given):
            found, exact, _ = self.exact.find(query, k, allowed, self.calibration.shares)
            rows[i, : len(found)], scores[i, : len(found)] = found, exact
        return rows, scores


def _needs(exact: Certified, query: Doubles, k: int) -> Doubles:
    """The share of its tail that each true neighbour needs to reach the bar, [levels, neighbours]."""
    sketch = exact.sketch
    neighbours, _, _ = exact.find(query, k)
    start = exact.start(query, k)
    known = np.zeros(len(neighbours)) if sketch.offsets is None else sketch.offsets[neighbours].astype(np.float64)
    needs = np.empty((len(sketch.levels), len(neighbours)))
    for number, level in enumerate(sketch.levels):
        asked = start.query.at(number)
        codes = 128 * asked.high.astype(np.int64) + asked.low
        known = known + asked.scale * (sketch.codes(number, neighbours).astype(np.int64) @ codes)
        reach = np.maximum(asked.reach * level.tails[neighbours], np.finfo(np.float32).tiny)
        needs[number] = (start.bar - known) / reach
    needs[:, np.isin(neighbours, start.rows)] = -np.inf   # read in full anyway
    return needs


def _try(exact: Certified, query: Doubles, k: int, shares: tuple[float, ...]) -> tuple[float, int]:
    true, _, _ = exact.find(query, k)
    found, _, left = exact.find(query, k, None, shares)
    return float(np.isin(true, found).mean()), left[-1]
