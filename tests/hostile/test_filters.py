"""Filters on values that SQLite rounds or cuts, and the model that the attack compares filters with."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from attacks.filters import matches

from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve.store import Limits, Store
from matryo.retrieve.store.payload import PAYLOAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "index", Nesting([2])) as made:
        yield made


def test_the_model_itself(store: Store) -> None:
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
        ({"n": {"$contains": "1"}}, [2]),
        ({"t.x": {"$contains": ""}}, [0, 5]),
        ({"n": {"$gt": 0, "$lt": "9"}}, []),
        ({"$and": []}, [0, 1, 2, 3, 4, 5]),
    ]:
        assert store.where(where).ids().tolist() == right, where
        assert [row for row, one in enumerate(payload) if matches(one, where)] == right, where


def test_text_is_not_cut_at_nul(store: Store) -> None:
    tenants = ["x", "x\0z", "x\0", "\0", "", "x\\u0000z", "xa"]
    store.add(np.zeros((len(tenants), 2)), payload=[{"tenant": tenant, "in": {"b": tenant}} for tenant in tenants])
    for row, tenant in enumerate(tenants):
        for where in ({"tenant": tenant}, {"in.b": {"$in": [tenant, 1, None]}}):
            assert store.where(where).ids().tolist() == [row]
        assert row not in store.where({"tenant": {"$ne": tenant}}).ids().tolist()
        below = [other for other, text in enumerate(tenants) if text < tenant]
        assert store.where({"tenant": {"$lt": tenant}}).ids().tolist() == below


def test_contains_looks_into_lists_and_texts(store: Store) -> None:
    tags = [["red", "blue"], "infrared", ["infrared"], [], "", [["red"]], [1, None], [1.0, True], ["red", "red"], 1]
    store.add(np.zeros((len(tags), 2)), payload=[{"tags": each} for each in tags])
    for part, right in [
        ("red", [0, 1, 8]), ("infrared", [1, 2]), ("", [1, 4]), (1, [6, 7]), (True, [7]), (None, [6]), (2, []),
        ("d\xff", []), ("rr", []),
    ]:   # fmt: skip
        assert store.where({"tags": {"$contains": part}}).ids().tolist() == right, part
        assert [row for row, each in enumerate(tags) if matches({"tags": each}, {"tags": {"$contains": part}})] == right
    store.add(np.zeros((3, 2)), payload=[{"word": word} for word in ("ab", "b", "ba")])   # neighbours once sorted
    assert store.where({"word": {"$contains": "bb"}}).count == 0
    assert store.where({"word": {"$contains": "b"}}).ids().tolist() == [10, 11, 12]
    assert store.where({"tags": {"$contains": "blue"}, "word": {"$exists": False}}).ids().tolist() == [0]


@pytest.mark.parametrize("name", ['"', "\\", "\n", "\0", "'", "a[0]", "*", "é"])
def test_any_name_that_a_payload_may_have_is_a_field(store: Store, name: str) -> None:
    store.add(np.zeros((3, 2)), payload=[{name: 1}, {"in": {name: 1}}, {"other": 1}])
    assert store.where({name: 1}).ids().tolist() == [0]
    assert store.where({f"in.{name}": 1}).ids().tolist() == [1]
    with pytest.raises(InputError, match="no payload has"):
        store.where({f"{name}?": 1}, check=True)


def test_integers_beyond_64_bits_are_compared_exactly(store: Store) -> None:
    values = [2**63 - 1, 2**63, float(2**63), 2**63 + 1, 2**64 - 1, 2**64, float(2**64), -(2**63) - 1, 2**1000]
    store.add(np.zeros((len(values), 2)), payload=[{"hash": value} for value in values])
    for value in values:
        equal = [row for row, other in enumerate(values) if other == value]
        assert store.where({"hash": value}).ids().tolist() == equal
        above = [row for row, other in enumerate(values) if other > value]
        assert store.where({"hash": {"$gt": value}}).ids().tolist() == above
    assert store.get([8])[1] == [{"hash": 2**1000}]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"a": "é" * (PAYLOAD_BYTES // 2)}, r"at most 16,777,216 bytes as JSON \(got 16,777,225 in row 1\): store"),
        ({"a": [10**5000]}, r"finite numbers.*got an object of type int in field 'a\[0\]' of row 1"),
    ],
)
def test_a_payload_that_is_too_large_is_refused_before_anything_is_written(
    store: Store, payload: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        store.add(np.zeros((2, 2)), payload=[{}, payload])
    assert store.count == 0
    store.add(np.zeros((1, 2)), payload=[{"a": "x" * (PAYLOAD_BYTES - 9)}])
    assert len(store.get([0])[1][0]["a"]) == PAYLOAD_BYTES - 9


def test_a_filter_of_any_size_is_not_called_damage(store: Store) -> None:
    long = "x" * (1 << 20)
    store.add(np.zeros((2, 2)), payload=[{"a": 1}, {"a": long}])
    assert store.where({"a": {"$in": [f"{long}{number}" for number in range(65)]}}).count == 0
    assert store.where({"a": {"$in": [long, *range(100_000)]}}).count == 2


FILTERS: list[dict[str, Any]] = [
    {"n": 3}, {"n": {"$gte": 2, "$lt": 5}}, {"n": {"$ne": 1}}, {"n": {"$exists": False}}, {"deep.x": {"$gt": 0.5}},
    {"n": {"$in": [1, "a", None]}}, {"tags": {"$contains": "a"}}, {"$not": {"tags": {"$contains": "ab"}}},
    {"$or": [{"n": {"$gt": "a"}}, {"deep.x": 1}]}, {"deep.x": {"$gt": 0.5}, "n": {"$nin": [2]}},
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_filters_follow_every_change(tmp_path: Path, seed: int) -> None:
    """Of a writer and of a reader with its own connection, through segments, merges and recent rows."""
    chance = random.Random(seed)
    small = Limits(pending_bytes=40 * 8, segment_bytes=150 * 8)
    held: dict[str, dict[str, Any]] = {}

    def drawn() -> dict[str, Any]:
        n = chance.choice([0, 1, 2, 3, 4.5, "a", None, True, 2**70])
        tags = chance.choice([["a"], ["ab", "a"], "cab", []])
        fields = {"n": n, "tags": tags, "deep": {"x": chance.choice([0, 1, "1"])}}
        return {name: fields[name] for name in chance.sample(list(fields), chance.randrange(4))}

    with Store.create(tmp_path / "index", Nesting([2]), limits=small) as store, Store.open(store.path) as reader:
        for _ in range(120):
            step = chance.random()
            if step < 0.6:
                ids = [str(number) for number in chance.sample(range(400), chance.choice([1, 1, 2, 30]))]
                payload = [drawn() for _ in ids]
                store.upsert(np.zeros((len(ids), 2)), ids, payload)
                held = {id: about for id, about in held.items() if id not in ids} | dict(zip(ids, payload, strict=True))
            elif step < 0.9 and held:
                gone = chance.sample(list(held), min(len(held), chance.choice([1, 2, 20])))
                store.delete(gone)
                held = {id: about for id, about in held.items() if id not in gone}
            elif step < 0.95:
                store.compact()
            for where in chance.sample(FILTERS, 3):
                right = [id for id, about in held.items() if matches(about, where)]
                for each in (store, reader):
                    found = each.where(where)
                    assert (found.ids().tolist() if right else found.count) == (right or 0)
                    assert found.count == len(right)
