"""The store against a plain dict, through any sequence of calls, seen by the writer and by a reader beside it."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from matryo.errors import InputError
from matryo.mapped import is_mapped
from matryo.nesting import Nesting
from matryo.retrieve.store import Batch, Limits, Snapshot, Store

DIM = 4
# A few rows fill SQLite's part and a segment, so that short sequences cross both limits many times.
LIMITS = Limits(pending_bytes=5 * DIM * 4, segment_bytes=7 * DIM * 4)
PAYLOADS = st.sampled_from([{}, {"n": 1}, {"n": 2.5, "deep": {"word": "ä"}}, {"n": None}, {"word": "n"}])
NAMES = st.integers(0, 30)


class Model(RuleBasedStateMachine):
    """``model`` maps each id to its vector and payload, in the order of insertion."""

    @initialize(text=st.booleans(), dtype=st.sampled_from(["float32", "float16"]), int8_up_to=st.sampled_from([0, 2]))
    def create(self, text: bool, dtype: str, int8_up_to: int) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.path = Path(self.place.name) / "index"
        nesting = Nesting([2, DIM])
        self.store = Store.create(self.path, nesting, dtype=dtype, int8_up_to=int8_up_to, limits=LIMITS)
        self.reader = Store.open(self.path)
        self.text = text
        self.model: dict[Any, tuple[list[float], dict[str, Any]]] = {}
        self.next_id, self.made = 0, 0
        self.old: tuple[Snapshot, list[Any], list[list[float]]] | None = None

    def named(self, numbers: list[int]) -> list[Any]:
        return [f"no {n}é" for n in numbers] if self.text else numbers

    def vectors(self, count: int) -> np.ndarray:
        """No two alike; whole numbers, which float16 holds."""
        self.made += count
        return np.arange(self.made - count, self.made)[:, None] % 512 * np.ones(DIM) + np.arange(DIM)

    def keep(self, ids: list[Any], vectors: np.ndarray, payload: list[dict[str, Any]]) -> None:
        for one, vector, about in zip(ids, vectors.tolist(), payload, strict=True):
            self.model.pop(one, None)
            self.model[one] = vector, about
        if not self.text:
            self.next_id = max([self.next_id, *(one + 1 for one in ids)])

    @rule(numbers=st.lists(NAMES, max_size=12), data=st.data(), stream=st.booleans())
    def add(self, numbers: list[int], data: Any, stream: bool) -> None:
        ids, vectors = self.named(numbers), self.vectors(len(numbers))
        payload = [data.draw(PAYLOADS) for _ in ids]
        if not ids:
            vectors = np.empty((0, DIM))
        if len(set(ids)) < len(ids) or set(ids) & self.model.keys():
            with pytest.raises(InputError, match=r"ids must be (unique|new)"):
                self.store.add(vectors, ids, payload)
            return
        if stream:
            half = len(ids) // 2
            parts = (Batch(vectors[s], ids[s], payload[s]) for s in (slice(half), slice(half, None)))
            assert self.store.add_batches(parts) == len(ids)
        else:
            assert self.store.add(vectors, ids, payload) == ids
        self.keep(ids, vectors, payload)

    @rule(count=st.integers(1, 16))
    def add_unnamed(self, count: int) -> None:
        vectors = self.vectors(count)
        if self.text and self.model:
            with pytest.raises(InputError, match="are strings"):
                self.store.add(vectors)
        elif not self.text:
            ids = self.store.add(vectors)
            assert ids == list(range(self.next_id, self.next_id + count))
            self.keep(ids, vectors, [{}] * count)

    @rule(numbers=st.lists(NAMES, min_size=1, max_size=12, unique=True), data=st.data())
    def upsert(self, numbers: list[int], data: Any) -> None:
        ids, vectors = self.named(numbers), self.vectors(len(numbers))
        payload = [data.draw(PAYLOADS) for _ in ids]
        self.store.upsert(vectors, ids, payload)
        self.keep(ids, vectors, payload)

    @rule(numbers=st.lists(NAMES, min_size=1, max_size=8))
    def delete(self, numbers: list[int]) -> None:
        ids = self.named(numbers)
        known = [one for one in ids if one in self.model]
        if len(known) < len(ids):
            with pytest.raises(InputError, match=r"the index has no such id"):
                self.store.delete(ids)
        if known:
            self.store.delete(known)
        for one in known:
            self.model.pop(one, None)

    @rule()
    def compact(self) -> None:
        self.store.compact()
        snapshot = self.store.snapshot()
        assert all(segment.alive is None for segment in snapshot.segments)
        most = 7 if self.store.about.dtype == "float32" else 14
        assert len(snapshot.segments) == math.ceil(len(self.model) / most)
        assert all(is_mapped(one.rows) and len(one) <= most for one in snapshot.segments)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path, writable=True, limits=LIMITS)

    @rule()
    def remember(self) -> None:
        """An old snapshot must stay as it is."""
        self.old = self.reader.snapshot(), list(self.model), [vector for vector, _ in self.model.values()]

    @rule(wanted=st.sampled_from([1, 2.5, None, "n"]))
    def where(self, wanted: Any) -> None:
        right = [one for one, (_, about) in self.model.items() if "n" in about and about["n"] == wanted]
        assert self.reader.where({"n": wanted}).ids().tolist() == right
        wrong = [one for one in self.model if one not in right]
        assert self.store.where({"$not": {"n": wanted}}).ids().tolist() == wrong

    @rule(bound=st.sampled_from([1, 1.5, 3]))
    def where_ordered(self, bound: float) -> None:
        right = [one for one, (_, about) in self.model.items() if isinstance(about.get("n"), (int, float))
                 and about["n"] <= bound]   # fmt: skip
        for store in (self.store, self.reader):
            assert store.where({"n": {"$lte": bound}}).ids().tolist() == right
        deep = [one for one, (_, about) in self.model.items() if "deep" in about]
        assert self.reader.where({"deep.word": {"$contains": "ä"}}).ids().tolist() == deep

    @invariant()
    def same(self) -> None:
        for store in (self.store, self.reader):
            assert store.count == len(store) == len(self.model)
            snapshot = store.snapshot()
            assert snapshot.count == len(self.model)
            assert snapshot.ids().tolist() == list(self.model)   # in the order of insertion
            check(snapshot, list(self.model), [vector for vector, _ in self.model.values()])
            vectors, payload = store.get(list(self.model))
            np.testing.assert_array_equal(vectors, np.reshape([v for v, _ in self.model.values()], (-1, DIM)))
            assert payload == [about for _, about in self.model.values()]
        if self.old:
            check(*self.old)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.verify()
            self.reader.verify()
            self.store.close()
            self.reader.close()
            self.place.cleanup()


def check(snapshot: Snapshot, ids: list[Any], vectors: list[list[float]]) -> None:
    seen_ids, seen_vectors, rows = [], [], []
    for segment in snapshot.segments:
        at = segment.positions
        seen_ids += segment.ids.take(at).tolist()
        seen_vectors += segment.blocks.rows(at, DIM).tolist()
        rows += segment.rows[at].tolist()
    assert (seen_ids, seen_vectors) == (ids, vectors)
    assert rows == sorted(set(rows))


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
