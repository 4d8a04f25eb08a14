"""The fields that a request body may have: one table checks the requests and describes them in OpenAPI.

>>> search = Schema("Search", (Field("k", {"type": "integer", "minimum": 1}, "hits per query"),))
>>> search.check({"k": 3, "unset": None})
Traceback (most recent call last):
...
matryo.serve.http.errors.ApiError: unknown parameter unset: it is not one of k
>>> search.check({"k": 0})
Traceback (most recent call last):
...
matryo.serve.http.errors.ApiError: k must be an integer of at least 1 (got 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matryo.errors import shown
from matryo.serve.http.errors import ApiError

__all__ = ["Field", "Schema"]

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip
_LARGE = 64   # entries of an array that are looked at here; the code that uses an array checks all of it


@dataclass(frozen=True)
class Field:
    """A parameter: its name, its JSON schema, and what it does."""

    name: str
    schema: dict[str, Any]
    help: str
    required: bool = False


@dataclass(frozen=True)
class Schema:
    """The parameters of a request body."""

    name: str
    fields: tuple[Field, ...]

    def check(self, body: Any) -> dict[str, Any]:
        """The parameters that were sent; null counts as not sent. Unknown parameters and wrong types are refused."""
        if not isinstance(body, dict):
            raise ApiError(400, f"the body must be a JSON object (got {shown(body)})")
        known = {field.name: field for field in self.fields}
        for name in body:
            if name not in known:
                message = f"unknown parameter {name:.60}: it is not one of {', '.join(known)}"
                raise ApiError(400, message, param=name[:60], code="unknown_parameter")
        given = {name: value for name, value in body.items() if value is not None}
        for field in self.fields:
            if field.required and field.name not in given:
                raise ApiError(400, f"{field.name} is missing", param=field.name, code="missing_parameter")
            if field.name in given and not _fits(given[field.name], field.schema):
                message = f"{field.name} must be {_words(field.schema)} (got {shown(given[field.name])})"
                raise ApiError(400, message, param=field.name)
        return given

    def to_json(self) -> dict[str, Any]:
        """The JSON schema of the body."""
        properties = {}
        for field in self.fields:
            schema = field.schema if field.required else {"anyOf": [field.schema, {"type": "null"}]}
            properties[field.name] = {**schema, "description": field.help}
        required = [field.name for field in self.fields if field.required]
        return {"type": "object", "properties": properties, "additionalProperties": False,
                **({"required": required} if required else {})}  # fmt: skip


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_fits(value, option) for option in schema["anyOf"])
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if kind in ("integer", "number") and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    if kind == "string" and len(value) < schema.get("minLength", 0):
        return False
    if kind == "array":
        items = schema.get("items", {})
        if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
            return False
        return all(_fits(item, items) for item in (value if len(value) <= _LARGE else value[:_LARGE]))
    return True


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_words(option) for option in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    low, high = schema.get("minimum"), schema.get("maximum")
    article = "an" if schema.get("type", "any")[0] in "aio" else "a"
    limits = (
        f" from {low:,} to {high:,}" if None not in (low, high) else f" of at least {low:,}" if low is not None else ""
    )
    if schema.get("type") == "array":
        count = f" of {schema['minItems']} or more" if schema.get("minItems") else ""
        return f"a list{count}, each {_words(schema['items'])}" if schema.get("items") else f"a list{count}"
    empty = " that is not empty" if schema.get("minLength") else ""
    return f"{article} {schema.get('type', 'JSON value')}{limits}{empty}"
