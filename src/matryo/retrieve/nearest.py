"""Nearest: the best rows of each query before scores are rounded, so that those of several indexes can be merged.

>>> one = Nearest(np.array([[7, 3]]), np.array([[0.9, 0.5]]), np.array([[4, 0]]))
>>> two = Nearest(np.array([[8, 6]]), np.array([[0.9, 0.7]]), np.array([[1, 5]]))
>>> best, source = merged([one, two], k=3)
>>> best.ids.tolist(), source.tolist()               # of equal scores, the row added first
([[8, 7, 6]], [[1, 0, 1]])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.retrieve.hits import Hits, widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve.parts import Part
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array, Doubles, Indices


@dataclass(frozen=True, eq=False)
class Nearest:
    """The best rows of each query, nearest first. Unused places have score −∞, row number −1 and id −1 or ""."""

    ids: Array
    """[queries, at most k]"""
    scores: Doubles
    """[queries, at most k], in float64, as the engines compare them."""
    numbers: Indices | None
    """Row numbers [queries, at most k], which order rows by their insertion; None if they were not requested."""

    def to_hits(self, k: int, nothing: Any, payloads: Any = None) -> Hits:
        """The ``k`` hits of each query; unused places have the id ``nothing``."""
        return Hits(widened(self.ids, k, nothing), widened(self.scores.astype(np.float32), k, -np.inf), payloads)


def search_parts(
    parts: Sequence[Part], queries: Array, metric: Metric, k: int, threads: int, nothing: Any, *,
    numbers: bool, bars: Doubles | None = None,
) -> Nearest:  # fmt: skip
    """Search each part of an index, and merge the best rows.

    ``bars`` are scores of which each query has ``k`` at least as high elsewhere: rows below may be left out. The k-th
    best score of the parts so far is such a bar for the next one.
    """
    ids: list[Array] = []
    scores: list[Doubles] = []
    rows: list[Indices] = []
    for part in parts:
        found, found_scores = part.search(part.request(queries, metric, threads, bars), min(k, part.count))
        ids.append(part.ids(found, nothing))
        scores.append(found_scores)
        if numbers:
            rows.append(part.numbers(found))
        if len(scores) < len(parts):
            bars = raised(bars, scores, k)
    if not ids:
        ids, scores = [np.empty((len(queries), 0), np.int64)], [np.empty((len(queries), 0))]
        rows = [np.empty((len(queries), 0), np.int64)]
    if len(ids) == 1:
        return Nearest(ids[0], scores[0], rows[0] if numbers else None)
    every = np.concatenate(scores, axis=1)
    # The sort is stable and parts are in the order of insertion, which decides ties.
    best = np.argsort(-every, axis=1, kind="stable")[:, :k]
    taken = [np.take_along_axis(np.concatenate(each, axis=1), best, axis=1) for each in (ids, rows) if each]
    return Nearest(taken[0], np.take_along_axis(every, best, axis=1), taken[1] if numbers else None)


def raised(bars: Doubles | None, scores: Sequence[Doubles], k: int) -> Doubles | None:
    """Return the k-th best of ``scores`` [queries, any] per query, or the entry of ``bars`` where it is higher."""
    every = np.concatenate(scores, axis=1)
    if every.shape[1] < k:
        return bars
    own = np.partition(every, every.shape[1] - k, axis=1)[:, every.shape[1] - k]
    return own if bars is None else np.maximum(bars, own)


def merged(found: Sequence[Nearest], k: int) -> tuple[Nearest, Indices]:
    """Merge the rows of several indexes whose row numbers have one order; also return the index of each row.

    Of equal scores, the smaller row number comes first.
    """
    used = [number for number, one in enumerate(found) if one.ids.shape[1]] or [0]
    ids = np.concatenate([found[number].ids for number in used], axis=1)
    scores = np.concatenate([found[number].scores for number in used], axis=1)
    rows = [found[number].numbers for number in used]
    assert all(row is not None for row in rows)
    numbers = np.concatenate([row for row in rows if row is not None], axis=1)
    source = np.repeat(used, [found[number].ids.shape[1] for number in used])
    best = np.lexsort((numbers, -scores), axis=1)[:, :k]
    numbers, scores, ids = (np.take_along_axis(each, best, axis=1) for each in (numbers, scores, ids))
    return Nearest(ids, scores, numbers), np.where(numbers < 0, -1, source[best])
