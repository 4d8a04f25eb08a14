"""Filters in ClickHouse, and its identifiers, literals and types of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from matryo.engines.json_where import JsonWhere


class ClickHouseWhere(JsonWhere):
    """Conditions in ClickHouse's SQL; a payload is text."""

    _TYPES: ClassVar = {"number": "('Int64', 'UInt64', 'Double')", "text": "('String')", "boolean": "('Bool')",
                        "null": "('Null')", "list": "('Array')"}

    def __init__(self, columns: Mapping[str, str], payload: str | None, table: str) -> None:
        super().__init__(lambda value, kind: literal(value) if kind == "text" else repr(value), columns, payload, table)

    def quoted(self, name: str) -> str:
        return quoted(name)

    def child(self, value: str, key: str) -> str:
        return f"nullIf(JSONExtractRaw({value}, {literal(key)}), '')"

    def has_kind(self, value: str, kind: str) -> str:
        return f"toString(JSONType({value})) IN {self._TYPES[kind]}"

    def number(self, value: str) -> str:
        return f"toFloat64OrNull({value})"

    def text(self, value: str) -> str:
        return f"if(toString(JSONType({value})) = 'String', JSONExtractString({value}), {value})"

    def any_element(self, value: str, test: Callable[[str], str]) -> str:
        return f"arrayExists(element -> {test('element')}, JSONExtractArrayRaw(ifNull({value}, '[]')))"

    def inside(self, part: str, text: str) -> str:
        return f"position({text}, {part}) > 0"


def kind_of(type_name: str) -> str:
    """The kind of a column: number, text, boolean or other."""
    plain = type_name.removeprefix("LowCardinality(").removeprefix("Nullable(").rstrip(")")
    if plain == "String":
        return "text"
    if plain == "Bool":
        return "boolean"
    return "number" if plain.startswith(("Int", "UInt", "Float", "Decimal")) else "other"


def quoted(name: str) -> str:
    r"""An identifier in backticks.

    >>> print(quoted("a`b"))
    `a\`b`
    """
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(value: Any) -> str:
    r"""A string constant.

    >>> print(literal("it's"))
    'it\'s'
    """
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
