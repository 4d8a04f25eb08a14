"""A column: the values of one payload field in memory, sorted, so that a condition is answered by binary search.

>>> column = Column.of(np.arange(6), [2020, "en", 2021.5, None, [2020, "de"], "entry"])
>>> [rows.tolist() for rows in column.select(Ordered("year", (("$gt", 2020),)))]
[[2]]
>>> [rows.tolist() for rows in column.select(Contains("lang", Values(texts=frozenset(["e"]))))]
[[1, 5], []]

Numbers and texts are sorted separately. Each distinct value has a slice of ``rows``, so an equality or a range selects
one slice. Comparisons are those of Python, which are exact: numbers that no dtype of numpy holds are Python objects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.retrieve.store.filters.language import Among, Contains, Exists, Ordered, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matryo.retrieve.store.filters.language import Test
    from matryo.retrieve.vectors.types import Array, Indices

_NUMBER, _TEXT, _TRUE, _FALSE, _NULL, _LIST, _OBJECT = range(7)
_KINDS = {int: _NUMBER, float: _NUMBER, str: _TEXT, bool: _TRUE, type(None): _NULL, list: _LIST, dict: _OBJECT}
_CONSTANTS = {True: _TRUE, False: _FALSE, None: _NULL}
_EXACT = 1 << 53   # float64 holds all integers up to this magnitude
_END = b"\xff"   # a byte that no UTF-8 text has


@dataclass(frozen=True, eq=False)
class Groups:
    """The rows of each distinct value, in the order of the values."""

    rows: Indices
    """Sorted by value; rows of equal values are in their own order."""
    starts: Indices
    """[values + 1]: the rows of value i are ``rows[starts[i] : starts[i + 1]]``."""

    @classmethod
    def of(cls, rows: Indices, sorted_codes: Array) -> Groups:
        """Group ``rows``, which are sorted by their codes."""
        changes = np.flatnonzero(sorted_codes[1:] != sorted_codes[:-1]) + 1
        return cls(rows, np.concatenate([[0], changes, [len(rows)]]) if len(rows) else np.zeros(1, np.int64))

    def between(self, low: int, high: int) -> Indices:
        """The rows of the values ``low`` … ``high`` − 1."""
        return self.rows[self.starts[low] : self.starts[max(low, high)]]

    def of_values(self, values: Indices) -> Indices:
        """The rows of some distinct values."""
        if len(values) == 1:
            return self.between(int(values[0]), int(values[0]) + 1)
        chosen = np.zeros(len(self.starts) - 1, np.bool_)
        chosen[values] = True
        return self.rows[np.repeat(chosen, np.diff(self.starts))]


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers of any size, compared as Python compares them."""

    groups: Groups
    keys: Array
    """The distinct numbers in order: float64, int64, or objects where neither holds all of them exactly."""

    @classmethod
    def of(cls, rows: Indices, values: list[float]) -> Numbers:
        """Sort the ``values`` of ``rows``."""
        numbers = _as_numbers(values)
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        groups = Groups.of(rows[order], numbers)
        return cls(groups, numbers[groups.starts[:-1]])

    def find(self, wanted: Iterable[float]) -> Indices:
        """The positions in ``keys`` of those ``wanted`` numbers that are there."""
        exact = []
        for number in wanted:
            with suppress(OverflowError):   # an integer beyond the range of floats, or of int64
                as_key = self._convert(number)
                if as_key == number:
                    exact.append(as_key)
        array = np.array(exact, self.keys.dtype)
        at = np.minimum(np.searchsorted(self.keys, array), len(self.keys) - 1)
        return at[np.asarray(self.keys[at] == array, np.bool_)]

    def bound(self, search: Callable[..., int], number: float) -> int:
        """The position in ``keys`` where bisect's ``search`` puts ``number``."""
        if self.keys.dtype == object:
            return search(self.keys, number)
        with suppress(OverflowError):
            if (as_key := self._convert(number)) == number:
                return int(np.searchsorted(self.keys, as_key, "left" if search is bisect_left else "right"))
        return search(self.keys, number, key=self._convert)   # compared exactly with each key

    def _convert(self, number: Any) -> float:
        if self.keys.dtype == object:
            return number   # type: ignore[no-any-return]
        return float(number) if self.keys.dtype == np.float64 else _as_int64(number)


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, compared by code points, which is also the order of their bytes in UTF-8."""

    groups: Groups
    data: bytes
    """The distinct texts in order, in UTF-8, each followed by a byte that no text has."""
    starts: Indices
    """[texts + 1]: where each text starts in ``data``."""

    @classmethod
    def of(cls, rows: Indices, values: list[str]) -> Texts:
        """Sort the ``values`` of ``rows``."""
        distinct = sorted(set(values))
        codes = {text: code for code, text in enumerate(distinct)}
        coded = np.fromiter(map(codes.__getitem__, values), np.int32, len(values))
        order = np.argsort(coded, kind="stable")
        encoded = [text.encode() + _END for text in distinct]
        starts = np.concatenate([[0], np.cumsum([len(text) for text in encoded], dtype=np.int64)])
        return cls(Groups.of(rows[order], coded[order]), b"".join(encoded), starts)

    def find(self, wanted: Iterable[str]) -> Indices:
        """The positions of those ``wanted`` texts that are there."""
        count, found = len(self.starts) - 1, []
        for text in wanted:
            code = self.bound(bisect_left, text)
            if code < count and self._text(code) == text.encode():
                found.append(code)
        return np.array(found, np.int64)

    def bound(self, search: Callable[..., int], text: str) -> int:
        """The position among the texts where bisect's ``search`` puts ``text``."""
        return search(range(len(self.starts) - 1), text.encode(), key=self._text)

    def containing(self, part: str) -> Indices:
        """The positions of the texts that contain ``part``."""
        data, needle, hits = self.data, part.encode(), []
        if not needle:
            return np.arange(len(self.starts) - 1)
        at = data.find(needle)
        while at >= 0:
            hits.append(at)
            at = data.find(needle, data.index(_END, at))   # on to the next text
        return np.searchsorted(self.starts, np.array(hits, np.int64), "right") - 1

    def _text(self, code: int) -> bytes:
        return self.data[self.starts[code] : self.starts[code + 1] - 1]


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one field in some rows."""

    present: Indices
    """The rows that have the field."""
    numbers: Numbers | None
    texts: Texts | None
    constants: dict[bool | None, Indices]
    """The rows with True, with False and with null."""
    elements: Column | None
    """The elements of all lists; a row may be there several times."""

    @classmethod
    def of(cls, rows: Indices, values: list[Any]) -> Column:
        """Sort the ``values`` of ``rows``, as JSON has them."""
        kinds = np.fromiter(map(_KINDS.__getitem__, map(type, values)), np.int8, len(values))
        if (kinds == _TRUE).any():
            kinds[[value is False for value in values]] = _FALSE

        def part(kind: int) -> tuple[Indices, list[Any]]:
            mask = kinds == kind
            return (rows, values) if mask.all() else (rows[mask], list(compress(values, mask.tolist())))

        numbers, texts, (listing, lists) = part(_NUMBER), part(_TEXT), part(_LIST)
        elements = None
        if lists:
            lengths = [len(each) for each in lists]
            elements = cls.of(np.repeat(listing, lengths), [value for each in lists for value in each])
        return cls(
            rows,
            Numbers.of(*numbers) if numbers[1] else None,
            Texts.of(*texts) if texts[1] else None,
            {value: rows[kinds == kind] for value, kind in _CONSTANTS.items()},
            elements,
        )

    def select(self, test: Test) -> list[Indices]:
        """The rows that match ``test``, in several parts; a row may be there several times."""
        match test:
            case Exists():
                return [self.present]
            case Among():
                return self._equal(test.values)
            case Ordered():
                return self._between(test.tests)
            case Contains():
                inside = [self.texts.groups.of_values(self.texts.containing(text))
                          for text in test.values.texts if self.texts is not None]   # fmt: skip
                return inside + ([] if self.elements is None else self.elements._equal(test.values))

    def _equal(self, wanted: Values) -> list[Indices]:
        found = [self.constants[value] for value in wanted.constants]
        if self.numbers is not None and wanted.numbers:
            found.append(self.numbers.groups.of_values(self.numbers.find(wanted.numbers)))
        if self.texts is not None and wanted.texts:
            found.append(self.texts.groups.of_values(self.texts.find(wanted.texts)))
        return found

    def _between(self, tests: Sequence[tuple[str, Any]]) -> list[Indices]:
        of_text = {isinstance(value, str) for _, value in tests}
        values = self.texts if of_text == {True} else self.numbers
        if values is None or len(of_text) == 2:   # nothing is both a number and a text
            return []
        low, high = 0, len(values.groups.starts) - 1
        for name, value in tests:
            # Values equal to the bound are on the right of bisect_left, and on the left of bisect_right.
            at = values.bound(bisect_left if name in ("$gte", "$lt") else bisect_right, value)
            if name in ("$gt", "$gte"):
                low = max(low, at)
            else:
                high = min(high, at)
        return [values.groups.between(low, high)]


def _as_numbers(values: list[float]) -> Array:
    """``values`` as float64 or int64 if that is exact, else as objects."""
    types = set(map(type, values))
    if int not in types:
        return np.array(values, np.float64)
    whole = [value for value in values if isinstance(value, int)]
    low, high = min(whole), max(whole)
    if types == {int} and -(2**63) <= low <= high < 2**63:
        return np.array(values, np.int64)
    if max(abs(low), abs(high)) <= _EXACT:
        return np.array(values, np.float64)
    return np.array(values, np.object_)


def _as_int64(number: float) -> int:
    whole = int(number)
    if not -(2**63) <= whole < 2**63:
        raise OverflowError
    return whole
