"""What no filter can do; tests/hostile compares filters with the same rules in plain Python."""

from __future__ import annotations

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

@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "index", Nesting([2])) as made:
        yield made


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
    kept = [segment.alive for segment in store.where({"n": {"$in": wanted}}).segments]
    assert sum(int(alive.mask.sum()) for alive in kept if alive is not None) == len(right)


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
        ({"\ud800": 1}, "a field must be names"),
        ({1: 1}, "a field must be names"),
        ({"a": [1]}, "values must be valid text"),
        ({"a": float("nan")}, "values must be valid text"),
        ({"a": {"$in": "abc"}}, r"\$in needs a list"),
        ({"$or": {}}, r"\$or needs a list"),
        ({"a": {"$in": [{}]}}, "values must be valid text"),
        ({"a": {"$gt": None}}, r"\$gt needs a number, a string or a date"),
        ({"a": {"$lt": True}}, r"\$lt needs a number, a string or a date"),
        ({"a": {"$contains": ["x"]}}, "values must be valid text"),
        ({"a": {"$exists": 1}}, r"\$exists must be True or False"),
        ({"a": 2**1024}, "values must be valid text, finite numbers"),
        ({"a": 10**5000}, "got an object of type int"),
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
