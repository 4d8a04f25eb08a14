"""The cost and the recall of each dim, on a sample of rows: bytes, multiply-adds, milliseconds, hits that are found.

Each sampled row is a query, and is left out of its own hits. Recall is the share of the hits of exact search at full
dim. If titles or classes repeat, ``same`` is the share of queries whose nearest row has the same one.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.metrics import mflops, vector_bytes
from matryo.retrieve import Plan

if TYPE_CHECKING:
    from matryo.retrieve import Index
    from matryo.serve.explorer.show import Shown

__all__ = ["K", "costs"]

K = 10
_SAMPLE = 200   # queries
_LEAST, _WORK = 20, 2e10   # queries of a large index: about this many multiply-adds per dim
_REPETITIONS = 3   # of the timed batch; the fastest one counts
_REPEATS = 0.2   # the least share of equal titles for titles to be compared


@dataclass(frozen=True)
class Cost:
    """One dim."""

    dim: int
    bytes: int
    """Per vector."""
    mflops: float
    """Millions of multiply-adds per query of a scan."""
    ms: float
    """Milliseconds per query of a batch, on one thread."""
    recall: float
    same: float | None = None


def costs(index: Index, shown: Shown, seed: int = 0) -> dict[str, Any]:
    """The cost and the recall of each dim, and how they were measured."""
    count = min(_SAMPLE, len(index), max(_LEAST, int(_WORK / max(1, len(index) * index.nesting.dim))))
    k = min(K, len(index) - 1)
    if k < 1:
        return {"k": 0, "queries": 0, "same": None, "dims": []}
    ids, queries = index.sample(count, seed)
    found, ms = {}, {}
    for dim in index.nesting.dims:
        plan = None if dim == index.nesting.dim else Plan.single(dim, k=k + 1)
        found[dim] = [_others(own, id, k) for own, id in zip(index.search(queries, k + 1, plan).ids, ids, strict=True)]
        ms[dim] = _milliseconds(index, queries, k + 1, plan)
    best = found[index.nesting.dim]
    field, same = _same(index, shown, ids.tolist(), found)
    rows = [
        Cost(dim, index.about.code_bytes or vector_bytes(dim, index.dtype), mflops(len(index), dim), ms[dim],
             _overlap(found[dim], best, k), same.get(dim))
        for dim in index.nesting.dims
    ]  # fmt: skip
    return {"k": k, "queries": count, "same": field, "dims": [asdict(row) for row in rows]}


def _others(found: Any, own: Any, k: int) -> list[Any]:
    """The first ``k`` hits without the query itself, which ranks lower than ``k`` if many rows are equal."""
    return [id for id in found.tolist() if id != own][:k]


def _overlap(found: list[list[Any]], best: list[list[Any]], k: int) -> float:
    return float(np.mean([len(set(own) & set(other)) / k for own, other in zip(found, best, strict=True)]))


def _milliseconds(index: Index, queries: Any, k: int, plan: Plan | None) -> float:
    times = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        index.search(queries, k, plan)
        times.append(time.perf_counter() - start)
    return 1000 * min(times) / len(queries)


def _same(
    index: Index, shown: Shown, ids: list[Any], found: dict[int, list[list[Any]]]
) -> tuple[str | None, dict[int, float]]:
    """The field that is compared, and for each dim the share of queries whose nearest row has the same value."""
    nearest = {dim: [hits[0] for hits in own] for dim, own in found.items()}
    wanted = list(dict.fromkeys([*ids, *(id for own in nearest.values() for id in own)]))
    payloads = dict(zip(wanted, index.get(wanted)[1], strict=True))
    for field in (*shown.texts[:1], shown.group):
        if field:
            shares = {dim: _share(ids, own, payloads, field) for dim, own in nearest.items()}
            if shares[index.nesting.dim] >= _REPEATS:
                return field, shares
    return None, {}


def _share(ids: list[Any], nearest: list[Any], payloads: dict[Any, Any], field: str) -> float:
    values = [(payloads[id].get(field), payloads[other].get(field)) for id, other in zip(ids, nearest, strict=True)]
    return float(np.mean([own is not None and own == other for own, other in values]))
