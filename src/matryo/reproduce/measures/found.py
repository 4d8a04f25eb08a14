"""The findings of one seed, and how seeds become the cells of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation import predict
from matryo.evaluation.knn.search import search
from matryo.metrics import relevance
from matryo.metrics.ranking import average_precision
from matryo.reproduce.table import Cell, Label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array
    from matryo.embeddings import EmbeddingSet
    from matryo.reproduce.table import Cells

Found = dict[str, dict[Label, Any]]
"""Column, row, and either the outcome of each query as a share of 1, or a number as the table shows it."""

DEPTH = 10


def as_cells(by_seed: Sequence[Found]) -> Cells:
    """Return the cells of a table from what was found with each seed."""
    cells: Cells = {}
    for column, rows in by_seed[0].items():
        for label in rows:
            each = [found[column][label] for found in by_seed]
            outcomes = tuple(one for one in each if isinstance(one, np.ndarray))
            values = tuple(100 * float(one.mean()) if isinstance(one, np.ndarray) else float(one) for one in each)
            cells.setdefault(column, {})[label] = Cell(values, outcomes)
    return cells


def head_hits(queries: EmbeddingSet, dims: Sequence[int]) -> dict[Label, Array]:
    """Return whether the head is right about each query, by dim."""
    predictions = predict(queries, dims=dims)
    return dict(zip(predictions.dims, predictions.correct.astype(np.float32), strict=True))


def nearest(database: EmbeddingSet, queries: EmbeddingSet, dims: Sequence[int]) -> tuple[dict[Label, Array], ...]:
    """Return of each query, by dim, whether its nearest neighbour is of its class, and its AP@10."""
    known, asked = np.asarray(database.labels), np.asarray(queries.labels)
    rows = np.flatnonzero(np.isin(asked, known[known >= 0]))
    totals = np.bincount(known[known >= 0], minlength=int(asked.max()) + 1)[asked[rows]]
    found = search(database.vectors, queries.vectors[rows], dims, k=min(DEPTH, len(database)))
    first: dict[Label, Array] = {}
    precise: dict[Label, Array] = {}
    for dim, indices in found.items():
        relevant = relevance(known[indices], asked[rows])
        first[dim] = relevant[:, 0].astype(np.float32)
        precise[dim] = average_precision(relevant, totals, indices.shape[1])
    return first, precise
