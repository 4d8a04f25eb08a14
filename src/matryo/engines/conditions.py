"""Filters as SQL: the tree of a filter is walked once; a dialect writes the tests of one field.

Every test is TRUE or FALSE and never NULL, so that NOT is the complement, as in an index of matryo.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.retrieve.store.filters.language import Among, Contains, Every, Exists, Not, Ordered, Some

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.retrieve.store.filters.language import Condition, Test

OPERATORS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


class Dialect(ABC):
    """The SQL of one database; ``bind`` makes a parameter or a literal of a value and its SQL type."""

    def __init__(self, bind: Callable[[Any, str], str]) -> None:
        self.bind = bind

    def write(self, condition: Condition) -> str:
        """The condition as an expression."""
        match condition:
            case Not():
                return f"NOT {self.write(condition.part)}"
            case Every():
                return f"({' AND '.join(map(self.write, condition.parts))})" if condition.parts else "TRUE"
            case Some():
                return f"({' OR '.join(map(self.write, condition.parts))})" if condition.parts else "FALSE"
            case _:
                return f"COALESCE({self.test(condition)}, FALSE)"

    def test(self, test: Test) -> str:
        """The test of one field."""
        match test:
            case Among():
                return self.among(test)
            case Ordered():
                return self.ordered(test)
            case Contains():
                return self.contains(test)
            case Exists():
                return self.exists(test)
        raise AssertionError(test)

    @abstractmethod
    def among(self, test: Among) -> str:
        """The field equals one of the values."""

    @abstractmethod
    def ordered(self, test: Ordered) -> str:
        """The field is above or below values of its own type."""

    @abstractmethod
    def contains(self, test: Contains) -> str:
        """The field is a list with the value, or a text with it."""

    @abstractmethod
    def exists(self, test: Exists) -> str:
        """The field is there."""


def any_of(parts: list[str]) -> str:
    """One of the parts holds; none holds if there are none."""
    return f"({' OR '.join(parts)})" if parts else "FALSE"


def unknown_field(field: str, table: str, names: list[str]) -> InputError:
    """The error for a field that the table has no column for."""
    return InputError(f"{table} has no column for the field {field!r} of the filter", got=", ".join(names) or "none",
                      cure="filter by one of these columns, or load the rows with a payload")
