"""A filter on payloads as one SQL condition. User input is always bound, never part of the SQL text.

>>> filter = Filter({"year": {"$gte": 2020}, "tags.lang": "en"})
>>> filter.bound
['$."year"', '["year"]', '$gte', '2020', '$."tags"."lang"', '["tags", "lang"]', '$in', '["en"]']
>>> "year" in filter.condition or "en" in filter.condition
False
>>> list(filter.fields)
['year', 'tags.lang']

A condition on a field matches only values of the same type. The types are number, string, boolean and null. A missing
field equals no value, so ``$ne`` and ``$nin`` match it.

SQLite rounds integers beyond 64 bits to floats, and old versions of it cut text at NUL. Such values are compared by
Python, see :func:`compare_exactly`.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any

from matryo.errors import InputError, shown
from matryo.retrieve.store.payload import is_unicode, plain_scalar

_COMPARE = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_EXACT = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
_EQUAL = {"$eq": "", "$ne": "NOT ", "$in": "", "$nin": "NOT "}
_JOINED = {"$and": ("AND", "1"), "$or": ("OR", "0")}
_NUMBER, _TEXT = "'integer', 'real'", "'text'"   # SQLite's names of the types
_NO_NUL = "instr(payload, '\\u0000') = 0"   # as JSON text has it
_MOST, _DEEPEST = 200, 12   # limits that every build of SQLite parses: expression depth 1000, parser stack 100
_LONGEST = 64 << 20   # characters of values; SQLite takes a gigabyte at most


class Filter:
    """``where`` in SQL; raises an error that names the part that is wrong.

    ``condition`` is a condition on the column ``payload`` that is always 0 or 1, ``bound`` has the values of its
    question marks, and ``fields`` the fields whose values it compares; ``$exists`` compares no value.
    """

    def __init__(self, where: Mapping[str, Any]) -> None:
        self.bound: list[str] = []
        self.fields: dict[str, None] = {}
        self._count = self._length = 0
        self.condition = self._all(where, 1)

    def _all(self, where: Any, depth: int) -> str:
        if not isinstance(where, Mapping):
            raise _refused("where must be a dict of payload fields and conditions", where)
        if depth > _DEEPEST:
            raise InputError(f"where must be at most {_DEEPEST} levels deep", cure="use fewer nested $and, $or, $not")
        return _join("$and", [self._entry(key, wanted, depth) for key, wanted in where.items()])

    def _entry(self, key: Any, wanted: Any, depth: int) -> str:
        self._take(1)
        if key in _JOINED:
            return _join(key, [self._all(inner, depth + 1) for inner in _listed(key, wanted)])
        if key == "$not":
            return f"NOT {self._all(wanted, depth + 1)}"
        as_path(key)   # checks it
        if not isinstance(wanted, Mapping) or wanted.keys() - {"$exists"}:
            self.fields[key] = None
        if not isinstance(wanted, Mapping):
            return self._among(key, [wanted])
        if not wanted:
            raise _refused("a field needs a value or an operator", {key: wanted})
        self._take(len(wanted))
        return _join("$and", [self._operator(key, name, value) for name, value in wanted.items()])

    def _operator(self, key: str, name: Any, value: Any) -> str:
        if name in _COMPARE:
            return self._compare(key, name, value)
        if name in _EQUAL:
            found = self._among(key, _listed(name, value) if name in ("$in", "$nin") else [value])
            return f"{_EQUAL[name]}{found}"
        if name == "$exists":
            if not isinstance(value, bool):
                raise _refused("$exists must be True or False", value)
            return f"(json_type(payload, {self._bind(as_path(key))}) IS {'NOT ' if value else ''}NULL)"
        raise InputError(
            f"an operator must be one of {', '.join((*_EQUAL, *_COMPARE, '$exists'))}",
            got=shown(name),
            cure="write nested fields with dots: {'a.b': 1}",
        )

    def _among(self, key: str, values: list[Any]) -> str:
        plain = [_scalar(value) for value in values]
        numbers = [value for value in plain if isinstance(value, (int, float)) and not isinstance(value, bool)]
        words = [value for value in plain if isinstance(value, str)]
        others = [json.dumps(value) for value in plain if value is None or isinstance(value, bool)]
        parts = [self._test(key, "$in", wanted) for wanted in (numbers, words) if wanted]
        if others:
            typed = f"json_type(payload, {self._bind(as_path(key))})"
            parts.append(f"ifnull({typed} IN (SELECT value FROM json_each({self._bind_json(others)})), 0)")
        return _join("$or", parts)

    def _compare(self, key: str, name: str, value: Any) -> str:
        value = _scalar(value)
        if isinstance(value, bool) or value is None:
            raise _refused(f"{name} needs a number, a string or a date", value)
        return self._test(key, name, value)

    def _test(self, key: str, name: str, wanted: Any) -> str:
        """A comparison with ``wanted``: a number or text, or for ``$in`` a list of numbers or of texts."""
        values = wanted if name == "$in" else [wanted]
        path, text = self._bind(as_path(key)), isinstance(values[0], str)
        kind, value = f"json_type(payload, {path})", f"json_extract(payload, {path})"
        names, operation, right = self._bind_json(key.split(".")), self._bind(name), self._bind_json(wanted)
        # Values pass through SQLite's JSON parser, as payloads do, so that equal texts give equal numbers.
        quick = f"{value} IN (SELECT value FROM json_each({right}))"
        if name != "$in":
            quick = f"{value} {_COMPARE[name]} json_extract({right}, '$')"
        sure = _NO_NUL if text else f"typeof({value}) = {kind}"   # a rounded integer has become 'real'
        cases = f"WHEN {sure} THEN {quick}"
        if name == "$in":   # cutting and rounding make no value unequal: most rows need no second look
            cases = f"WHEN NOT {quick} THEN 0 WHEN {sure} THEN 1"
        if any("\0" in value if text else _is_large(value) for value in values):
            cases = ""
        exact = f"compare_exactly(payload, {names}, {operation}, {right})"
        # Not AND, both sides of which SQLite may evaluate: there may be nothing to compare.
        return f"CASE WHEN ifnull({kind}, '') NOT IN ({_TEXT if text else _NUMBER}) THEN 0 {cases} ELSE {exact} END"

    def _take(self, count: int) -> None:
        self._count += count
        if self._count > _MOST:
            raise InputError(f"where must have at most {_MOST} conditions", cure="use $in for long lists")

    def _bind(self, text: str) -> str:
        if text not in self.bound:
            self._length += len(text)
            if self._length > _LONGEST:
                raise InputError(f"where must have at most {_LONGEST:,} characters", cure="use shorter lists")
            self.bound.append(text)
        return f"?{self.bound.index(text) + 1}"

    def _bind_json(self, value: Any) -> str:
        return self._bind(json.dumps(value, ensure_ascii=False))


def compare_exactly(payload: str, names: str, operation: str, wanted: str) -> bool:
    """Compare a number or text of a payload as Python does; a function of SQL, for values that SQLite would change.

    >>> compare_exactly('{"a": {"b": 36893488147419103233}}', '["a", "b"]', "$in", "[3.6893488147419103e19]")
    False
    """
    value, other = json.loads(payload), json.loads(wanted)
    for name in json.loads(names):
        value = value[name]
    return value in other if operation == "$in" else bool(_EXACT[operation](value, other))


def _join(name: str, parts: list[str]) -> str:
    word, of_none = _JOINED[name]
    return f"({f' {word} '.join(parts)})" if parts else of_none


def as_path(key: Any) -> str:
    """The JSON path of a field, in SQLite's syntax."""
    names = key.split(".") if isinstance(key, str) else [""]
    # SQLite compares a name with the raw JSON text, where these characters are escaped.
    plain = all(name and not any(char in '"\\' or char < " " for char in name) for name in names)
    if not plain or key.startswith("$") or not is_unicode(key):
        raise InputError(
            "a field must be names joined by dots, or $and, $or, $not",
            got=shown(key),
            cure="names must not be empty or contain quotes, backslashes or control characters",
        )
    return "$" + "".join(f'."{name}"' for name in names)


def _scalar(value: Any) -> Any:
    try:
        plain = plain_scalar(value)
    except TypeError:
        raise _refused("values must be valid text, finite numbers, dates, True, False or None", value) from None
    return plain


def _is_large(value: float) -> bool:
    """Whether ``value`` is an integer that SQLite would round."""
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _listed(name: str, values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise _refused(f"{name} needs a list", values)
    return list(values)


def _refused(rule: str, got: object) -> InputError:
    return InputError(rule, got=shown(got), cure="for example {'year': {'$gte': 2020}, 'lang': 'en'}")
