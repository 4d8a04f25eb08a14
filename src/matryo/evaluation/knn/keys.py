"""Keys: the score and the row of a neighbour in one integer, so that selecting and merging compare integers.

A key sorts by score, then by smaller row. The upper half holds the bits of the float32 score, arranged so that they
sort as integers; the lower half holds 2³² − 1 − row. ``src/core/keys.h`` restates this.

>>> keys = keys_of(np.float32([0.5, 0.5, -1]), np.array([7, 3, 0]))
>>> merged([keys[None, :1], moved(keys[None, 1:], 10)], k=2).tolist() == [[keys[0], keys[1] - 10]]
True
>>> rows_of(merged([keys[None, :1], moved(keys[None, 1:], 10)], k=4)).tolist()
[[7, 13, 10, -1]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Floats

    Keys = np.ndarray[Any, np.dtype[np.int64]]

NOTHING = np.iinfo(np.int64).min
"""The key of an empty place, below the key of any score."""


def keys_of(scores: Floats, rows: Keys) -> Keys:
    """Return the key of each score and row."""
    # Floats sort like sign-magnitude integers. Flipping the magnitude bits of negative ones gives two's complement.
    bits = (scores + np.float32(0)).view(np.int32)   # + 0 turns −0 into 0: equal scores need equal keys
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.astype(np.int64) << 32) | (0xFFFFFFFF - rows)


def scores_of(keys: Keys) -> Floats:
    """Return the scores of keys; −∞ for empty places."""
    ordered = (keys >> 32).astype(np.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32)
    return np.where(keys == NOTHING, np.float32(-np.inf), scores)


def rows_of(keys: Keys) -> Keys:
    """Return the rows of keys; −1 for empty places."""
    return np.where(keys == NOTHING, -1, 0xFFFFFFFF - (keys & 0xFFFFFFFF))


def moved(keys: Keys, first: int) -> Keys:
    """Return the keys of rows that are counted from another row on: ``first`` is added to each."""
    return np.where(keys == NOTHING, keys, keys - first)


def merged(parts: Sequence[Keys], k: int) -> Keys:
    """Return the best ``k`` keys [queries, k] of those of several parts, best first."""
    every = np.concatenate(parts, axis=1)
    if every.shape[1] < k:
        every = np.pad(every, ((0, 0), (0, k - every.shape[1])), constant_values=NOTHING)
    if every.shape[1] > k:
        every = np.partition(every, every.shape[1] - k, axis=1)[:, every.shape[1] - k :]
    return np.sort(every, axis=1)[:, ::-1]
