"""Filters on payloads against the same rules in plain Python, and what no filter can do."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MISSING = object()
COMPARE = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def equal(found: Any, wanted: Any) -> bool:
    return found is not MISSING and kind(found) == kind(wanted) and bool(found == wanted)


def reach(payload: dict[str, Any], key: str) -> Any:
    found: Any = payload
    for name in key.split("."):
        found = found.get(name, MISSING) if isinstance(found, dict) else MISSING
    return found


def holds(found: Any, name: str, wanted: Any) -> bool:
    if name in COMPARE:
        return found is not MISSING and kind(found) == kind(wanted) and bool(COMPARE[name](found, wanted))
    if name == "$exists":
        return (found is not MISSING) == wanted
    among = any(equal(found, one) for one in (wanted if name in ("$in", "$nin") else [wanted]))
    return among if name in ("$eq", "$in") else not among


def matches(payload: dict[str, Any], where: dict[str, Any]) -> bool:
    for key, wanted in where.items():
        if key == "$and":
            right = all(matches(payload, one) for one in wanted)
        elif key == "$or":
            right = any(matches(payload, one) for one in wanted)
        elif key == "$not":
            right = not matches(payload, wanted)
        else:
            tests = wanted if isinstance(wanted, dict) else {"$eq": wanted}
            right = all(holds(reach(payload, key), name, value) for name, value in tests.items())
        if not right:
            return False
    return True


NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.1, 1.0, -2.5, 1e300, 2**53 + 1, -(2**63), 2**63 - 1]))
WORDS = st.one_of(st.sampled_from(["", "a", "A", "é", "1", "true", "null", "x'y", '"', "\\", "\n", "\0z"]), st.text())
SCALARS = st.one_of(NUMBERS, WORDS, st.booleans(), st.none())
PLAIN = st.sampled_from(["a", "b", "é", "x y", "'", "1", "a[0]", "#", "*"])
PAYLOADS = st.dictionaries(
    PLAIN,
    st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(PLAIN, SCALARS, max_size=3)),
    max_size=4,
)
KEYS = st.one_of(PLAIN, st.builds("{}.{}".format, PLAIN, PLAIN))
TESTS = st.dictionaries(
    st.sampled_from(["$eq", "$ne"]), SCALARS, max_size=2
).flatmap(
    lambda some: st.one_of(
        st.just(some),
        st.dictionaries(st.sampled_from(["$in", "$nin"]), st.lists(SCALARS, max_size=4), min_size=1).map(some.__or__),
        st.dictionaries(st.sampled_from(list(COMPARE)), st.one_of(NUMBERS, WORDS), min_size=1).map(some.__or__),
        st.booleans().map(lambda there: {**some, "$exists": there}),
    )
).filter(bool)  # fmt: skip
FILTERS = st.recursive(
    st.dictionaries(KEYS, st.one_of(SCALARS, TESTS), max_size=3),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=5,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "index", Nesting([2])) as made:
        yield made


@settings(max_examples=40, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(payload=st.lists(PAYLOADS, min_size=4, max_size=10), filters=st.lists(FILTERS, min_size=10, max_size=10))
def test_a_filter_selects_what_plain_python_does(
    store: Store, payload: list[dict[str, Any]], filters: list[dict[str, Any]]
) -> None:
    start = store.count
    store.add(np.zeros((len(payload), 2)), payload=payload)
    new = range(start, store.count)
    for where in filters:
        right = [start + row for row, one in enumerate(payload) if matches(one, where)]
        assert [one for one in store.where(where).ids().tolist() if one in new] == right, where


def test_the_oracle_itself(store: Store) -> None:
    payload = [{"n": 1, "t": {"x": "a"}}, {"n": True}, {"n": "1"}, {"n": None}, {}, {"n": 2.5, "t": {"x": "b"}}]
    store.add(np.zeros((6, 2)), payload=payload)
    for where, right in [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"n": 1}, [0]),
        ({"n": 1.0}, [0]),
        ({"n": True}, [1]),
        ({"n": None}, [3]),
        ({"n": {"$ne": 1}}, [1, 2, 3, 4, 5]),
        ({"n": {"$gte": 1}}, [0, 5]),
        ({"n": {"$gt": 1, "$lt": 3}}, [5]),
        ({"n": {"$gt": "0"}}, [2]),
        ({"n": {"$in": [1, "1", None]}}, [0, 2, 3]),
        ({"n": {"$nin": [1, "1", None]}}, [1, 4, 5]),
        ({"n": {"$exists": False}}, [4]),
        ({"t.x": "a"}, [0]),
        ({"$or": [{"t.x": "b"}, {"n": {"$exists": False}}]}, [4, 5]),
        ({"$not": {"t.x": {"$in": ["a", "b"]}}}, [1, 2, 3, 4]),
        ({"$and": [{"n": {"$gt": 0}}, {"t.x": {"$lte": "a"}}]}, [0]),
        ({"$or": []}, []),
        ({"$and": []}, [0, 1, 2, 3, 4, 5]),
    ]:
        assert store.where(where).ids().tolist() == right, where
        assert [row for row, one in enumerate(payload) if matches(one, where)] == right, where


@settings(max_examples=20, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=5, max_size=15))
def test_every_float_equals_itself(store: Store, values: list[float]) -> None:
    start = store.count
    store.add(np.zeros((len(values), 2)), payload=[{"x": value} for value in values])
    for row, value in enumerate(values):
        assert start + row in store.where({"x": value}).ids().tolist()


def test_long_lists_and_deleted_rows(store: Store) -> None:
    store.add(np.zeros((300, 2)), payload=[{"n": n} for n in range(300)])
    store.delete([7, 150])
    wanted = [7, *range(5, 40_000, 5)]
    right = [n for n in range(300) if n % 5 == 0 and n not in (0, 150)]
    assert store.where({"n": {"$in": wanted}}).ids().tolist() == right
    masks = [segment.alive for segment in store.where({"n": {"$in": wanted}}).segments]
    assert sum(int(mask.sum()) for mask in masks if mask is not None) == len(right)


@pytest.mark.parametrize("text", ["'; DROP TABLE items; --", "a') OR 1=1 --", "x' OR '1'='1", "%", "?", ":x", "$."])
def test_what_is_given_is_data(store: Store, text: str) -> None:
    store.add(np.zeros((2, 2)), payload=[{"a": text}, {"a": "other"}])
    assert store.where({"a": text}).ids().tolist() == [0]
    assert store.where({"a": {"$in": [text]}}).ids().tolist() == [0]
    if "." not in text:
        store.add(np.zeros((1, 2)), payload=[{text: 1}])
        assert store.where({text: 1}).ids().tolist() == [2]
    store.verify()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([], "where must be a dict"),
        ({"$and": [1]}, "where must be a dict"),
        ({"a": {}}, "a field needs a value or an operator"),
        ({"a": {"b": 1}}, r"an operator must be one of .* write nested fields with dots"),
        ({"a": {"$like": "x"}}, "an operator must be one of"),
        ({"$nor": []}, "a field must be names joined by dots"),
        ({"": 1}, "a field must be names"),
        ({"a..b": 1}, "a field must be names"),
        ({'a"b': 1}, "a field must be names"),
        ({"a\\b": 1}, "a field must be names"),
        ({"a\n": 1}, "a field must be names"),
        ({"\ud800": 1}, "a field must be names"),
        ({1: 1}, "a field must be names"),
        ({"a": [1]}, "values must be valid text"),
        ({"a": float("nan")}, "values must be valid text"),
        ({"a": {"$in": "abc"}}, r"\$in needs a list"),
        ({"$or": {}}, r"\$or needs a list"),
        ({"a": {"$in": [{}]}}, "values must be valid text"),
        ({"a": {"$gt": None}}, r"\$gt needs a number, a string or a date"),
        ({"a": {"$lt": True}}, r"\$lt needs a number, a string or a date"),
        ({"a": {"$exists": 1}}, r"\$exists must be True or False"),
        ({"a": 2**63}, "integers must fit in 64"),
        ({"a": "\ud800"}, "values must be valid text"),
        ({"$or": [{"a": n} for n in range(201)]}, r"at most 200 conditions.*use \$in"),
    ],
)
def test_a_bad_filter_is_named(store: Store, where: Any, message: str) -> None:
    store.add(np.zeros((1, 2)), payload=[{"a": 1}])
    with pytest.raises(InputError, match=message):
        store.where(where)


def test_the_most_conditions_that_are_taken(store: Store) -> None:
    store.add(np.zeros((2, 2)), payload=[{"a": 1}, {"a": 198}])
    assert store.where({"$or": [{"a": n} for n in range(199)]}).ids().tolist() == [0, 1]
    deep: dict[str, Any] = {"a": {"$nin": [2, "x", None]}}
    for _ in range(11):
        deep = {"b": {"$ne": 1}, "$or": [{"$and": []}, deep]} if _ % 2 else {"$not": {"b": 1}, "$and": [deep]}
    assert store.where(deep).ids().tolist() == [0, 1]
    with pytest.raises(InputError, match="at most 12 levels deep"):
        store.where({"$not": deep})
