"""The rank of the true class among the logits; top-k accuracy is the share of ranks below k.

>>> logits = np.array([[0.1, 0.9, 0.3], [0.5, 0.2, 0.4]])
>>> label_ranks(logits, np.array([1, 1]))
array([0, 2])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError

if TYPE_CHECKING:
    Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
    Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]


@checked
def label_ranks(logits: Floats, labels: Integers) -> Integers:
    """Return the rank (from 0) of the true class in each row; among equal logits, the smaller class ranks first."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise InputError(
            "there must be one label for each row of logits [n, classes]",
            got=f"logits {logits.shape}, labels {labels.shape}",
            cure="pass one label per row of logits",
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < logits.shape[1]):
        raise InputError(
            f"labels must lie in 0 … {logits.shape[1] - 1}, the classes that have logits",
            got=f"{labels.min()} … {labels.max()}",
            cure="drop the rows of other classes",
        )
    if not np.isfinite(logits).all():   # no logit exceeds NaN, so it would count as correct
        raise InputError("logits must be finite", got="NaN or infinity", cure="check the vectors and the head")
    true = logits[np.arange(len(labels)), labels][:, None]
    before = np.arange(logits.shape[1]) < labels[:, None]
    return np.asarray(((logits > true) | ((logits == true) & before)).sum(axis=1))
