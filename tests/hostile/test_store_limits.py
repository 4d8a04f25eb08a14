"""The documented limits of an index: refused at the edge, before anything is written, and never called damage."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from matryo import Index
from matryo.errors import InputError, MatryoError, UnknownId
from matryo.retrieve.store import Limits
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VECTORS = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", [2, 4], limits=Limits(pending_bytes=20 * 16)) as made:
        yield made


def test_a_long_id_is_refused_and_widens_nothing(index: Index) -> None:
    with pytest.raises(MatryoError, match=r"an id must have at most 512 characters .*100,000 in row 1"):
        index.add(VECTORS[:2], ["a", "L" * 100_000])
    assert len(index) == 0
    ids = ["L" * 512, *(f"doc-{row}" for row in range(49))]
    index.add(VECTORS, ids)
    index.compact()
    hits = index.search(VECTORS, k=50)
    for found in (index.ids, hits.ids, index.sample(50, 0)[0]):
        assert found.dtype == object   # an array of text would have 512 characters in each place
        assert set(found.ravel().tolist()) == set(ids)


@pytest.mark.parametrize("ids", [None, [f"doc-{row}" for row in range(50)]], ids=["int", "str"])
def test_more_hits_than_rows_cost_nothing(index: Index, ids: list[str] | None) -> None:
    index.add(VECTORS[:30], None if ids is None else ids[:30])
    index.add(VECTORS[30:], None if ids is None else ids[30:])
    few, many = index.search(VECTORS[:3], k=50), index.search(VECTORS[:3], k=1_000_000)
    assert many.ids.shape == many.scores.shape == (3, 1_000_000)
    assert many.ids[:, :50].tolist() == few.ids.tolist()
    assert np.array_equal(many.scores[:, :50], few.scores)
    assert set(many.ids[:, 50:].ravel().tolist()) == {-1 if ids is None else ""}
    assert np.isneginf(many.scores[:, 50:]).all()


def test_a_search_for_too_many_hits_is_refused(index: Index) -> None:
    index.add(VECTORS)
    for queries, k in ((VECTORS[:1], 10**8 + 1), (VECTORS, 2 * 10**6 + 1), (VECTORS[:1], 2**62)):
        with pytest.raises(InputError, match=r"at most 100,000,000 hits .* queries × k=\d+\): search fewer"):
            index.search(queries, k)


def test_more_dims_than_kernels_can_sum_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vectors must have at most 65,536 dims"):
        Index.create(tmp_path / "wide", [2, 65_537])
    assert not (tmp_path / "wide").exists()


def test_ids_that_cannot_exist_are_unknown(index: Index) -> None:
    index.add(VECTORS[:2], ["x", "y"])
    for id in ("x\0", "x\0z", "\0x", 10**5000, 2**64, 0):
        assert id not in index
        with pytest.raises(UnknownId):
            index.get([id])


def test_many_ids_pass_in_parts(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_TOGETHER", 7)
    ids = [f"doc-{row}" for row in range(50)]
    index.add(VECTORS, ids)
    with pytest.raises(InputError, match="'doc-49', which exists"):
        index.add(VECTORS[:20], [f"new-{row}" for row in range(19)] + ids[-1:])
    assert index.get(ids + ids)[0].tolist() == VECTORS.tolist() * 2
    index.delete(ids[:40] + ids[:40])
    assert index.ids.tolist() == ids[40:]
    index.verify()


def test_a_plan_for_too_many_hits_is_refused(index: Index) -> None:
    index.add(VECTORS)
    with pytest.raises(InputError, match=r"a plan is chosen for k of at most 1,000 \(got 1001\)"):
        index.plan(k=1001, queries=VECTORS, progress=False)


def test_adding_the_longest_id_takes_no_memory_for_the_others(index: Index) -> None:
    count = 10_000   # an array of text would take 20 MB
    ids = ["L" * 512, *map(str, range(count - 1))]
    vectors = np.ones((count, 4), np.float32)
    for given in (ids, np.array(ids, object)):
        tracemalloc.start()
        index.upsert(vectors, given)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 15e6
