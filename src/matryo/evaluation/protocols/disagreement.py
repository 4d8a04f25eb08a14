"""Disagreement: which examples one dim gets right and another wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.errors import InputError
from matryo.evaluation.predictions import class_name
from matryo.results import Result

if TYPE_CHECKING:
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.predictions import Predictions

    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Disagreement", "disagreement"]


@dataclass(frozen=True)
class Disagreement(Result):
    """Two dims on the same examples, and the examples that tell them apart most surely."""

    kind: ClassVar[str] = "disagreement"
    model: str
    dataset: str
    split: str
    by: str
    dims: tuple[int, int]
    """The low and the high dim."""
    both_right: int
    only_low: int
    only_high: int
    both_wrong: int
    ids: tuple[str, ...]
    """The examples where just one of the two is right, surest first, at most ``limit`` of each way."""
    rows: tuple[int, ...]
    """Their rows in the embeddings."""
    labels: tuple[str, ...]
    """Their classes, by name (or number)."""
    said: tuple[tuple[str, str], ...]
    """What the low and the high dim say."""
    confidence: tuple[tuple[float, float], ...]


def disagreement(
    embeddings: EmbeddingSet, predictions: Predictions, *, low: int, high: int, limit: int = 12
) -> Disagreement:
    """Where dims ``low`` and ``high`` disagree about the right answer.

    An example is as sure as the dim that is right about it; of equally sure ones the smaller row comes first.
    """
    predictions.check_of(embeddings)
    _check(predictions.dims, low, high, limit)
    pair = [predictions.dims.index(low), predictions.dims.index(high)]
    low_right, high_right = predictions.correct[pair]
    said, confidence = predictions.predicted[pair], predictions.confidence[pair]
    apart = np.flatnonzero(low_right != high_right)
    sure = np.where(low_right[apart], confidence[0, apart], confidence[1, apart])
    apart = apart[np.argsort(-sure, kind="stable")]   # the rows rise, and ties keep their order
    way = low_right[apart]
    shown = apart[np.where(way, np.cumsum(way), np.cumsum(~way)) <= limit]
    about, rows = embeddings.manifest, predictions.rows[shown].tolist()

    def named(labels: Integers) -> tuple[str, ...]:
        return tuple(class_name(embeddings, label) for label in labels.tolist())

    return Disagreement(
        about.title, about.dataset, about.split, predictions.by, (low, high),
        both_right=int((low_right & high_right).sum()),
        only_low=int((low_right & ~high_right).sum()),
        only_high=int((high_right & ~low_right).sum()),
        both_wrong=int((~low_right & ~high_right).sum()),
        ids=tuple(str(embeddings.ids[row]) for row in rows),
        rows=tuple(rows),
        labels=named(predictions.labels[shown]),
        said=tuple(zip(named(said[0, shown]), named(said[1, shown]), strict=True)),
        confidence=tuple(zip(*confidence[:, shown].tolist(), strict=True)),
    )   # fmt: skip


def _check(dims: tuple[int, ...], low: int, high: int, limit: int) -> None:
    if low not in dims or high not in dims or low >= high:
        raise InputError(
            "low and high must be two of the predicted dims, low the smaller one",
            got=f"low={low}, high={high}",
            cure=f"choose among {dims}",
        )
    if limit < 0:
        raise InputError("limit must not be negative", got=limit, cure="0 gives the counts alone")
