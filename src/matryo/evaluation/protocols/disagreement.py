"""Disagreement: the examples that one dim classifies correctly and another does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.evaluation.predictions import class_name
from matryo.evaluation.protocol import Protocol
from matryo.results import SplitResult
from matryo.tables import Block, Metric, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.arrays import Integers
    from matryo.embeddings import EmbeddingSet
    from matryo.evaluation.predictions import Predictions
    from matryo.evaluation.subject import Subject


@dataclass(frozen=True)
class Disagreement(SplitResult):
    """Two dims on the same examples, and the most confident examples on which they disagree."""

    kind: ClassVar[str] = "disagreement"
    by: str
    dims: tuple[int, int]
    """The low and the high dim."""
    both_right: int
    only_low: int
    only_high: int
    both_wrong: int
    ids: tuple[str, ...]
    """The examples where only one of the two is right, most confident first, at most ``limit`` for each dim."""
    rows: tuple[int, ...]
    """Their rows in the embeddings."""
    labels: tuple[str, ...]
    """Their classes, by name (or number)."""
    said: tuple[tuple[str, str], ...]
    """The classes predicted at the low and the high dim."""
    confidence: tuple[tuple[float, float], ...]

    def blocks(self) -> list[Block]:
        """Return one table of counts."""
        low, high = self.dims
        counts = {"both right": self.both_right, f"only dim {low} right": self.only_low,
                  f"only dim {high} right": self.only_high, "both wrong": self.both_wrong}  # fmt: skip
        about = f"disagreement of dims {low} and {high} by {self.by}"
        return [Block(self.model, self.where, about, [Metric("examples", counts, number)], rows="prediction")]


@checked
def disagreement(
    embeddings: EmbeddingSet, predictions: Predictions, *, low: int, high: int, limit: int = 12
) -> Disagreement:
    """Return where exactly one of dims ``low`` and ``high`` predicts the right class.

    The confidence of an example is that of the dim that is right. Equal ones are in the order of their rows.
    """
    predictions.check_of(embeddings)
    _check(predictions.dims, low, high, limit)
    pair = [predictions.dims.index(low), predictions.dims.index(high)]
    low_right, high_right = predictions.correct[pair]
    predicted, confidence = predictions.predicted[pair], predictions.confidence[pair]
    apart = np.flatnonzero(low_right != high_right)
    confident = np.where(low_right[apart], confidence[0, apart], confidence[1, apart])
    apart = apart[np.argsort(-confident, kind="stable")]
    by_low = low_right[apart]
    shown = apart[np.where(by_low, np.cumsum(by_low), np.cumsum(~by_low)) <= limit]
    rows = predictions.rows[shown].tolist()

    def named(labels: Integers) -> tuple[str, ...]:
        return tuple(class_name(embeddings, label) for label in labels.tolist())

    return Disagreement(
        *embeddings.manifest.origin, predictions.by, (low, high),
        both_right=int((low_right & high_right).sum()),
        only_low=int((low_right & ~high_right).sum()),
        only_high=int((high_right & ~low_right).sum()),
        both_wrong=int((~low_right & ~high_right).sum()),
        ids=tuple(str(embeddings.ids[row]) for row in rows),
        rows=tuple(rows),
        labels=named(predictions.labels[shown]),
        said=tuple(zip(named(predicted[0, shown]), named(predicted[1, shown]), strict=True)),
        confidence=tuple(zip(*confidence[:, shown].tolist(), strict=True)),
    )   # fmt: skip


def _measure(subject: Subject) -> Iterator[Disagreement]:
    for queries, predictions in subject.predictions:
        yield disagreement(queries, predictions, low=predictions.dims[0], high=predictions.dims[-1])


PROTOCOL = Protocol("disagreement", _measure)


def _check(dims: tuple[int, ...], low: int, high: int, limit: int) -> None:
    if low not in dims or high not in dims or low >= high:
        raise InputError(
            "low and high must be two of the predicted dims, low the smaller",
            got=f"low={low}, high={high}",
            cure=f"choose from {dims}",
        )
    if limit < 0:
        raise InputError("limit must not be negative", got=limit, cure="0 gives only the counts")
