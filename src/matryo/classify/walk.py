"""Run the heads: all dims on all rows, to choose thresholds; or dim by dim on the rows not yet answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.classify.confidence import softmax, top
from matryo.classify.outcomes import ALWAYS, NEVER, Outcomes
from matryo.embeddings import UNKNOWN

if TYPE_CHECKING:
    from matryo.arrays import Array, Doubles, Integers
    from matryo.classify.rows import Batch, Rows


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a cascade."""

    columns: Integers
    """[n]: the class, as a column of the logits."""
    confidence: Doubles
    """[n]: its softmax probability at the dim that answered."""
    dims: Integers
    """[n]: the dim that answered."""
    probabilities: Array | None = None
    """[n, classes] at the dim that answered, if requested."""


def ask_all(rows: Rows, columns: Integers) -> Outcomes:
    """Return confidence and correctness of every dim on every row; rows of unknown class are excluded."""
    confidence = np.empty((len(rows.dims), rows.count))
    correct = np.empty((len(rows.dims), rows.count), bool)
    for part in rows.parts():
        batch = rows.batch(part)
        all_rows = np.arange(part.stop - part.start)
        for place, dim in enumerate(rows.dims):
            predicted, confidence[place, part] = top(_ask(batch, dim, all_rows))
            correct[place, part] = predicted == columns[part]
    outcomes = Outcomes(rows.dims, confidence, correct, rows.tied)
    return outcomes if (known := columns != UNKNOWN).all() else outcomes.select(known)


def ask_until_sure(rows: Rows, thresholds: Doubles, probabilities: bool = False) -> Answers:
    """Return the answer of the first dim that reaches its threshold; later dims are not computed for that row."""
    answers = Answers(
        np.empty(rows.count, np.int64),
        np.empty(rows.count),
        np.empty(rows.count, np.int64),
        np.empty((rows.count, rows.classes), np.float32) if probabilities else None,
    )
    used = [(m, t) for m, t in zip(rows.dims, [*thresholds, ALWAYS], strict=True) if t != NEVER]
    for part in rows.parts():
        batch, unsure = rows.batch(part), np.arange(part.stop - part.start)
        for dim, threshold in used:
            if len(unsure) == 0:
                break
            logits = _ask(batch, dim, unsure)
            predicted, confidence = top(logits)
            sure = confidence >= threshold
            done = part.start + unsure[sure]
            answers.columns[done], answers.confidence[done], answers.dims[done] = predicted[sure], confidence[sure], dim
            if answers.probabilities is not None:
                answers.probabilities[done] = softmax(logits[sure])
            unsure = unsure[~sure]
    return answers


def _ask(batch: Batch, dim: int, rows: Integers) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):   # `top` reports it
        return batch(dim, rows)
