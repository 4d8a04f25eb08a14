"""Confidence of logits: the softmax probability of the predicted class, computed without overflow.

>>> top(np.array([[1000.0, 1000.0], [0.0, np.log(3.0)]]))
(array([0, 1]), array([0.5 , 0.75]))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError

if TYPE_CHECKING:
    from matryo.arrays import Array, Doubles, Integers


def top(logits: Array) -> tuple[Integers, Doubles]:
    """Return the class of the highest logit of each row [n, classes] (the first of equal ones) and its probability."""
    # Summed in float64: beside a peak of 1, the terms of the other classes would be lost in float32.
    with np.errstate(invalid="ignore"):   # reported below
        confidence = 1 / np.exp(_from_peak(logits)).sum(axis=1, dtype=np.float64)
    if len(bad := np.flatnonzero(np.isnan(confidence))):
        raise InputError(
            "logits must be finite", got=f"NaN or infinity in {len(bad)} rows", cure="check vectors and head"
        )
    return np.asarray(logits.argmax(axis=1)), confidence


def softmax(logits: Array) -> Array:
    """Return the probability of each class, along the last axis."""
    weights = np.exp(_from_peak(logits))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@checked
def average_views(logits: Array) -> Array:
    """Return the logits of the averaged probabilities of several views [views, …, classes] (test-time augmentation).

    The confidence is the average of the views where they agree, and less where they do not. Summed logits would be
    more confident than any view, and pass thresholds that no view passes.

    >>> two = np.array([[0.0, np.log(3.0)], [0.0, np.log(3.0)]])      # the same view twice, with confidence 3/4
    >>> softmax(average_views(two)), softmax(two.sum(axis=0))
    (array([0.25, 0.75]), array([0.1, 0.9]))
    """
    if logits.ndim < 2 or not logits.size or logits.dtype.kind == "U":
        raise InputError("logits must be [views, …, classes]", got=f"shape {logits.shape}", cure="stack the views")
    with np.errstate(divide="ignore"):   # a class of probability 0 gets −∞, whose softmax is 0 again
        return np.asarray(np.log(softmax(logits).mean(axis=0)))


def _from_peak(logits: Array) -> Array:
    wide = logits if logits.dtype in (np.float32, np.float64) else logits.astype(np.float32)
    return np.asarray(wide - wide.max(axis=-1, keepdims=True))
