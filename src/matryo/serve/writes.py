"""Changes to an index: upsert, delete, compaction, and a bulk load that acknowledges what is durable.

A change is answered after its commit, so nothing that was acknowledged is lost when the server is killed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.serve.http.errors import ApiError, as_api_error
from matryo.serve.http.request import Request, Response, Stream
from matryo.serve.http.schema import Field, Schema
from matryo.serve.http.wire import as_matrix, dumps, loads
from matryo.serve.search import IDS, TEXTS, VECTORS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from matryo.arrays import Floats
    from matryo.retrieve import Index
    from matryo.serve.indexes import ServedIndex
    from matryo.serve.search import Search

__all__ = ["DELETE", "ROW", "UPSERT", "Writes"]

UPSERT = Schema("Upsert", (
    Field("ids", IDS, "the ids; rows that exist are replaced", required=True),
    Field("vectors", VECTORS, "one vector per id, or base64 of little-endian float32"),
    Field("text", TEXTS, "one text per id, which the model of the index encodes"),
    Field("image", TEXTS, "one data URL per id, which the model of the index encodes"),
    Field("model", {"type": "string"}, "a served model, if the index does not record which one made its vectors"),
    Field("payload", {"type": "array", "items": {}}, "one object per id, or null"),
))  # fmt: skip
DELETE = Schema("Delete", (Field("ids", IDS, "the ids, all of which must exist", required=True),))
ROW = Schema("Row", (
    Field("id", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "the id; a later row replaces it",
          required=True),
    Field("vector", VECTORS, "the vector, or base64 of little-endian float32"),
    Field("text", {"type": "string", "minLength": 1}, "a text, which the model of the index encodes"),
    Field("payload", {"type": "object"}, "the payload"),
))  # fmt: skip

_ROWS, _BYTES = 1000, 4 << 20   # of a batch of a bulk load
_LINE = 8 << 20   # bytes of a line


@dataclass
class _Batch:
    """The rows of a bulk load that are not committed yet, by id: a later row replaces an earlier one."""

    first: int
    """The number of its first line."""
    rows: dict[int | str, dict[str, Any]] = field(default_factory=dict)
    bytes: int = 0
    lines: int = 0


class Writes:
    """The endpoints of indexes that change them."""

    def __init__(self, search: Search) -> None:
        self.search, self.limits = search, search.limits

    async def upsert(self, request: Request) -> Response:
        """Add rows, or replace those that exist."""
        index = self.search.indexes.find(request.name)
        fields = UPSERT.check(await request.json())
        given = [name for name in ("vectors", "text", "image") if name in fields]
        if len(given) != 1:
            raise ApiError(400, f"send one of vectors, text or image (got {' and '.join(given) or 'none'})",
                           param=given[-1] if given else "vectors")  # fmt: skip
        ids, (kind,) = fields["ids"], given
        if kind == "vectors":
            vectors = as_matrix(fields[kind], index.dim, kind, self.limits.rows)
        else:
            vectors = await self.search.encode(index, fields[kind], kind, self.limits.rows, fields.get("model"),
                                               "document")  # fmt: skip
        request.facts.update(index=index.name, items=len(ids))
        return await self._upsert(index, ids, vectors, fields.get("payload"))

    async def delete(self, request: Request) -> Response:
        """Delete rows."""
        index = self.search.indexes.find(request.name)
        ids = DELETE.check(await request.json())["ids"]
        if len(ids) > self.limits.rows:
            raise ApiError(400, f"ids must be at most {self.limits.rows:,} (got {len(ids):,})", param="ids")
        request.facts.update(index=index.name, items=len(ids))

        def delete(writer: Index) -> int:
            writer.delete(ids)
            return len(writer)

        try:
            count = await index.write(delete)
        except InputError as error:
            raise as_api_error(error, "ids") from None
        index.metrics.count("rows_written_total", len(ids), index=index.name)
        return Response.json({"index": index.name, "deleted": len(ids), "count": count})

    async def compact(self, request: Request) -> Response:
        """Start a compaction in the background, while searches and changes continue."""
        index = self.search.indexes.find(request.name)
        compaction = await index.write(lambda writer: writer.compact(background=True))
        return Response.json({"index": index.name, "done": compaction.done}, status=202)

    async def load(self, request: Request) -> Stream:
        """Upsert a stream of rows, and acknowledge each batch of them when it is durable."""
        index = self.search.indexes.find(request.name)
        index.check_writable()
        answers = self._load(index, request)
        first = await anext(answers)   # an error in the first batch is an answer with its own status

        async def lines() -> AsyncIterator[bytes]:
            yield first
            try:
                async for line in answers:
                    yield line
            except Exception as error:
                request.facts["failed"] = type(error).__name__
                yield dumps({**as_api_error(error).body(), "committed": request.facts.get("items", 0)}) + b"\n"

        return Stream(lines())

    async def _upsert(self, index: ServedIndex, ids: Any, vectors: Floats, payload: Any) -> Response:
        if len(ids) != len(vectors):
            raise ApiError(400, f"send one vector per id (got {len(ids):,} ids and {len(vectors):,})", param="ids")
        try:
            dumps(payload)
        except TypeError:   # it could not be returned later
            raise ApiError(400, "a payload must have at most 250 levels", param="payload") from None

        def upsert(writer: Index) -> int:
            writer.upsert(vectors, ids, payload)
            return len(writer)

        try:
            count = await index.write(upsert)
        except InputError as error:
            raise as_api_error(error) from None
        index.metrics.count("rows_written_total", len(ids), index=index.name)
        return Response.json({"index": index.name, "upserted": len(ids), "count": count})

    async def _load(self, index: ServedIndex, request: Request) -> AsyncIterator[bytes]:
        committed = 0
        async for batch in _batches(request):
            vectors = await self._vectors(index, batch)
            payload = [row.get("payload") for row in batch.rows.values()]
            try:
                await self._upsert(index, list(batch.rows), vectors, payload)
            except ApiError as error:
                raise _at(batch, error) from None
            committed += batch.lines
            request.facts.update(index=index.name, items=committed)
            yield dumps({"committed": committed}) + b"\n"
        yield dumps({"committed": committed, "done": True}) + b"\n"

    async def _vectors(self, index: ServedIndex, batch: _Batch) -> Floats:
        rows = list(batch.rows.values())
        if not any("text" in row for row in rows):
            try:
                return np.concatenate([as_matrix(row.get("vector", []), index.dim, "vector", 1) for row in rows])
            except ApiError as error:
                raise _at(batch, error) from None
        if not all("text" in row and "vector" not in row for row in rows):
            raise _at(batch, ApiError(400, "rows must have all a vector, or all a text", param="text"))
        texts = [row["text"] for row in rows]
        while True:   # a load waits for its turn; the client sees this as a slower stream
            try:
                return await self.search.encode(index, texts, "text", len(texts), None, "document")
            except ApiError as error:
                if error.status != 429:
                    raise _at(batch, error) from None
                await asyncio.sleep(error.retry)


async def _batches(request: Request) -> AsyncIterator[_Batch]:
    """The rows of a body of NDJSON, in batches."""
    batch, rest, number = _Batch(1), b"", 0
    async for part in request.parts():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _LINE:
            raise ApiError(413, f"a line must have at most {_LINE:,} bytes", code="line_too_long")
        for line in lines:
            number += 1
            _add(batch, line, number)
            if len(batch.rows) >= _ROWS or batch.bytes >= _BYTES:
                yield batch
                batch = _Batch(number + 1)
    _add(batch, rest, number + 1)
    if batch.rows:
        yield batch


def _add(batch: _Batch, line: bytes, number: int) -> None:
    if not line.strip():
        return
    try:
        row = ROW.check(loads(line))
    except ApiError as error:
        error.message = f"line {number}: {error.message}"
        raise
    batch.rows.pop(row["id"], None)
    batch.rows[row["id"]] = row
    batch.bytes += len(line)
    batch.lines += 1


def _at(batch: _Batch, error: ApiError) -> ApiError:
    """``error`` with the lines it is about."""
    last = batch.first + batch.lines - 1
    error.message = f"lines {batch.first} to about {last}: {error.message}"
    return error
