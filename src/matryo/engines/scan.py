"""Exact search in batches that a database streams: one pass over the vectors, for every query and dim at once.

>>> rows = np.array([[1, 0, 0, 9], [1, 0, 0, 1], [0, 1, 0, 0]], "f4")
>>> found = scan([(np.arange(3), rows)], np.array([[1, 0, 0, 1]], "f4"), 2, "ip", [2, 4])
>>> found[4].ids.tolist(), found[4].scores.tolist(), found[2].ids.tolist()
([[0, 1]], [[10.0, 2.0]], [[0, 1]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.nesting import as_nesting, prefix_norms
from matryo.retrieve.hits import Hits
from matryo.retrieve.vectors.metric import Metric, score

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def scan(
    batches: Iterable[tuple[Any, Any]], queries: Any, keep: int, metric: Metric, dims: Sequence[int]
) -> dict[int, Hits]:
    """The best ``keep`` rows of each query by each prefix of ``dims``; ``batches`` are ids and vectors [n, d].

    A row that is all zeros has no cosine and is not found, as in the databases.
    """
    nesting = as_nesting(list(dims))
    lengths = prefix_norms(queries[:, : nesting.dim], nesting)
    best: dict[int, tuple[Any, Any]] = {}
    for ids, vectors in batches:
        norms = prefix_norms(vectors[:, : nesting.dim], nesting)
        sums = np.zeros((len(queries), len(vectors)), np.float32)
        for level, (low, high) in enumerate(nesting.blocks):
            sums += queries[:, low:high] @ vectors[:, low:high].T
            scores = score(metric, sums, norms[None, :, level], lengths[:, None, level])
            if metric == "cosine":
                scores = np.where(norms[None, :, level] > 0, scores, -np.inf)
            elif metric == "l2":
                scores = np.minimum(scores, 0)
            best[high] = _merged(best.get(high), ids, scores, keep)
    return {dim: _hits(found, keep) for dim, found in best.items()}


def _merged(held: Any, ids: Any, scores: Any, keep: int) -> tuple[Any, Any]:
    if scores.shape[1] > keep:
        part = np.argpartition(-scores, keep - 1, axis=1)[:, :keep]
        scores, ids = np.take_along_axis(scores, part, 1), ids[part]
    else:
        ids = np.broadcast_to(ids, scores.shape)
    if held is not None:
        ids, scores = np.concatenate([held[0], ids], 1), np.concatenate([held[1], scores], 1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :keep]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)


def _hits(found: tuple[Any, Any], keep: int) -> Hits:
    ids, scores = found
    missing = keep - ids.shape[1]
    if missing > 0:
        ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=nothing(ids))
        scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
    ids = np.where(np.isfinite(scores), ids, nothing(ids))
    return Hits(ids, scores)


def nothing(ids: Any) -> Any:
    """The id of an unused place."""
    return "" if ids.dtype == object else -1
