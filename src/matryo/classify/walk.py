"""Asking the dims: all of them, to choose thresholds; or one after the other, and only for rows that are unsure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.classify.confidence import softmax, top
from matryo.classify.outcomes import ALWAYS, NEVER, Outcomes
from matryo.embeddings import UNKNOWN

if TYPE_CHECKING:
    from matryo.classify.rows import Batch, Rows

    Array = np.ndarray[Any, np.dtype[Any]]
    Doubles = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Answers", "ask_all", "ask_until_sure"]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a cascade says of each row."""

    columns: Integers
    """[n]: the class, as a column of the logits."""
    confidence: Doubles
    """[n]: its softmax probability at the dim that answered."""
    dims: Integers
    """[n]: the dim that answered."""
    probabilities: Array | None = None
    """[n, classes] at the dim that answered, where asked for."""


def ask_all(rows: Rows, columns: Integers) -> Outcomes:
    """What every dim says of every row, beside the true ``columns``; rows whose class is unknown are left out."""
    confidence = np.empty((len(rows.dims), rows.count))
    correct = np.empty((len(rows.dims), rows.count), bool)
    for part in rows.parts():
        batch = rows.batch(part)
        everyone = np.arange(part.stop - part.start)
        for place, dim in enumerate(rows.dims):
            said, confidence[place, part] = top(_ask(batch, dim, everyone))
            correct[place, part] = said == columns[part]
    found = Outcomes(rows.dims, confidence, correct, rows.tied)
    return found if (known := columns != UNKNOWN).all() else found.select(known)


def ask_until_sure(rows: Rows, thresholds: Doubles, probabilities: bool = False) -> Answers:
    """The answer of the first dim that is sure of a row; dims after it are not computed for that row."""
    found = Answers(
        np.empty(rows.count, np.int64),
        np.empty(rows.count),
        np.empty(rows.count, np.int64),
        np.empty((rows.count, rows.classes), np.float32) if probabilities else None,
    )
    asked = [(m, t) for m, t in zip(rows.dims, [*thresholds, ALWAYS], strict=True) if t != NEVER]
    for part in rows.parts():
        batch, unsure = rows.batch(part), np.arange(part.stop - part.start)
        for dim, threshold in asked:
            if len(unsure) == 0:
                break
            logits = _ask(batch, dim, unsure)
            said, confidence = top(logits)
            sure = confidence >= threshold
            done = part.start + unsure[sure]
            found.columns[done], found.confidence[done], found.dims[done] = said[sure], confidence[sure], dim
            if found.probabilities is not None:
                found.probabilities[done] = softmax(logits[sure])
            unsure = unsure[~sure]
    return found


def _ask(batch: Batch, dim: int, rows: Integers) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):   # `top` says so, by row
        return batch.at(dim, rows)
