"""Every dim × every protocol in one pass: linear head, k-NN, and the retrieval metrics of the paper.

The protocols: **head** is the accuracy of the classifier kept with the queries; **top-k** asks whether any of
the k nearest database vectors has the query's class (top-1 is 1-NN classification); **k-NN** is the accuracy of
their majority; **mAP@k**, **P@k** and **recall@k** grade the k nearest by class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings import UNKNOWN
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_pair, check_several, chosen_dims, labels_of
from matryo.evaluation.knn.search import search_batches
from matryo.evaluation.result import DimRow, Evaluation
from matryo.metrics import (
    hit_rate,
    label_ranks,
    majority,
    mean_average_precision,
    mflops,
    precision,
    recall,
    relevance,
)
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.embeddings import EmbeddingSet

    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]

__all__ = ["evaluate"]

_VOTERS = (5, 10, 20)   # the k of k-NN
_HEAD_BATCH = 8 << 20   # numbers, of vectors or of logits, that the head holds at a time


def evaluate(
    database: EmbeddingSet,
    queries: EmbeddingSet,
    *,
    dims: Sequence[int] | None = None,
    interpolated: bool = True,
    ks: Sequence[int] = (10, 25, 50, 100),
    progress: bool = True,
) -> Evaluation:
    """Search ``database`` for each of ``queries`` at every dim, and grade what is found.

    The dims are :func:`default_dims` of the queries' nesting, unless ``dims`` lists others. A k beyond the size
    of the database is left out, and top-5 and top-10 look at the whole of a smaller one. Queries of unknown class
    (−1), or of one that the database lacks, are left out of every figure and counted; database vectors of unknown
    class are found and count as wrong, but cast no vote. A query that is itself in the database finds itself. A
    head in the queries' folder is graded too: at its own dims if it is separate, at all dims if it is tied.
    """
    known, asked = labels_of(database, "database"), labels_of(queries, "queries")
    check_pair(database, queries, ("database", "queries"))
    nesting, depths = chosen_dims(queries, dims, interpolated), _depths(ks, database.count)
    totals = _totals(known, asked)
    used = np.flatnonzero(totals)
    if len(used) == 0:
        raise EmbeddingsError(
            "some queries must be of a class that the database holds",
            got=f"{queries.count} queries, none of them",
            cure="check that both were labelled with the same list of classes",
        )
    check_several(known)
    neighbours = _search(database, queries, used, nesting, depths, progress)
    head = _head_accuracy(queries, used, nesting)
    rows = tuple(
        DimRow(
            dim=dim,
            trained=dim in queries.nesting.dims,
            mflops=mflops(database.count, dim),
            **_graded(neighbours[dim], totals[used], depths),
            **head.get(dim, {}),
        )
        for dim in nesting.dims
    )
    about, left_out = queries.manifest, queries.count - len(used)
    return Evaluation(about.title, about.dataset, about.split, database.count, len(used), left_out, rows)


def _graded(found: _Neighbours, totals: Integers, depths: list[int]) -> dict[str, Any]:
    relevant = found.relevant
    return {
        **{f"top{k}": hit_rate(relevant, min(k, relevant.shape[1])) for k in (1, 5, 10)},
        "map_at": {k: mean_average_precision(relevant, totals, k) for k in depths},
        "precision_at": {k: precision(relevant, k) for k in depths},
        "recall_at": {k: recall(relevant, totals, k) for k in depths},
        "knn": found.knn,
    }


@dataclass(frozen=True)
class _Neighbours:
    """Which neighbours at one dim have the query's class [queries, depth], and how often k of them elect it."""

    relevant: Bools
    knn: dict[int, float]


def _search(
    database: EmbeddingSet,
    queries: EmbeddingSet,
    used: Integers,
    nesting: Nesting,
    depths: list[int],
    progress: bool,
) -> dict[int, _Neighbours]:
    known, asked = labels_of(database, "database"), labels_of(queries, "queries")[used]
    vectors = queries.vectors if len(used) == queries.count else queries.vectors[used]
    voters = [k for k in _VOTERS if k <= database.count]
    depth = min(max([10, *depths, *voters]), database.count)
    relevant: dict[int, list[Bools]] = {dim: [] for dim in nesting.dims}
    right = {dim: dict.fromkeys(voters, 0) for dim in nesting.dims}
    for batch in search_batches(database.vectors, vectors, nesting.dims, depth, progress=progress):
        for dim, indices in batch.indices.items():
            retrieved, truth = known[indices], asked[batch.start : batch.start + len(indices)]
            relevant[dim].append(relevance(retrieved, truth))
            for k in voters:
                right[dim][k] += int((majority(retrieved, k) == truth).sum())
    return {
        dim: _Neighbours(np.concatenate(relevant[dim]), {k: right[dim][k] / len(used) for k in voters})
        for dim in nesting.dims
    }


def _head_accuracy(queries: EmbeddingSet, used: Integers, nesting: Nesting) -> dict[int, dict[str, Any]]:
    head = queries.head
    if head is None:
        return {}
    dims = [m for m in nesting.dims if (m in head.dims if head.kind == "separate" else m <= head.dim)]
    labels, ranks = labels_of(queries, "queries"), {dim: np.empty(len(used), np.int64) for dim in dims}
    done = 0
    for start, vectors in queries.batches(max(1, _HEAD_BATCH // max(head.classes, queries.dim))):
        rows = used[(used >= start) & (used < start + len(vectors))]
        for dim, logits in head.all_logits(vectors[rows - start], dims) if dims else ():
            ranks[dim][done : done + len(rows)] = label_ranks(logits, labels[rows])
        done += len(rows)
    return {dim: {f"head_top{k}": float((rank < k).mean()) for k in (1, 5)} for dim, rank in ranks.items()}


def _depths(ks: Sequence[int], count: int) -> list[int]:
    if any(k < 1 for k in ks):
        raise InputError("every k must be at least 1", got=tuple(ks), cure="drop the others")
    return [k for k in sorted({*ks}) if k <= count]


def _totals(known: Integers, asked: Integers) -> Integers:
    # How many database vectors share each query's class. Labels may be any integers, so they are looked up.
    classes, counts = np.unique(known[known != UNKNOWN], return_counts=True)
    if len(classes) == 0:
        return np.zeros_like(asked)
    place = np.minimum(np.searchsorted(classes, asked), len(classes) - 1)
    return np.where(classes[place] == asked, counts[place], 0)
