"""``/v1/indexes``: search by vector, text or image, get, statistics and plans."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.nesting import truncate
from matryo.retrieve import Plan
from matryo.retrieve.plan.choice import outline
from matryo.serve.embeddings import decode_images
from matryo.serve.http.errors import ApiError, as_api_error
from matryo.serve.http.request import Request, Response
from matryo.serve.http.schema import Field, Schema
from matryo.serve.http.wire import as_matrix, dumps, loads, vectors_as
from matryo.serve.indexes import How, Indexes, ServedIndex

if TYPE_CHECKING:
    from matryo.arrays import Floats
    from matryo.nesting import Nesting
    from matryo.retrieve.plan.choice import Choice
    from matryo.serve.limits import Limits
    from matryo.serve.models import Models, ServedModel

__all__ = ["GET", "PLAN", "SEARCH", "Search", "facts_of", "how_of", "plan_of"]

_ROWS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "minItems": 1}
VECTORS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}, "minItems": 1}, _ROWS]}
TEXTS = {"anyOf": [{"type": "string", "minLength": 1},
                   {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}]}  # fmt: skip
IDS = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "minItems": 1}
_K = Field("k", {"type": "integer", "minimum": 1}, "hits per query [10]")
_RECALL = {"type": "number", "minimum": 0, "maximum": 1}
SEARCH = Schema("Search", (
    Field("vector", VECTORS, "a query, a list of queries, or base64 of little-endian float32"),
    Field("text", TEXTS, "a query or a list of queries, which the model of the index encodes"),
    Field("image", TEXTS, "data URLs of images, which the model of the index encodes"),
    Field("model", {"type": "string"}, "a served model, if the index does not record which one made its vectors"),
    _K,
    Field("recall", _RECALL, "use the plan that was made for this recall and k; without one, the search is exact"),
    Field("plan", {"type": "object"}, "a plan, as `matryo plan --out` writes it"),
    Field("dim", {"type": "integer", "minimum": 1}, "search at this dim alone"),
    Field("where", {"type": "object"}, "search only rows whose payload matches, for example "
          '{"year": {"$gte": 2020}}'),
    Field("payload", {"type": "boolean"}, "return the payload of each hit [false]"),
    Field("partial", {"type": "boolean"}, "of a router: if shards do not answer, return the hits of the others, and "
          "name the missing shards in the answer's `partial` [false: status 503]"),
))  # fmt: skip
GET = Schema("Get", (
    Field("ids", IDS, "the ids of rows, all of which must exist", required=True),
    Field("vectors", {"type": "boolean"}, "return the vectors [true]"),
    Field("encoding_format", {"type": "string", "enum": ["float", "base64"]}, "float (the default) or base64"),
))  # fmt: skip
PLAN = Schema("Plan", (
    Field("recall", _RECALL, "the share of the hits of exact search to find [0.99]"),
    _K,
    Field("queries", VECTORS, "a sample of real queries; by default, rows of the index"),
))  # fmt: skip


class Search:
    """The endpoints of indexes that change nothing."""

    def __init__(self, indexes: Indexes, models: Models, limits: Limits) -> None:
        self.indexes, self.models, self.limits = indexes, models, limits

    async def search(self, request: Request) -> Response:
        """Search."""
        index = self.indexes.find(request.name)
        index.batcher.admit()
        fields = SEARCH.check(await request.json())
        k = fields.get("k", 10)
        how, plan = how_of(index, fields, k)
        vectors = await self.vectors(index, fields, self.limits.queries)
        if len(vectors) * k > self.limits.hits:
            message = f"a search returns at most {self.limits.hits:,} hits (got {len(vectors):,} queries × k={k})"
            raise ApiError(400, f"{message}: search for fewer", param="k")
        request.facts.update(index=index.name, items=len(vectors))
        hits = await index.search(vectors, how)
        missing = getattr(hits, "missing", ())   # of a router
        partial = {"partial": {"missing_shards": list(missing)}} if missing else {}
        return Response(dumps({"index": index.name, "plan": plan, **partial, "results": hits}))

    async def list(self, request: Request) -> Response:   # noqa: ARG002
        """The names and sizes of all indexes."""
        facts = [{"name": index.name, "count": len(index.reader), "dims": list(index.reader.nesting.dims),
                  "metric": index.reader.metric, "writable": index.writable}
                 for index in self.indexes]  # fmt: skip
        return Response.json({"indexes": facts})

    async def stats(self, request: Request) -> Response:
        """The size, the settings and the fields of one index."""
        index = self.indexes.find(request.name)

        def facts() -> dict[str, Any]:
            about = index.reader.describe().to_dict()
            for private in ("folder", "run"):   # paths of the server
                about.pop(private)
            return {"name": index.name, **about, "writable": index.writable, "state": index.reader.state}

        return Response.json(await asyncio.to_thread(facts))

    async def get(self, request: Request) -> Response:
        """The vectors and payloads of rows."""
        index = self.indexes.find(request.name)
        fields = GET.check(await request.json())
        ids, form = fields["ids"], fields.get("encoding_format", "float")
        if len(ids) > self.limits.rows:
            raise ApiError(400, f"ids must be at most {self.limits.rows:,} (got {len(ids):,})", param="ids")
        try:
            vectors, payloads = await asyncio.to_thread(index.reader.get, ids)
        except InputError as error:
            raise as_api_error(error, "ids") from None
        entries = vectors_as(form, vectors) if fields.get("vectors", True) else [{}] * len(ids)
        rows = [
            {"id": id, **({"vector": entry["embedding"]} if entry else {}), "payload": payload}
            for id, entry, payload in zip(ids, entries, payloads, strict=True)
        ]
        return Response(await asyncio.to_thread(dumps, {"index": index.name, "rows": rows}))

    async def plan(self, request: Request) -> Response:
        """Choose a plan for a recall; later searches that name the recall use it."""
        index = self.indexes.find(request.name)
        fields = PLAN.check(await request.json())
        given = fields.get("queries")
        queries = None if given is None else as_matrix(given, index.dim, "queries", self.limits.rows)
        choice = await asyncio.to_thread(index.make_plan, fields.get("recall", 0.99), fields.get("k", 10), queries)
        return Response.json({"index": index.name, **facts_of(choice)})

    async def vectors(self, index: ServedIndex, fields: dict[str, Any], most: int) -> Floats:
        """The vectors of a request, which sends them as vectors, as texts or as images."""
        given = [name for name in ("vector", "text", "image") if name in fields]
        if len(given) != 1:
            message = f"send one of vector, text or image (got {' and '.join(given) or 'none'})"
            raise ApiError(400, message, param=given[-1] if given else "vector")
        (kind,) = given
        if kind == "vector":
            if "model" in fields:
                raise ApiError(400, "model encodes texts and images: drop it to send vectors", param="model")
            return as_matrix(fields["vector"], index.dim, "vector", most)
        return await self.encode(index, fields[kind], kind, most, fields.get("model"), "query")

    def model_of(self, index: ServedIndex) -> ServedModel | None:
        """The model that encodes texts and images for an index, if it is served."""
        facts = index.reader.model
        try:
            return self.models.for_index(None, {} if isinstance(facts, str) else facts, index.dim)
        except ApiError:
            return None

    async def encode(
        self, index: ServedIndex, given: Any, kind: str, most: int, model: str | None, input_type: str
    ) -> Floats:
        """The vectors of texts or images, by the model of the index, with the length of its vectors."""
        items = [given] if isinstance(given, str) else given
        if not all(isinstance(item, str) and item for item in items):
            raise ApiError(400, f"{kind} must be texts that are not empty", param=kind)
        if len(items) > most:
            raise ApiError(400, f"{kind} must be at most {most:,} (got {len(items):,}): send fewer", param=kind)
        facts = index.reader.model
        served = self.models.for_index(model, {} if isinstance(facts, str) else facts, index.dim)
        if not (served.facts.images if kind == "image" else served.facts.texts):
            raise ApiError(400, f"the model {served.name} does not read {kind}s", param=kind)
        if kind == "image":
            encoded = await served.encode_images(await decode_images(items, self.limits.images, "image"))
        else:
            encoded = await served.encode_texts(items, input_type)
        return truncate(encoded.vectors, index.dim, normalize=await asyncio.to_thread(lambda: index.unit))


def facts_of(choice: Choice) -> dict[str, Any]:
    """A choice of the planner as JSON values: the plan, the promise, and the plans it was chosen from."""
    frontier = [{**row, "plan": point.plan.to_dict(), "outline": row["plan"]}
                for row, point in zip(choice.to_rows(), choice.frontier, strict=True)]  # fmt: skip
    plan = None if choice.plan is None else choice.plan.to_dict()
    return {"plan": plan, "message": choice.message, "frontier": frontier}


def plan_of(index: ServedIndex, given: Any, param: str, k: int) -> Plan:
    """The plan of a request, which sends it as JSON or as a dim."""
    try:
        return _plan(given if isinstance(given, int) else dumps(given), k, index.reader.nesting)
    except InputError as error:
        raise as_api_error(error, param) from None


def how_of(index: ServedIndex, fields: dict[str, Any], k: int) -> tuple[How, str]:
    """How to search, and the plan in words."""
    given = [name for name in ("recall", "plan", "dim") if name in fields]
    if len(given) > 1:
        raise ApiError(400, f"send one of recall, plan or dim (got {' and '.join(given)})", param=given[-1])
    plan: Plan | None = None
    try:
        if "plan" in fields:
            plan = _plan(_as_json(fields, "plan"), k, index.reader.nesting)
        elif "dim" in fields:
            plan = _plan(fields["dim"], k, index.reader.nesting)
        elif "recall" in fields and (choice := index.plan(float(fields["recall"]), k)) is not None:
            plan = choice.plan
    except InputError as error:
        raise as_api_error(error, given[0]) from None
    where = _as_json(fields, "where").decode() if "where" in fields else ""
    how = How(k, plan, where, fields.get("payload", False), fields.get("partial", False))
    return how, _words(how) if index.reader.keeps_full else "codes"


def _as_json(fields: dict[str, Any], name: str) -> bytes:
    try:
        return dumps(fields[name])
    except TypeError:   # orjson reads more levels than it writes
        raise ApiError(400, f"{name} must have at most 250 levels", param=name) from None


@lru_cache(maxsize=256)
def _words(how: How) -> str:
    return "exact" if how.plan is None else outline(how.plan, how.k)


@lru_cache(maxsize=256)   # clients send the same plan again and again
def _plan(given: bytes | int, k: int, nesting: Nesting) -> Plan:
    """The plan of a request, as JSON or as a dim."""
    plan = Plan.single(given, k=k) if isinstance(given, int) else Plan.from_dict(loads(given))
    plan.for_k(k).check_fits(nesting)
    return plan
