"""Filters on columns and on a payload of JSON, for databases whose JSON functions give a type and a value.

A dialect says how to get a field (:meth:`JsonWhere.child`), its type, and its value as a number or as text.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from matryo.engines.conditions import OPERATORS, Dialect, any_of, unknown_field
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matryo.retrieve.store.filters.language import Among, Contains, Exists, Ordered, Values

_EXACT = 1 << 53   # float64 holds all integers up to this magnitude


class JsonWhere(Dialect):
    """Conditions on the ``columns`` (name → kind: number, text, boolean, other) of a table, or on its payload."""

    def __init__(
        self, bind: Callable[[Any, str], str], columns: Mapping[str, str], payload: str | None, table: str
    ) -> None:
        super().__init__(bind)
        self.columns, self.payload, self.table = columns, payload, table

    @abstractmethod
    def quoted(self, name: str) -> str:
        """The name of a column in quotes."""

    @abstractmethod
    def child(self, value: str, key: str) -> str:
        """The field ``key`` of a JSON object; NULL if there is none, or if ``value`` is no object."""

    @abstractmethod
    def has_kind(self, value: str, kind: str) -> str:
        """The JSON value is a number, a text, a boolean, null or a list."""

    @abstractmethod
    def number(self, value: str) -> str:
        """A JSON number as a number."""

    @abstractmethod
    def text(self, value: str) -> str:
        """A JSON string as text; of a boolean, true or false."""

    @abstractmethod
    def any_element(self, value: str, test: Callable[[str], str]) -> str:
        """The test holds for an element of a JSON list."""

    @abstractmethod
    def inside(self, part: str, text: str) -> str:
        """The text has the part in it."""

    def among(self, test: Among) -> str:
        kind, name = self._column(test.field)
        values = test.values
        if kind == "json":
            return self._equals(name, values)
        parts = []
        if kind == "number":
            parts += [f"{name} = {self._bound(value)}" for value in sorted(values.numbers)]
        elif kind == "text":
            parts += [f"{name} = {self._bound(value)}" for value in sorted(values.texts)]
        elif kind == "boolean":
            parts += [f"{name} = {str(value).lower()}" for value in values.constants if value is not None]
        return any_of([*parts, *([f"{name} IS NULL"] if None in values.constants else [])])

    def ordered(self, test: Ordered) -> str:
        kind, name = self._column(test.field)
        parts = []
        for operator, value in test.tests:
            own = "text" if isinstance(value, str) else "number"
            sign, bound = OPERATORS[operator], self._bound(value)
            if kind == "json":
                read = self.text(name) if own == "text" else self.number(name)
                parts.append(f"({self.has_kind(name, own)} AND {read} {sign} {bound})")
            else:
                parts.append(f"{name} {sign} {bound}" if kind == own else "FALSE")
        return f"({' AND '.join(parts)})"

    def contains(self, test: Contains) -> str:
        kind, name = self._column(test.field)
        texts = sorted(test.values.texts)
        if kind == "text":
            return any_of([self.inside(self._bound(part), name) for part in texts])
        if kind != "json":
            return "FALSE"
        within = [f"({self.has_kind(name, 'text')} AND {self.inside(self._bound(part), self.text(name))})"
                  for part in texts]
        each = self.any_element(name, lambda element: self._equals(element, test.values))
        return any_of([f"({self.has_kind(name, 'list')} AND {each})", *within])

    def exists(self, test: Exists) -> str:
        return f"{self._column(test.field)[1]} IS NOT NULL"

    def _equals(self, name: str, values: Values) -> str:
        parts = [f"({self.has_kind(name, 'number')} AND {self.number(name)} = {self._bound(value)})"
                 for value in sorted(values.numbers)]
        parts += [f"({self.has_kind(name, 'text')} AND {self.text(name)} = {self._bound(value)})"
                  for value in sorted(values.texts)]
        parts += [f"({self.has_kind(name, 'boolean')} AND {self.text(name)} = '{str(value).lower()}')"
                  for value in values.constants if value is not None]
        return any_of([*parts, *([self.has_kind(name, "null")] if None in values.constants else [])])

    def _column(self, field: str) -> tuple[str, str]:
        first, *rest = field.split(".")
        if field in self.columns and self.columns[field] in ("number", "text", "boolean"):
            return self.columns[field], self.quoted(field)
        if first in self.columns and first != self.payload and self.columns[first] == "json":
            base, keys = self.quoted(first), rest
        elif self.payload is not None and first not in self.columns:
            base, keys = self.quoted(self.payload), [first, *rest]
        else:
            raise unknown_field(field, self.table, sorted(self.columns))
        for key in keys:
            base = self.child(base, key)
        return "json", base

    def _bound(self, value: Any) -> str:
        if isinstance(value, str):
            return self.bind(value, "text")
        if isinstance(value, int) and abs(value) > _EXACT:
            raise InputError(f"{self.table} compares numbers as float64", got=value,
                             cure="filter by numbers of at most 2^53, or store them as text")
        return self.bind(float(value), "number")
