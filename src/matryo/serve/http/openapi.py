"""The OpenAPI description, made from the routes and from the tables that check requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from matryo import __version__
from matryo.serve.http.errors import STATUSES
from matryo.serve.http.schema import Schema

__all__ = ["Route", "describe"]


@dataclass(frozen=True)
class Route:
    """A path, the method it takes, and what it does."""

    method: str
    path: str
    handler: Any
    summary: str
    schema: Schema | None = None
    """The parameters of a JSON body."""
    answer: str = "Object"
    """The schema of the answer, in :data:`_ANSWERS`."""
    status: int = 200
    writes: bool = False
    open: bool = False
    """Whether it needs no API key."""
    timed: bool = True
    """Whether the time limit of requests applies."""
    stream: Schema | None = None
    """The parameters of each line of a body of NDJSON."""


_STRING, _INTEGER, _NUMBER, _BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
_NULLABLE = {"anyOf": [_STRING, {"type": "null"}]}
_ID = {"anyOf": [_INTEGER, _STRING]}
_VECTOR = {"anyOf": [_STRING, {"type": "array", "items": _NUMBER}]}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_EMBEDDED = {"embedding": _VECTOR, "scale": _NUMBER}
_MODEL = _object(
    {"id": _STRING, "object": {"const": "model"}, "created": _INTEGER, "owned_by": _STRING,
     "dims": _list(_INTEGER), "dimensions": _INTEGER, "reads": _list(_STRING), "by_dim": _list({"type": "object"})},
    {"pooling": _NULLABLE, "tokenizer": _NULLABLE, "prompts": _list(_STRING),
     "max_length": {"anyOf": [_INTEGER, {"type": "null"}]}},
)  # fmt: skip
_HIT = _object({"id": _ID, "score": _NUMBER}, {"payload": {"type": "object"}})
_ITEM = _object({"id": _ID, "title": _STRING, "text": _STRING, "image": _STRING, "group": _STRING})
_ANSWERS: dict[str, dict[str, Any]] = {
    "Object": {"type": "object"},
    "Error": _object({"error": _object({"message": _STRING, "type": _STRING, "param": _NULLABLE, "code": _NULLABLE})}),
    "Embedded": _object({
        "object": {"const": "list"}, "model": _STRING,
        "usage": _object({"prompt_tokens": _INTEGER, "total_tokens": _INTEGER}),
        "data": _list(_object({"object": {"const": "embedding"}, "index": _INTEGER}, {
            **_EMBEDDED, "embeddings": {"type": "object", "additionalProperties": _object(_EMBEDDED | {}, None)
                                        | {"required": ["embedding"]}},
        })),
    }),
    "Models": _object({"object": {"const": "list"}, "data": _list(_MODEL)}),
    "Model": _MODEL,
    "Indexes": _object({"indexes": _list(_object({"name": _STRING, "count": _INTEGER, "dims": _list(_INTEGER),
                                                  "metric": _STRING, "writable": _BOOLEAN}))}),
    "Stats": _object({"name": _STRING, "count": _INTEGER, "dims": _list(_INTEGER), "state": _STRING}),
    "Hits": _object({"index": _STRING, "plan": _STRING, "results": _list(_list(_HIT))},
                    {"partial": _object({"missing_shards": _list(_INTEGER)})}),
    "Rows": _object({"index": _STRING, "rows": _list(_object({"id": _ID, "payload": {"type": "object"}},
                                                             {"vector": _VECTOR}))}),
    "Choice": _object({"index": _STRING, "message": _STRING, "frontier": _list({"type": "object"}),
                       "plan": {"anyOf": [{"type": "object"}, {"type": "null"}]}}),
    "Upserted": _object({"index": _STRING, "upserted": _INTEGER, "count": _INTEGER}),
    "Deleted": _object({"index": _STRING, "deleted": _INTEGER, "count": _INTEGER}),
    "Compacting": _object({"index": _STRING, "done": _BOOLEAN}),
    "Explored": _object({"name": _STRING, "count": _INTEGER, "dims": _list(_INTEGER), "metric": _STRING,
                         "texts": _list(_STRING), "image": _STRING, "group": _STRING, "reads": _list(_STRING),
                         "examples": _list(_ITEM), "credits": _list(_STRING),
                         "model": {"anyOf": [{"type": "object"}, {"type": "null"}]}}),
    "Compared": _object({"index": _STRING, "query": {"anyOf": [_INTEGER, _STRING, {"type": "null"}]},
                         "matches": _list(_ID), "items": _list(_ITEM),
                         "results": _list(_object({"dim": _INTEGER, "hits": _list(_HIT)})),
                         "plan": {"anyOf": [_list(_HIT), {"type": "null"}]}}),
    "Costs": _object({"index": _STRING, "k": _INTEGER, "queries": _INTEGER, "same": _NULLABLE, "dims": _list(_object(
        {"dim": _INTEGER, "bytes": _INTEGER, "mflops": _NUMBER, "ms": _NUMBER, "recall": _NUMBER,
         "same": {"anyOf": [_NUMBER, {"type": "null"}]}}))}),
    "Frontier": _object({"index": _STRING, "choice": {"anyOf": [{"type": "object"}, {"type": "null"}]}}),
    "ShownItems": _object({"index": _STRING, "items": _list(_ITEM)}),
    "Map": _object({"index": _STRING, "dim": _INTEGER, "share": _NUMBER, "classes": _list(_STRING), "ids": _list(_ID),
                    "titles": _list(_STRING), "class": _list(_INTEGER), "x": _list(_NUMBER), "y": _list(_NUMBER),
                    "marks": _list(_object({"id": _ID, "x": _NUMBER, "y": _NUMBER}))}),
    "Health": _object({"status": _STRING}),
}  # fmt: skip


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    """The description of ``routes``, OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    schemas = dict(_ANSWERS)
    for route in routes:
        for schema in (route.schema, route.stream):
            if schema is not None:
                schemas[schema.name] = schema.to_json()
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "matryo", "version": __version__, "license": {"name": "Apache-2.0"},
                 "description": "Nested embeddings in OpenAI's format, and search."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }  # fmt: skip


def _operation(route: Route) -> dict[str, Any]:
    last = route.path.rsplit("/", 1)[-1].strip("{}") or "root"
    operation: dict[str, Any] = {
        "summary": route.summary, "operationId": f"{route.handler.__name__}_{route.path.split('/')[-2]}_{last}",
        "security": [] if route.open else [{"key": []}, {}], "responses": _responses(route),
    }  # fmt: skip
    if "{name}" in route.path:
        operation["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": _STRING | {"minLength": 1}}
        ]
    if route.schema is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(route.schema.name)}},
        }
    if route.stream is not None:
        line = f"One JSON object per line, each a {route.stream.name}."
        content = {"application/x-ndjson": {"schema": {"type": "string", "description": line}}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _responses(route: Route) -> dict[str, Any]:
    kinds = {"Text": "text/plain; version=0.0.4", "Lines": "application/x-ndjson",
             "Page": "text/html; charset=utf-8", "File": "*/*"}  # fmt: skip
    content = {kinds[route.answer]: {"schema": _STRING}} if route.answer in kinds else {
        "application/json": {"schema": _ref(route.answer)}}  # fmt: skip
    answers: dict[str, Any] = {str(route.status): {"description": "the answer", "content": content}}
    for status, text in STATUSES.items():
        if not (route.open and status in (401, 403)):
            answers.setdefault(str(status), {"description": text, "content": {
                "application/json": {"schema": _ref("Error")}}})  # fmt: skip
    return answers


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
