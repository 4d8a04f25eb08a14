"""The endpoints of the explorer: one query at every dim, the cost of each dim, a map, and the planner's frontier."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.serve.explorer.files import file, page
from matryo.serve.explorer.show import Show
from matryo.serve.explorer.view import View
from matryo.serve.http.errors import ApiError, as_api_error
from matryo.serve.http.openapi import Route
from matryo.serve.http.request import Request, Response
from matryo.serve.http.schema import Field, Schema
from matryo.serve.http.wire import dumps
from matryo.serve.search import IDS, Search, facts_of, plan_of

if TYPE_CHECKING:
    from matryo.arrays import Floats
    from matryo.serve.indexes import ServedIndex

__all__ = ["Explorer"]

_DIM = {"type": "integer", "minimum": 1}
_ID = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_MOST_HITS, _MOST_IDS, _MATCHES, _EXAMPLES = 50, 200, 12, 18
_RECALL, _K = 0.99, 10   # of the plans on the page, as of `matryo plan`
_FRESH = 10.0   # seconds for which an index is taken as unchanged
COMPARE = Schema("Compare", (
    Field("id", _ID, "a row, which is left out of its own hits"),
    Field("words", {"type": "string", "minLength": 1}, "words in the texts of rows; the row that fits best is the "
          "query"),
    Field("text", {"type": "string", "minLength": 1}, "a text, which the model of the index encodes"),
    Field("image", {"type": "string", "minLength": 1}, "a data URL of an image, which the model of the index encodes"),
    Field("vector", {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}, "minItems": 1}]},
          "a vector, or base64 of little-endian float32"),
    Field("model", {"type": "string"}, "a served model, if the index does not record which one made its vectors"),
    Field("k", {"type": "integer", "minimum": 1, "maximum": _MOST_HITS}, "hits at each dim [10]"),
    Field("dims", {"type": "array", "items": _DIM, "minItems": 1, "maxItems": 32}, "by default, those of the index"),
    Field("plan", {"type": "object"}, "a plan, whose hits are returned too"),
))  # fmt: skip
ITEMS = Schema("Items", (Field("ids", IDS, "the ids of rows", required=True),))
MAP = Schema("MapRequest", (
    Field("dim", _DIM, "a dim of the index", required=True),
    Field("ids", IDS, "rows whose places are returned as marks"),
    Field("points", {"type": "boolean"}, "false returns the marks alone [true]"),
))  # fmt: skip


class Explorer:
    """The page and its endpoints."""

    def __init__(self, search: Search, show: Show) -> None:
        self.search, self.indexes, self.show = search, search.indexes, show
        self._views: dict[str, tuple[float, View]] = {}

    def check(self) -> None:
        """Raise if a field that should be shown is in none of the payloads."""
        for index in self.indexes:
            _ = self._look(index).shown

    def routes(self) -> tuple[Route, ...]:
        """The routes of the page and of its endpoints."""
        one = "/v1/indexes/{name}"
        return (
            Route("GET", "/", self.page, "The explorer, a page", answer="Page", open=True),
            Route("GET", "/explorer/files/{name}", self.file, "A file of the page", answer="File", open=True),
            Route("GET", f"{one}/explore", self.explore, "What the page shows of an index", answer="Explored"),
            Route("GET", f"{one}/dims", self.dims, "The cost and the recall of each dim", answer="Costs"),
            Route("GET", f"{one}/frontier", self.frontier, "The plans that were tested last", answer="Frontier"),
            Route("POST", f"{one}/compare", self.compare, "Search at every dim", COMPARE, "Compared"),
            Route("POST", f"{one}/items", self.items, "Rows as the page shows them", ITEMS, "ShownItems"),
            Route("POST", f"{one}/map", self.map, "Rows on a plane, at one dim", MAP, "Map"),
        )

    async def page(self, request: Request) -> Response:   # noqa: ARG002
        """The page."""
        return page(urls=bool(self.show.fields))

    async def file(self, request: Request) -> Response:
        """A script or a style of the page."""
        return file(request.name)

    async def explore(self, request: Request) -> Response:
        """The fields, examples and kinds of queries of an index."""
        index = self.indexes.find(request.name)
        view = await self._view(index)

        def facts() -> dict[str, Any]:
            count = min(_EXAMPLES, len(index.reader))
            examples = view.items(index.reader.sample(count, 1)[0].tolist()) if count else []
            shown, reads, model = view.shown, ["id", "vector"], self.search.model_of(index)
            reads += ["words"] * bool(shown.texts)
            if model is not None:
                reads += ["text"] * model.facts.texts + ["image"] * model.facts.images
            return {
                "name": index.name, "count": len(index.reader), "dims": list(index.reader.nesting.dims),
                "metric": index.reader.metric, "texts": shown.texts, "image": shown.image, "group": shown.group,
                "reads": reads, "examples": examples, "credits": self.show.credits,
                "model": None if model is None else {"name": model.name, "dims": list(model.facts.dims)},
            }  # fmt: skip

        return Response.json(await asyncio.to_thread(facts))

    async def dims(self, request: Request) -> Response:
        """The cost and the recall of each dim, on a sample of rows."""
        index = self.indexes.find(request.name)
        view = await self._view(index)
        return Response.json({"index": index.name, **await asyncio.to_thread(view.costs)})

    async def frontier(self, request: Request) -> Response:
        """The frontier of the planner, if a plan was made for this state of the index."""
        index = self.indexes.find(request.name)
        choice = await asyncio.to_thread(index.plan, _RECALL, _K)
        return Response.json({"index": index.name, "choice": None if choice is None else facts_of(choice)})

    async def compare(self, request: Request) -> Response:
        """One query, searched at several dims."""
        index = self.indexes.find(request.name)
        index.batcher.admit()
        fields = COMPARE.check(await request.json())
        k, view = fields.get("k", _K), await self._view(index)
        dims = _dims(index, fields.get("dims"))
        plan = plan_of(index, fields["plan"], "plan", k + 1) if "plan" in fields else None
        identity, matches, vectors = await self._query(index, view, fields)
        request.facts.update(index=index.name, items=len(dims))
        results: list[dict[str, Any]] = []
        if vectors is not None:
            plans = [plan_of(index, dim, "dims", k + 1) if dim < index.dim else None for dim in dims]
            plans += [plan] * bool(plan)
            found = await asyncio.gather(*(index.nearest(vectors, k + 1, one) for one in plans))
            results = [{"dim": dim, "hits": [hit for hit in hits if hit["id"] != identity][:k]}
                       for dim, hits in zip((*dims, *[0] * bool(plan)), found, strict=True)]  # fmt: skip
        seen = [*matches, *(hit["id"] for one in results for hit in one["hits"])]
        items = await asyncio.to_thread(view.items, seen if identity is None else [identity, *seen])
        body = {"index": index.name, "query": identity, "matches": matches, "items": items,
                "results": results[: len(dims)], "plan": results[-1]["hits"] if plan and results else None}  # fmt: skip
        return Response(dumps(body))

    async def items(self, request: Request) -> Response:
        """Rows by id."""
        index = self.indexes.find(request.name)
        ids = _some(ITEMS.check(await request.json())["ids"])
        view = await self._view(index)
        return Response.json({"index": index.name, "items": await asyncio.to_thread(view.items, ids)})

    async def map(self, request: Request) -> Response:
        """The rows of a sample on a plane."""
        index = self.indexes.find(request.name)
        fields = MAP.check(await request.json())
        (dim,), ids = _dims(index, [fields["dim"]]), _some(fields.get("ids", []))
        view = await self._view(index)
        if len(index.reader) < 3:
            raise ApiError(409, "a map needs 3 rows: add rows to the index", code="too_few_rows")
        drawn = await asyncio.to_thread(view.map, dim, ids, points=fields.get("points", True))
        return Response(dumps({"index": index.name, **drawn}))

    async def _query(
        self, index: ServedIndex, view: View, fields: dict[str, Any]
    ) -> tuple[Any, list[Any], Floats | None]:
        """The row that is the query, if one is; the rows that words found; and the vector, if there is one."""
        given = [name for name in ("id", "words", "text", "image", "vector") if name in fields]
        if len(given) != 1:
            message = f"send one of id, words, text, image or vector (got {' and '.join(given) or 'none'})"
            raise ApiError(400, message, param=given[-1] if given else "id")
        if given[0] not in ("id", "words"):
            return None, [], await self.search.vectors(index, fields, 1)
        matches: list[Any] = []
        if given[0] == "words":
            matches = await asyncio.to_thread(view.find, fields["words"], _MATCHES)
            if not matches:
                return None, [], None
        identity = matches[0] if matches else fields["id"]
        try:
            vectors, _ = await asyncio.to_thread(index.reader.get, [identity])
        except InputError as error:
            raise as_api_error(error, "id") from None
        return identity, matches, vectors

    async def _view(self, index: ServedIndex) -> View:
        seen, view = self._views.get(index.name, (0.0, None))
        if view is not None and view.index is index.reader and time.monotonic() - seen < _FRESH:
            return view
        return await asyncio.to_thread(self._look, index)

    def _look(self, index: ServedIndex) -> View:
        """The view of the index as it is now."""
        state, old = index.reader.state, self._views.get(index.name)
        same = old is not None and old[1].state == state and old[1].index is index.reader
        view = old[1] if old is not None and same else View(index.reader, state, self.show, index.unit)
        self._views[index.name] = time.monotonic(), view
        return view


def _dims(index: ServedIndex, given: list[int] | None) -> list[int]:
    dims = index.reader.nesting.dims
    for dim in given or ():
        if dim not in dims:
            message = f"the dims of this index are {', '.join(map(str, dims))} (got {dim})"
            raise ApiError(400, message, param="dims", code="invalid_dimensions")
    return list(dict.fromkeys(given or dims))


def _some(ids: list[Any]) -> list[Any]:
    if len(ids) > _MOST_IDS:
        raise ApiError(400, f"ids must be at most {_MOST_IDS} (got {len(ids):,})", param="ids")
    return ids
