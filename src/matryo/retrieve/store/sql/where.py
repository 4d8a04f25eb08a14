"""A filter on payloads as one SQL condition: whatever the user gave is bound, never part of the text.

>>> condition, bound = as_sql({"year": {"$gte": 2020}, "tags.lang": "en"})
>>> bound
['$."year"', '$."year"', '2020', '$."tags"."lang"', '$."tags"."lang"', '["en"]']
>>> "year" in condition or "en" in condition
False

A condition on a key holds only for a value of the same type: numbers, strings, true and false, and null are
four types. A key that is missing equals nothing, so ``$ne`` and ``$nin`` hold for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from matryo.errors import InputError

__all__ = ["as_sql", "is_unicode"]

_COMPARE = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_EQUAL = {"$eq": "", "$ne": "NOT ", "$in": "", "$nin": "NOT "}
_JOINED = {"$and": ("AND", "1"), "$or": ("OR", "0")}
_NUMBER, _WORD = "'integer', 'real'", "'text'"   # the types as SQLite calls them
_MOST, _DEEPEST = 200, 12   # what any build of SQLite parses: a tree 1000 deep, with a stack of 100


def as_sql(where: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The condition on the column ``payload``, always 0 or 1, and what to bind to its question marks."""
    sql = _Sql()
    return sql.filter(where, 1), sql.bound


def is_unicode(text: str) -> bool:
    """Whether SQLite can keep ``text``: half of a surrogate pair has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Sql:
    """The condition as it grows: what is bound so far, in order, and how many conditions there are."""

    def __init__(self) -> None:
        self.bound: list[str] = []
        self._count = 0

    def filter(self, where: Any, depth: int) -> str:
        if not isinstance(where, Mapping):
            raise _refused("where must be a dict of keys and what their values must be", where)
        if depth > _DEEPEST:
            raise InputError(f"where must nest at most {_DEEPEST} deep", cure="put conditions side by side")
        return _join("$and", [self._entry(key, wanted, depth) for key, wanted in where.items()])

    def _entry(self, key: Any, wanted: Any, depth: int) -> str:
        self._take(1)
        if key in _JOINED:
            return _join(key, [self.filter(one, depth + 1) for one in _listed(key, wanted)])
        if key == "$not":
            return f"NOT {self.filter(wanted, depth + 1)}"
        path = _path(key)
        if not isinstance(wanted, Mapping):
            return self._among(path, [wanted])
        if not wanted:
            raise _refused("a key must be given a value or operators", {key: wanted})
        self._take(len(wanted))
        return _join("$and", [self._operator(path, name, value) for name, value in wanted.items()])

    def _operator(self, path: str, name: Any, value: Any) -> str:
        if name in _COMPARE:
            return self._compare(path, name, value)
        if name in _EQUAL:
            found = self._among(path, _listed(name, value) if name in ("$in", "$nin") else [value])
            return f"{_EQUAL[name]}{found}"
        if name == "$exists":
            if not isinstance(value, bool):
                raise _refused("$exists must be True or False", value)
            return f"(json_type(payload, {self._bind(path)}) IS {'NOT ' if value else ''}NULL)"
        raise InputError(
            f"an operator must be one of {', '.join((*_EQUAL, *_COMPARE, '$exists'))}",
            got=repr(name),
            cure="reach into a nested object with dots: {'a.b': 1}",
        )

    def _among(self, path: str, values: list[Any]) -> str:
        # Values go through SQLite's JSON parser as the payload does, so that equal texts give equal numbers.
        plain = [_scalar(value) for value in values]
        numbers = [value for value in plain if isinstance(value, (int, float)) and not isinstance(value, bool)]
        words = [value for value in plain if isinstance(value, str)]
        others = [json.dumps(value) for value in plain if value is None or isinstance(value, bool)]
        parts = []
        for types, wanted in ((_NUMBER, numbers), (_WORD, words)):
            if wanted:
                typed = f"json_type(payload, {self._bind(path)}) IN ({types})"
                value = f"json_extract(payload, {self._bind(path)})"
                parts.append(f"({typed} AND {value} IN (SELECT value FROM json_each({self._bind_json(wanted)})))")
        if others:
            typed = f"json_type(payload, {self._bind(path)})"
            parts.append(f"{typed} IN (SELECT value FROM json_each({self._bind_json(others)}))")
        return f"ifnull({_join('$or', parts)}, 0)"

    def _compare(self, path: str, name: str, value: Any) -> str:
        if isinstance(_scalar(value), bool) or value is None:
            raise _refused(f"{name} must be given a number or a string", value)
        typed = f"json_type(payload, {self._bind(path)}) IN ({_WORD if isinstance(value, str) else _NUMBER})"
        found = f"json_extract(payload, {self._bind(path)})"
        return f"ifnull({typed} AND {found} {_COMPARE[name]} json_extract({self._bind_json(value)}, '$'), 0)"

    def _take(self, count: int) -> None:
        self._count += count
        if self._count > _MOST:
            raise InputError(f"where must have at most {_MOST} conditions", cure="use $in for long lists")

    def _bind(self, text: str) -> str:
        self.bound.append(text)
        return "?"

    def _bind_json(self, value: Any) -> str:
        return self._bind(json.dumps(value, ensure_ascii=False))


def _join(name: str, parts: list[str]) -> str:
    word, of_none = _JOINED[name]
    return f"({f' {word} '.join(parts)})" if parts else of_none


def _path(key: Any) -> str:
    names = key.split(".") if isinstance(key, str) else [""]
    # SQLite compares a name with the JSON text, in which these are written with an escape.
    plain = all(name and not any(sign in '"\\' or sign < " " for sign in name) for name in names)
    if not plain or key.startswith("$") or not is_unicode(key):
        raise InputError(
            "a key must be names joined by dots, or $and, $or, $not",
            got=repr(key),
            cure="names must not be empty or have quotes, backslashes or control characters",
        )
    return "$" + "".join(f'."{name}"' for name in names)


def _scalar(value: Any) -> Any:
    plain = value is None or isinstance(value, (bool, int, float, str))
    if not plain or (isinstance(value, float) and not math.isfinite(value)):
        raise _refused("values must be strings, finite numbers, True, False or None", value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _refused("integers must fit in 64 signed bits", value)
    if isinstance(value, str) and not is_unicode(value):
        raise _refused("strings must be valid Unicode", value)
    return value


def _listed(name: str, values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise _refused(f"{name} must be given a list", values)
    return list(values)


def _refused(rule: str, got: object) -> InputError:
    return InputError(rule, got=f"{got!r:.60}", cure="for example {'year': {'$gte': 2020}, 'lang': 'en'}")
