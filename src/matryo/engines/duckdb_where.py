"""Filters in DuckDB, and its identifiers, literals and types of columns."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from matryo.engines.json_where import JsonWhere

Bind = Callable[[Any, str], str]


class DuckDbWhere(JsonWhere):
    """Conditions in DuckDB's SQL."""

    _TYPES: ClassVar = {"number": "('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')", "text": "('VARCHAR')",
                        "boolean": "('BOOLEAN')", "null": "('NULL')", "list": "('ARRAY')"}

    def quoted(self, name: str) -> str:
        return quoted(name)

    def child(self, value: str, key: str) -> str:
        pointer = self.bind("/" + key.replace("~", "~0").replace("/", "~1"), "text")
        found = f"json_extract({value}, {pointer})"
        return found if not key.isdigit() else f"CASE WHEN json_type({value}) = 'OBJECT' THEN {found} END"

    def has_kind(self, value: str, kind: str) -> str:
        return f"json_type({value}) IN {self._TYPES[kind]}"

    def number(self, value: str) -> str:
        return f"TRY_CAST({value} AS DOUBLE)"

    def text(self, value: str) -> str:
        return f"json_extract_string({value}, '$')"

    def any_element(self, value: str, test: Callable[[str], str]) -> str:
        return f"len(list_filter(json_extract({value}, '$[*]'), lambda element: {test('element')})) > 0"

    def inside(self, part: str, text: str) -> str:
        return f"contains({text}, {part})"


def extension() -> str:
    """The path of the extension vss in its Python package, or its name."""
    found = find_spec("duckdb_extension_vss")
    folder = None if found is None or found.origin is None else Path(found.origin).parent
    return str(next(folder.glob("extensions/*/vss.duckdb_extension"), "vss")) if folder is not None else "vss"


def kind_of(type_name: str) -> str:
    """The kind of a column: number, text, boolean, json or other."""
    if type_name == "JSON":
        return "json"
    if type_name in ("VARCHAR", "BOOLEAN"):
        return "text" if type_name == "VARCHAR" else "boolean"
    numbers = ("INT", "FLOAT", "DOUBLE", "DECIMAL")
    return "number" if "[" not in type_name and any(name in type_name for name in numbers) else "other"


def binding(values: list[Any]) -> Bind:
    """A function that adds a parameter to ``values`` and returns its place; ``$1`` is the query."""

    def bind(value: Any, kind: str) -> str:
        values.append(value)
        return f"${len(values) + 1}::{'VARCHAR' if kind == 'text' else 'DOUBLE'}"

    return bind


def inline(value: Any, kind: str) -> str:
    """A value as a literal."""
    return literal(value) if kind == "text" else f"{value!r}::DOUBLE"


def quoted(name: str) -> str:
    """An identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string constant."""
    return "'" + text.replace("'", "''") + "'"
