"""Scores from inner products and norms: cosine, inner product, and negative squared L2 distance; larger is nearer.

Inner products of prefixes are running sums over blocks. Together with the norms of both prefixes they give every metric
at every dim: the cosine, the inner product itself, and −‖q − x‖² = 2·sum − ‖x‖² − ‖q‖².

>>> sums, norms, query_norms = np.array([[6.0, 3.0]], "f4"), np.array([2.0, 4.0], "f4"), np.array([[3.0]], "f4")
>>> {metric: score(metric, sums, norms, query_norms).tolist() for metric in METRICS}
{'cosine': [[1.0, 0.25]], 'ip': [[6.0, 3.0]], 'l2': [[-1.0, -19.0]]}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from matryo.errors import InputError, shown

if TYPE_CHECKING:
    from matryo.retrieve.vectors.types import Floats, Indices, Keys

Metric = Literal["cosine", "ip", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)
NOTHING = np.iinfo(np.int64).min
"""The key of an empty place, below the key of any score."""

_ROWS = 0xFFFFFFFF   # the lower half of a key holds the row


def check_metric(metric: str) -> None:
    """Raise unless ``metric`` is one of :data:`METRICS`."""
    if not isinstance(metric, str) or metric not in METRICS:
        raise InputError("metric must be cosine, ip or l2", got=shown(metric), cure="cosine suits most embeddings")


def score(metric: Metric, sums: Floats, norms: Floats, query_norms: Floats) -> Floats:
    """Return scores from inner products and the norms of both sides; all three broadcast against each other.

    A zero vector has cosine 0 with everything. For equal vectors, rounding may give a score a little above 0 for L2.
    """
    if metric == "ip":
        return sums
    if metric == "cosine":
        # The floor of truncate, which leaves a zero vector zero.
        floor = np.finfo(np.float32).tiny
        scores = sums * np.reciprocal(np.maximum(norms, floor))
        scores *= np.reciprocal(np.maximum(query_norms, floor))
        return scores
    scores = sums * np.float32(2)
    scores -= np.square(norms)
    scores -= np.square(query_norms)
    return scores


def keys(scores: Floats, rows: Indices) -> Keys:
    """Combine each score and its row (−1: none) into one integer that sorts by score, then by smaller row.

    Selecting the best is then a plain partition of integers, and the smaller row always wins a tie.

    >>> ordered = np.sort(keys(np.array([0.5, -2, 0.5, 9], "f4"), np.array([7, 1, 3, -1])))[::-1]
    >>> key_rows(ordered).tolist(), key_scores(ordered).tolist()
    ([3, 7, 1, -1], [0.5, 0.5, -2.0, -inf])
    """
    # Floats sort like sign-magnitude integers. Flipping the magnitude bits of negative ones gives two's complement.
    bits = (scores + np.float32(0)).view(np.int32)   # + 0 turns −0 into 0: equal scores need equal keys
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return np.where(rows < 0, NOTHING, (ordered.astype(np.int64) << 32) | (_ROWS - rows))


def key_rows(keys: Keys) -> Indices:
    """Return the rows of keys, −1 for empty places."""
    return np.where(keys == NOTHING, -1, _ROWS - (keys & _ROWS))


def key_scores(keys: Keys) -> Floats:
    """Return the scores of keys, −∞ for empty places."""
    ordered = (keys >> 32).astype(np.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
    return np.where(keys == NOTHING, np.float32(-np.inf), scores)
