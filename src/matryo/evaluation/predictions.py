"""The predicted class of each example at every dim: by the head, or by the nearest neighbour if there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matryo.arguments import checked
from matryo.classify.confidence import top
from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError
from matryo.evaluation.checks import check_different, check_finite, check_pair, check_several, chosen_dims, labels_of
from matryo.evaluation.knn.search import search
from matryo.nesting import Nesting, truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array, Bools, Floats, Integers
    from matryo.embeddings import EmbeddingSet, Head

_BATCH = 8 << 20   # vector entries held at a time


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predicted class of each example at each dim, and the true class."""

    by: str
    """"head" or "1-NN"."""
    dims: tuple[int, ...]
    labels: Integers
    """[n]: the true classes."""
    predicted: Integers
    """[dims, n]."""
    confidence: Floats
    """[dims, n]: the softmax probability of the predicted class, or the cosine with the neighbour."""
    rows: Integers
    """[n]: the rows of the embeddings (those of unknown class are excluded)."""

    @property
    def correct(self) -> Bools:
        """[dims, n]: whether the prediction is right."""
        return np.asarray(self.predicted == self.labels)

    @checked
    def check_of(self, embeddings: EmbeddingSet) -> None:
        """Raise unless these are predictions of the rows of ``embeddings``."""
        labels = labels_of(embeddings, "embeddings")
        if self.rows[-1] >= len(labels) or (labels[self.rows] != self.labels).any():
            raise EmbeddingsError(
                "the predictions must be of these embeddings",
                got=f"labels that differ from those of {embeddings.path}",
                cure="call predict with the same embeddings as queries",
            )


@checked
def predict(
    queries: EmbeddingSet,
    database: EmbeddingSet | None = None,
    *,
    dims: Sequence[int] | None = None,
    progress: bool = False,
) -> Predictions:
    """Predict with the head of ``queries`` if there is one, else by the nearest vector in ``database``.

    The dims are those of the head, or of the nesting (halved if there is only one), unless ``dims`` lists others; a
    tied head works at any dim. Rows of unknown class (−1) are excluded. Without a head, rows of a class that the
    database lacks are excluded too. Ties are won by the smaller class, or by the neighbour with the smaller row.

    >>> from matryo.embeddings import EmbeddingSet, Head
    >>> head = Head.tied([[1.0, 0.0], [0.0, 1.0]], dims=(1, 2))
    >>> predictions = predict(EmbeddingSet.of([[1, 0], [1, 3], [5, 5]], labels=[0, 1, -1], head=head))
    >>> predictions.predicted.tolist(), predictions.correct.mean(axis=1).tolist()
    ([[0, 0], [0, 1]], [0.5, 1.0])
    """
    if queries.head is not None:
        return _by_head(queries, queries.head, dims)
    if database is not None:
        return _by_neighbour(queries, database, dims, progress)
    raise EmbeddingsError(
        "predictions need a head, or a database of labelled vectors",
        got=f"{queries.path} without a head, and no database",
        cure="give the train split as the database, or encode with a model that has a head",
    )


def _by_head(queries: EmbeddingSet, head: Head, dims: Sequence[int] | None) -> Predictions:
    nesting = Nesting(head.dims if dims is None else sorted({*dims}))
    nesting.check_fits(head.dim)
    labels = labels_of(queries, "queries")
    _check_head(head, labels)
    rows = _not_empty(np.flatnonzero(labels != UNKNOWN))
    predicted = np.empty((len(nesting), len(rows)), np.int64)
    confidence = np.empty(predicted.shape, np.float32)
    for span, here, vectors in queries.batches_of(rows, head.classes):
        with np.errstate(over="ignore", invalid="ignore"):   # reported by check_finite, with the row
            for place, (_, logits) in enumerate(head.all_logits(vectors, nesting.dims)):
                check_finite(logits, here, "queries")
                predicted[place, span], confidence[place, span] = top(logits)
    return Predictions("head", nesting.dims, labels[rows], predicted, confidence, rows)


def _by_neighbour(
    queries: EmbeddingSet, database: EmbeddingSet, dims: Sequence[int] | None, progress: bool
) -> Predictions:
    known, asked = labels_of(database, "database"), labels_of(queries, "queries")
    check_pair(database, queries, ("database", "queries"))
    nesting = chosen_dims(queries, dims)
    rows = _not_empty(np.flatnonzero(np.isin(asked, known[known != UNKNOWN])))
    check_several(known)
    check_different(database, queries)
    vectors = queries.vectors if len(rows) == queries.count else queries.vectors[rows]
    neighbours = search(database.vectors, vectors, nesting.dims, k=1, progress=progress)
    nearest = np.stack([neighbours[dim][:, 0] for dim in nesting.dims])
    confidence = _cosines(database.vectors, vectors, nearest, nesting)
    return Predictions("1-NN", nesting.dims, asked[rows], known[nearest], confidence, rows)


def _cosines(database: Array, queries: Array, nearest: Integers, nesting: Nesting) -> Floats:
    cosines = np.empty(nearest.shape, np.float32)
    step = max(1, _BATCH // nesting.dim)
    for start in range(0, len(queries), step):
        span = slice(start, start + step)
        for place, dim in enumerate(nesting.dims):   # each dim has another neighbour, so sums cannot be shared
            pair = queries[span, :dim], database[nearest[place, span], :dim]
            left, right = (truncate(side.astype(np.float64), dim) for side in pair)
            cosines[place, span] = (left * right).sum(axis=1)
    return cosines


def class_name(embeddings: EmbeddingSet, label: int) -> str:
    """Return the name of a predicted class, or its number if it has none."""
    if label == UNKNOWN:
        return "unknown"
    return embeddings.classes[label] if label < len(embeddings.classes) else str(label)


def _check_head(head: Head, labels: Integers) -> None:
    if head.classes < 2 or labels.max() >= head.classes:
        raise EmbeddingsError(
            "the head must have at least two classes, and every class of the queries",
            got=f"{head.classes} classes, labels up to {labels.max()}",
            cure="use the head trained with them, or label the rows of other classes −1",
        )


def _not_empty(rows: Integers) -> Integers:
    if len(rows) == 0:
        raise EmbeddingsError(
            "some queries must be of a known class, which the database must hold if there is no head",
            got="none",
            cure="check that both were labelled with the same list of classes",
        )
    return rows
