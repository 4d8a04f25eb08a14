"""The language of filters: a ``where`` dict as a tree of conditions, which is hashable and so a key of caches.

>>> filter = Filter.of({"year": {"$gte": 2020, "$lt": 2024}, "tags.lang": {"$ne": "en"}, "size": {"$exists": True}})
>>> filter.condition.parts[0]
Ordered(field='year', tests=(('$gte', 2020), ('$lt', 2024)))
>>> filter.fields, filter.compared
(('year', 'tags.lang', 'size'), ('year', 'tags.lang'))

A condition on a field matches only values of the same type. The types are number, string, boolean and null. A missing
field equals no value, so ``$ne`` and ``$nin`` match it. Lists and objects equal no value either; ``$contains`` looks
into lists.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from matryo.errors import InputError, shown
from matryo.retrieve.store.payload import is_unicode, plain_scalar

_COMPARE = ("$gt", "$gte", "$lt", "$lte")
_EQUAL = ("$eq", "$ne", "$in", "$nin")
_LETTERS = {int: "i", float: "f", str: "s", bool: "b", type(None): "n"}
_MOST, _DEEPEST = 200, 12   # conditions and levels: a search evaluates the conditions one by one, and recursively


@dataclass(frozen=True)
class Values:
    """Scalars by type, because 1 equals True in Python."""

    numbers: frozenset[float] = frozenset()
    texts: frozenset[str] = frozenset()
    constants: frozenset[bool | None] = frozenset()

    @classmethod
    def of(cls, values: list[Any]) -> Values:
        """Sort ``values`` by type; raise if one of them is no scalar."""
        plain = [_scalar(value) for value in values]
        constants = frozenset(value for value in plain if value is None or isinstance(value, bool))
        texts = frozenset(value for value in plain if isinstance(value, str))
        numbers = (value for value in plain if isinstance(value, (int, float)) and not isinstance(value, bool))
        return cls(frozenset(numbers), texts, constants)


@dataclass(frozen=True)
class Among:
    """The field equals one of the values."""

    field: str
    values: Values


@dataclass(frozen=True)
class Ordered:
    """The field is above or below values, each a number or text: pairs of an operator and a value."""

    field: str
    tests: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Contains:
    """The field is a list with one of the values, or a text with one of the texts in it."""

    field: str
    values: Values


@dataclass(frozen=True)
class Exists:
    """The payload has the field."""

    field: str


@dataclass(frozen=True)
class Every:
    """All conditions hold; with no conditions, every row matches."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Some:
    """One of the conditions holds; with no conditions, no row matches."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """The condition does not hold."""

    part: Condition


Test = Among | Ordered | Contains | Exists
"""A condition on one field."""
Condition = Test | Every | Some | Not


@dataclass(frozen=True)
class Filter:
    """A condition and its fields."""

    condition: Condition
    fields: tuple[str, ...]
    compared: tuple[str, ...]
    """The fields whose values it compares; ``$exists`` compares no value."""

    @classmethod
    def of(cls, where: Mapping[str, Any]) -> Filter:
        """Read ``where``; raise an error that names the part that is wrong."""
        reader = _Reader()
        condition = reader.all_of(where, 1)
        compared = tuple(field for field, is_compared in reader.fields.items() if is_compared)
        return cls(condition, tuple(reader.fields), compared)


def key_of(where: Any) -> Hashable:
    """A hashable key of ``where``, equal only for the same values of the same types; None if it has values of others.

    It takes a third of the time that reading the filter takes.

    >>> key_of({"a": 1}) == key_of({"a": 1}), key_of({"a": 1}) == key_of({"a": True}), key_of({"a": {1}})
    (True, False, None)
    """
    try:
        return _key(where)
    except (KeyError, RecursionError, TypeError):
        return None


def _key(value: Any) -> Hashable:
    kind = type(value)
    if kind is dict:
        return ("{", *map(_key, value), *map(_key, value.values()))
    if kind is list or kind is tuple:
        return ("[", *map(_key, value))
    return _LETTERS[kind], value   # because 1 equals True in Python


class _Reader:
    def __init__(self) -> None:
        self.fields: dict[str, bool] = {}   # whether a value of the field is compared
        self._count = 0

    def all_of(self, where: Any, depth: int) -> Condition:
        if not isinstance(where, Mapping):
            raise _refused("where must be a dict of payload fields and conditions", where)
        if depth > _DEEPEST:
            raise InputError(f"where must be at most {_DEEPEST} levels deep", cure="use fewer nested $and, $or, $not")
        return _every([self._entry(key, wanted, depth) for key, wanted in where.items()])

    def _entry(self, key: Any, wanted: Any, depth: int) -> Condition:
        self._take(1)
        if key in ("$and", "$or"):
            parts = tuple(self.all_of(inner, depth + 1) for inner in _listed(key, wanted))
            return Every(parts) if key == "$and" else Some(parts)
        if key == "$not":
            return Not(self.all_of(wanted, depth + 1))
        _check_field(key)
        is_compared = not isinstance(wanted, Mapping) or bool(wanted.keys() - {"$exists"})
        self.fields[key] = is_compared or self.fields.get(key, False)
        if not isinstance(wanted, Mapping):
            return Among(key, Values.of([wanted]))
        if not wanted:
            raise _refused("a field needs a value or an operator", {key: wanted})
        self._take(len(wanted))
        order = tuple((name, _comparable(name, value)) for name, value in wanted.items() if name in _COMPARE)
        rest = [_test(key, name, value) for name, value in wanted.items() if name not in _COMPARE]
        return _every([*([Ordered(key, order)] if order else []), *rest])

    def _take(self, count: int) -> None:
        self._count += count
        if self._count > _MOST:
            raise InputError(f"where must have at most {_MOST} conditions", cure="use $in for long lists")


def _test(key: str, name: Any, value: Any) -> Condition:
    if name in _EQUAL:
        among = Among(key, Values.of(_listed(name, value) if name in ("$in", "$nin") else [value]))
        return Not(among) if name in ("$ne", "$nin") else among
    if name == "$contains":
        return Contains(key, Values.of([value]))
    if name == "$exists":
        if not isinstance(value, bool):
            raise _refused("$exists must be True or False", value)
        return Exists(key) if value else Not(Exists(key))
    raise InputError(
        f"an operator must be one of {', '.join((*_EQUAL, *_COMPARE, '$contains', '$exists'))}",
        got=shown(name),
        cure="write nested fields with dots: {'a.b': 1}",
    )


def _every(parts: list[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _check_field(key: Any) -> None:
    names = key.split(".") if isinstance(key, str) else [""]
    if not all(names) or key.startswith("$") or not is_unicode(key):
        raise InputError(
            "a field must be names joined by dots, or $and, $or, $not",
            got=shown(key),
            cure="names must be valid text and not empty",
        )


def _comparable(name: str, value: Any) -> Any:
    plain = _scalar(value)
    if isinstance(plain, bool) or plain is None:
        raise _refused(f"{name} needs a number, a string or a date", plain)
    return plain


def _scalar(value: Any) -> Any:
    try:
        return plain_scalar(value)
    except TypeError:
        raise _refused("values must be valid text, finite numbers, dates, True, False or None", value) from None


def _listed(name: str, values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise _refused(f"{name} needs a list", values)
    return list(values)


def _refused(rule: str, got: object) -> InputError:
    return InputError(rule, got=shown(got), cure="for example {'year': {'$gte': 2020}, 'lang': 'en'}")
