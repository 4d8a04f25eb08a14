"""How near two prefixes are, made of their inner product and their norms; the nearer, the larger.

Inner products of prefixes are running sums over blocks. Together with the norms of both prefixes they give each
metric at each dim: the cosine, the inner product itself, and −‖q − x‖² = 2·sum − ‖x‖² − ‖q‖².

>>> sums, norms, query_norms = np.array([[6.0, 3.0]], "f4"), np.array([2.0, 4.0], "f4"), np.array([[3.0]], "f4")
>>> {metric: score(metric, sums, norms, query_norms).tolist() for metric in METRICS}
{'cosine': [[1.0, 0.25]], 'ip': [[6.0, 3.0]], 'l2': [[-1.0, -19.0]]}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from matryo.errors import InputError

if TYPE_CHECKING:
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Indices = np.ndarray[Any, np.dtype[np.int64]]
    Keys = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["METRICS", "NOTHING", "Metric", "check_metric", "key_rows", "key_scores", "keys", "score"]

Metric = Literal["cosine", "ip", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)
NOTHING = np.iinfo(np.int64).min
"""The key of no row at all, below that of any score."""

_ROWS = 0xFFFFFFFF   # a row takes the lower half of a key


def check_metric(metric: str) -> None:
    """Raise unless ``metric`` is one of :data:`METRICS`."""
    if metric not in METRICS:
        raise InputError("metric must be cosine, ip or l2", got=repr(metric), cure="cosine suits most embeddings")


def score(metric: Metric, sums: Floats, norms: Floats, query_norms: Floats) -> Floats:
    """The scores that inner products and the norms of both sides make; all three broadcast against each other.

    A zero vector scores 0 with everything where the cosine has no value. Of equal vectors, rounding may leave a
    squared distance a little below 0.
    """
    if metric == "ip":
        return sums
    if metric == "cosine":
        # The same floor as truncate, which leaves a zero vector zero.
        floor = np.finfo(np.float32).tiny
        scores = sums * np.reciprocal(np.maximum(norms, floor))
        scores *= np.reciprocal(np.maximum(query_norms, floor))
        return scores
    scores = sums * np.float32(2)
    scores -= np.square(norms)
    scores -= np.square(query_norms)
    return scores


def keys(scores: Floats, rows: Indices) -> Keys:
    """One integer for a score and its row (−1: none), which sorts by score, then by smaller row.

    So selecting is a plain partition, and ties never depend on its whims.

    >>> found = keys(np.array([0.5, -2, 0.5, 9], "f4"), np.array([7, 1, 3, -1]))
    >>> key_rows(np.sort(found)[::-1]).tolist(), key_scores(np.sort(found)[::-1]).tolist()
    ([3, 7, 1, -1], [0.5, 0.5, -2.0, -inf])
    """
    # Floats sort like sign-magnitude integers; flipping the magnitude of the negative makes these ordinary.
    bits = (scores + np.float32(0)).view(np.int32)   # + 0 turns −0 into 0: equal scores need equal keys
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    made = (ordered.astype(np.int64) << 32) | (_ROWS - rows)
    return np.where(rows < 0, NOTHING, made)


def key_rows(found: Keys) -> Indices:
    """The rows that keys were made of, −1 for none."""
    return np.where(found == NOTHING, -1, _ROWS - (found & _ROWS))


def key_scores(found: Keys) -> Floats:
    """The scores that keys were made of, −∞ for none."""
    ordered = (found >> 32).astype(np.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
    return np.where(found == NOTHING, np.float32(-np.inf), scores)
