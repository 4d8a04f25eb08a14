"""The answers of a shard to a router: hits with exact scores and row numbers, samples of rows, and additions.

Scores in float64 and row numbers let the router merge the hits of all shards as one index would. JSON carries both
without loss.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.plan.plan import Plan
from matryo.retrieve.store import Batch
from matryo.serve.batching import Batcher
from matryo.serve.http.errors import ApiError, as_api_error
from matryo.serve.http.openapi import Route
from matryo.serve.http.request import Request, Response
from matryo.serve.http.schema import Field, Schema
from matryo.serve.http.wire import as_matrix, dumps, loads
from matryo.serve.indexes import How
from matryo.serve.search import IDS, VECTORS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from matryo.retrieve import Index
    from matryo.serve.indexes import ServedIndex
    from matryo.serve.search import Search

__all__ = ["ShardAnswers"]

NEAREST = Schema("Nearest", (
    Field("vector", VECTORS, "the queries, or base64 of little-endian float32", required=True),
    Field("k", {"type": "integer", "minimum": 1}, "hits per query", required=True),
    Field("plan", {"type": "object"}, "a plan; without one, the search is exact"),
    Field("where", {"type": "object"}, "search only rows whose payload matches; unknown fields match nothing"),
    Field("payload", {"type": "boolean"}, "return the payload of each hit [false]"),
))  # fmt: skip
SAMPLE = Schema("Sample", (
    Field("count", {"type": "integer", "minimum": 0}, "rows, at most those that exist", required=True),
    Field("seed", {"type": "integer", "minimum": 0}, "seed of the choice", required=True),
))  # fmt: skip
PUT = Schema("Put", (
    Field("ids", IDS, "the ids; rows that exist are replaced", required=True),
    Field("vectors", VECTORS, "one vector per id, or base64 of little-endian float32", required=True),
    Field("payload", {"type": "array", "items": {}}, "one object per id, or null"),
    Field("numbers", {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
          "increasing row numbers, larger than all before", required=True),
))  # fmt: skip


class ShardAnswers:
    """The endpoints of an index as a shard."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._batchers: dict[str, Batcher] = {}
        self._plans: dict[bytes, Plan] = {}   # requests with equal plans share one object

    def routes(self) -> tuple[Route, ...]:
        """The paths of these endpoints."""
        one = "/v1/indexes/{name}"
        return (
            Route("GET", f"{one}/shard", self.describe, "Describe an index to a router"),
            Route("POST", f"{one}/nearest", self.nearest, "Search, with exact scores and row numbers", NEAREST),
            Route("POST", f"{one}/sample", self.sample, "Return random rows", SAMPLE),
            Route("POST", f"{one}/put", self.put, "Add or replace rows with given row numbers", PUT, writes=True,
                  timed=False),
        )  # fmt: skip

    async def describe(self, request: Request) -> Response:
        """The settings, the counters, the guides and the state."""
        index = self._find(request)

        def facts() -> dict[str, Any]:
            reader, counters = index.reader, index.reader.counters
            return {
                "index": index.name, "dims": list(reader.nesting.dims), "metric": reader.metric, "dtype": reader.dtype,
                "model": reader.model, "count": counters.count, "kind": counters.kind, "next_row": counters.next_row,
                "state": reader.state, "openings": [plan.to_dict() for plan in reader.openings],
                "fields": reader.fields(), "writable": index.writable, "guides": sorted(reader.wanted()),
            }  # fmt: skip

        return Response.json(await asyncio.to_thread(facts))

    async def nearest(self, request: Request) -> Response:
        """The hits of each query as three lists: ids, scores in float64 and row numbers; on request also payloads."""
        index = self._find(request)
        batcher = self._batcher(index)
        batcher.admit()
        fields = NEAREST.check(await request.json())
        vectors = as_matrix(fields["vector"], index.dim, "vector", self.search.limits.queries)
        plan = None
        if "plan" in fields:
            content = dumps(fields["plan"])
            if content not in self._plans and len(self._plans) > 256:
                self._plans.clear()
            plan = self._plans.setdefault(content, Plan.from_dict(fields["plan"]))
        where = dumps(fields["where"]).decode() if "where" in fields else ""
        how = How(fields["k"], plan, where, fields.get("payload", False))
        request.facts.update(index=index.name, items=len(vectors))
        try:
            results = await batcher.run(vectors, [1.0] * len(vectors), how)
        except InputError as error:
            raise as_api_error(error) from None
        return Response(dumps({"results": results}))

    async def sample(self, request: Request) -> Response:
        """Random rows: their ids and vectors."""
        index = self._find(request)
        fields = SAMPLE.check(await request.json())
        count = min(fields["count"], len(index.reader))
        if count > self.search.limits.rows:
            raise ApiError(400, f"count must be at most {self.search.limits.rows:,}", param="count")
        ids, vectors = await asyncio.to_thread(index.reader.sample, count, fields["seed"]) if count else ([], [])
        return Response(dumps({"ids": list(ids), "vectors": list(np.asarray(vectors))}))

    async def put(self, request: Request) -> Response:
        """Add or replace rows whose row numbers the router chose."""
        index = self._find(request)
        fields = PUT.check(await request.json())
        ids, numbers = fields["ids"], fields["numbers"]
        vectors = as_matrix(fields["vectors"], index.dim, "vectors", self.search.limits.rows)
        if not len(ids) == len(numbers) == len(vectors):
            raise ApiError(400, "send one vector and one number per id", param="numbers")

        def put(writer: Index) -> int:
            if numbers[0] < writer.counters.next_row or (np.diff(numbers) <= 0).any():
                rule = f"numbers must increase from {writer.counters.next_row} on"
                raise InputError(rule, got=numbers[0], cure="use one router that writes")
            batch = Batch(vectors, ids, fields.get("payload"))
            writer.put(batch, np.array(numbers, np.int64), may_replace=True)
            return len(writer)

        try:
            count = await index.write(put)
        except InputError as error:
            raise as_api_error(error) from None
        return Response.json({"count": count})

    def _find(self, request: Request) -> ServedIndex:
        index = self.search.indexes.find(request.name)
        if not hasattr(index.reader, "nearest"):
            message = f"the index {index.name} is sharded itself: a router takes the shards"
            raise ApiError(400, message, code="not_a_shard")
        return index

    def _batcher(self, index: ServedIndex) -> Batcher:
        """The queue of an index; its thread starts with the first request of a router."""
        if index.name not in self._batchers:
            limits = self.search.limits

            def seen(cost: float, seconds: float) -> None:
                index.metrics.observe("batch_cost", cost, queue=f"{index.name} shard")
                index.metrics.observe("batch_seconds", seconds, queue=f"{index.name} shard")

            self._batchers[index.name] = Batcher(
                lambda kind, items: _nearest(index, kind, items), step=limits.step, wait=limits.wait, least=1,
                most=limits.queries, seen=seen, name=f"{index.name}-shard",
            )  # fmt: skip
        return self._batchers[index.name]


def _nearest(index: ServedIndex, how: Hashable, items: Any) -> list[dict[str, Any]]:
    """The hits of each query, without unused places."""
    assert isinstance(how, How)
    queries, reader = np.stack(items), index.reader
    where = loads(how.where.encode()) if how.where else None
    found = reader.nearest(queries, how.k, how.plan, where, min(index.threads, len(queries)))
    assert found.numbers is not None
    payloads = reader.payloads(found.numbers) if how.payload else None
    results = []
    for query, numbers in enumerate(found.numbers):
        used = int(np.count_nonzero(numbers >= 0))   # they come first
        entry = {"ids": found.ids[query, :used].tolist(), "scores": found.scores[query, :used],
                 "rows": numbers[:used]}   # fmt: skip
        results.append(entry if payloads is None else {**entry, "payloads": payloads[query][:used]})
    return results
