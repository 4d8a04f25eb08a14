"""Filters in PostgreSQL: on columns of a table, or on fields of its payload (jsonb).

A field is a column if the table has one of this name. A column of numbers, text or booleans is compared natively, so
that the user's own indexes serve; any other column is compared as its JSON form (to_jsonb), as payloads are. NULL in a
column is a missing field, and equals None. Text is compared by code points (COLLATE "C"), numbers as numeric.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from matryo.engines.conditions import OPERATORS, Dialect, any_of, unknown_field
from matryo.engines.postgres.formats import quoted
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.engines.postgres.table import Table
    from matryo.retrieve.store.filters.language import Among, Contains, Exists, Ordered, Values

_NUMBERS = {"smallint", "integer", "bigint", "numeric", "real", "double precision"}
_TEXTS = {"text", "character varying"}


class PostgresWhere(Dialect):
    """Conditions on the columns of a table, or on the fields of its payload."""

    def __init__(self, bind: Callable[[Any, str], str], table: Table) -> None:
        super().__init__(bind)
        self.columns, self.payload, self.table = table.columns, table.payload, table.name

    def among(self, test: Among) -> str:
        kind, name = self._column(test.field)
        values = test.values
        if kind == "json":
            items = [json.dumps(value, ensure_ascii=False) for value in _all(values)]
            return any_of([f"{name} = {self._text(item, 'jsonb')}" for item in items])
        parts = []
        if kind == "number":
            parts += [f"{name} = {self._number(value)}" for value in sorted(values.numbers)]
        elif kind == "text":
            parts += [f"{name} = {self._text(value, 'text')}" for value in sorted(values.texts)]
        elif kind == "boolean":
            parts += [f"{name} = {str(value).upper()}" for value in values.constants if value is not None]
        if None in values.constants:
            parts.append(f"{name} IS NULL")
        return any_of(parts)

    def ordered(self, test: Ordered) -> str:
        kind, name = self._column(test.field)
        parts = []
        for operator, value in test.tests:
            text, sign = isinstance(value, str), OPERATORS[operator]
            if kind == "json":
                if text:
                    compared = f"({name} #>> '{{}}') COLLATE \"C\" {sign} {self._text(value, 'text')}"
                    parts.append(f"(jsonb_typeof({name}) = 'string' AND {compared})")
                else:
                    compared = f"{name} {sign} to_jsonb({self._number(value)})"
                    parts.append(f"(jsonb_typeof({name}) = 'number' AND {compared})")
            elif kind == "number" and not text:
                parts.append(f"{name} {sign} {self._number(value)}")
            elif kind == "text" and text:
                parts.append(f"{name} COLLATE \"C\" {sign} {self._text(value, 'text')}")
            else:
                parts.append("FALSE")   # values of another type never match
        return f"({' AND '.join(parts)})"

    def contains(self, test: Contains) -> str:
        kind, name = self._column(test.field)
        parts = []
        if kind == "json":
            for value in _all(test.values):
                item = self._text(json.dumps([value], ensure_ascii=False), "jsonb")
                parts.append(f"(jsonb_typeof({name}) = 'array' AND {name} @> {item})")
            for text in sorted(test.values.texts):
                inside = f"position({self._text(text, 'text')} in {name} #>> '{{}}') > 0"
                parts.append(f"(jsonb_typeof({name}) = 'string' AND {inside})")
        elif kind == "text":
            parts += [f"position({self._text(text, 'text')} in {name}) > 0" for text in sorted(test.values.texts)]
        return any_of(parts)

    def exists(self, test: Exists) -> str:
        return f"{self._column(test.field)[1]} IS NOT NULL"

    def _column(self, field: str) -> tuple[str, str]:
        """The kind of a field (number, text, boolean, json), and its expression."""
        first, *rest = field.split(".")
        if field in self.columns and self.columns[field] not in ("json", "jsonb"):
            kind, name = self.columns[field], quoted(field)
            if kind in _NUMBERS:
                return "number", name
            if kind in _TEXTS:
                return "text", name
            return ("boolean", name) if kind == "boolean" else ("json", f"to_jsonb({name})")
        if first in self.columns and first != self.payload:
            base, keys = f"to_jsonb({quoted(first)})", rest
        elif self.payload is not None:
            base, keys = f"to_jsonb({quoted(self.payload)})", [first, *rest]
            base = quoted(self.payload) if self.columns[self.payload] == "jsonb" else base
        else:
            raise unknown_field(field, self.table, sorted(self.columns))
        for key in keys:
            base += f" -> {self._text(key, 'text')}"
        return "json", f"({base})"

    def _text(self, value: str, kind: str) -> str:
        if "\0" in value or "\\u0000" in value:
            raise InputError("PostgreSQL stores no NUL character in text", got=repr(value), cure="remove it")
        return self.bind(value, kind)

    def _number(self, value: float) -> str:
        return self.bind(repr(value), "numeric")


def _all(values: Values) -> list[Any]:
    return [*sorted(values.numbers), *sorted(values.texts), *values.constants]
