"""Filters in Qdrant: as the JSON of its REST interface, and as objects of qdrant-edge.

Qdrant applies a condition to each element of a list, so ``{"tags": "a"}`` also matches a list with "a". What it cannot
compare (the order of texts, parts of texts, and booleans in qdrant-edge) is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.retrieve.store.filters.language import Among, Contains, Every, Exists, Not, Ordered, Some

if TYPE_CHECKING:
    from matryo.retrieve.store.filters.language import Condition, Values

_RANGES = {"$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}


def rest_filter(condition: Condition) -> dict[str, Any]:
    """The filter in Qdrant's JSON.

    >>> from matryo.retrieve.store.filters.language import Filter
    >>> rest_filter(Filter.of({"year": {"$gte": 2020}}).condition)
    {'must': [{'key': 'year', 'range': {'gte': 2020}}]}
    """
    match condition:
        case Every():
            return {"must": [rest_filter(part) for part in condition.parts]}
        case Some():
            # An empty should matches everything in Qdrant.
            return {"should": [rest_filter(part) for part in condition.parts]} if condition.parts else _nothing()
        case Not():
            return {"must_not": [rest_filter(condition.part)]}
        case Exists():
            empty = {"must_not": [{"is_empty": {"key": condition.field}}]}
            return {"should": [empty, {"is_null": {"key": condition.field}}]}
        case Ordered():
            return {"must": [{"key": condition.field, "range": {_RANGES[name]: _number(value)}}
                             for name, value in condition.tests]}
        case Among():
            return _any(condition.field, condition.values)
        case Contains():
            if condition.values.texts:
                raise InputError("Qdrant finds no parts of texts", got=f"$contains on {condition.field}",
                                 cure=f"for an element of a list, write {{{condition.field!r}: value}}")
            return _any(condition.field, condition.values)


def edge_filter(condition: Condition) -> Any:
    """The filter as an object of qdrant-edge."""
    return _edge(rest_filter(condition))


def _edge(part: dict[str, Any]) -> Any:
    import qdrant_edge as edge

    if "key" in part:
        if "range" in part:
            return edge.FieldCondition(part["key"], range=edge.RangeFloat(**part["range"]))
        if isinstance(part["match"]["value"], bool):
            raise InputError("qdrant-edge matches no booleans", got=part["key"], cure="store 0 and 1 instead")
        return edge.FieldCondition(part["key"], match=edge.MatchValue(part["match"]["value"]))
    if "is_empty" in part:
        return edge.IsEmptyCondition(part["is_empty"]["key"])
    if "is_null" in part:
        return edge.IsNullCondition(part["is_null"]["key"])
    inner: dict[str, Any] = {name: [_edge(each) for each in parts] for name, parts in part.items()}
    return edge.Filter(**inner)


def _any(field: str, values: Values) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    parts += [{"key": field, "range": {"gte": value, "lte": value}} for value in sorted(values.numbers)]
    parts += [{"key": field, "match": {"value": text}} for text in sorted(values.texts)]
    parts += [{"key": field, "match": {"value": value}} for value in values.constants if value is not None]
    parts += [{"is_null": {"key": field}}] if None in values.constants else []
    return {"should": parts} if parts else _nothing()


def _nothing() -> dict[str, Any]:
    """A filter that no point matches."""
    return {"must_not": [{"must": []}]}


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise InputError("Qdrant orders numbers only", got=repr(value), cure="store a number, or use $in")
    return value
