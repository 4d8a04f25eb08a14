"""Many small additions leave few segments, and nothing but that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matryo.errors import StorageError
from matryo.nesting import Nesting
from matryo.retrieve.store import Store
from matryo.retrieve.store.segments.pieces import to_merge
from matryo.retrieve.store.segments.segment import Limits

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(pending_bytes=1, segment_bytes=64 << 10)   # every addition is a segment


def rows(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32)[:, None] + np.float32([1, 2, 3, 4])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "index", Nesting([2, 4]), limits=LIMITS)


def test_many_additions_leave_few_segments(store: Store) -> None:
    for i in range(80):
        store.add(rows(3 * i, 3))
        assert len(store.snapshot().segments) <= 7 * 3   # fewer than eight of each size: 3, 24, 192 rows
    store.verify()
    vectors, _ = store.get(list(range(240)))
    np.testing.assert_array_equal(vectors, rows(0, 240))
    assert store.snapshot().ids().tolist() == list(range(240))


def test_what_was_deleted_stays_so(store: Store) -> None:
    for i in range(7):
        store.add(rows(3 * i, 3))
    store.delete([0, 4, 5, 20])
    store.upsert(rows(900, 1), [7])   # the eighth segment
    assert len(store.snapshot().segments) == 1
    assert store.snapshot().segments[0].alive is None
    left = sorted(set(range(21)) - {0, 4, 5, 20})
    np.testing.assert_array_equal(store.get(left)[0], [rows(900 if i == 7 else i, 1)[0] for i in left])
    store.verify()


class Note:
    """A guide that is one file."""

    def write(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "note.json").write_text("{}")


def test_guides_go_with_their_segments(store: Store) -> None:
    for i in range(7):
        store.add(rows(3 * i, 3))
    store.build_guide("note", {}, lambda _: Note())
    assert len(list(store.path.glob("guides/*"))) == 7
    assert [sorted(segment.guides) for segment in store.snapshot().segments] == [["note"]] * 7
    store.add(rows(21, 3))
    assert [sorted(segment.guides) for segment in store.snapshot().segments] == [[]]
    assert list(store.path.glob("guides/*")) == []
    assert store.wanted() == {"note": {}}


def test_a_disk_that_refuses_the_merge_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(7):
        store.add(rows(3 * i, 3))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_replace", refuse)
        with pytest.warns(UserWarning, match=r"the change is committed, but .*free some"):
            assert store.add(rows(21, 3)) == [21, 22, 23]
    assert len(store.snapshot().segments) == 8
    store.add(rows(24, 3))
    assert len(store.snapshot().segments) == 2   # the last eight became one
    store.verify()


def refuse(*_: object) -> None:
    raise StorageError("the disk must have room", got="none", cure="free some")


@given(counts=st.lists(st.integers(1, 100), max_size=40), most=st.integers(1, 500))
def test_what_is_merged_fits_and_is_of_one_size(counts: list[int], most: int) -> None:
    merged = to_merge(counts, most)
    if merged:
        last = counts[-merged:]
        assert len(last) >= 8
        assert sum(last) <= most
        assert 4 * max(last) <= sum(last)
