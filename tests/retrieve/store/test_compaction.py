"""A compaction in the background against a plain dict: whatever happens meanwhile, the index has what it must have."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo import Index
from matryo.compiled import NUMPY, isa
from matryo.errors import IndexFolderError
from matryo.retrieve.compaction import Task
from matryo.retrieve.compaction.worker import make
from matryo.retrieve.store import Limits, snapshot
from matryo.retrieve.store.merging.merging import Merging
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from pathlib import Path

    from matryo.retrieve.store.merging.scratch import Scratch

DIM = 8
LIMITS = Limits(pending_bytes=10 * DIM * 4, segment_bytes=150 * DIM * 4)


class Oracle:
    """An index, and a dict with the version of each id; :meth:`step` changes both at random."""

    def __init__(self, index: Index, chance: random.Random) -> None:
        self.index, self.chance, self.held, self.version = index, chance, dict[str, int](), 0

    def step(self, _: float = 0) -> None:
        self.version += 1
        known = list(self.held)
        kind = self.chance.choice(("add", "add", "upsert", "delete", "nothing"))
        if kind == "delete" and known:
            gone = self.chance.sample(known, min(len(known), self.chance.randint(1, 15)))
            self.index.delete(gone)
            for id in gone:
                del self.held[id]
        elif kind in ("add", "upsert"):
            ids = [f"{self.version} {n}" for n in range(self.chance.randint(1, 25))]
            if kind == "upsert":
                ids += self.chance.sample(known, min(len(known), 10))
            payload = [{"version": self.version} for _ in ids]
            self.index.upsert(vectors_of(ids, self.version), ids, payload)
            for id in ids:   # the order of insertion
                self.held.pop(id, None)
                self.held[id] = self.version

    def check(self, index: Index) -> None:
        """Compare ids, vectors, payloads and the nearest neighbours."""
        index.verify()
        ids = index.ids.tolist()
        assert ids == list(self.held)
        assert index.count == len(ids)
        if not ids:
            return
        vectors, payload = index.get(ids)
        expected = np.array([vectors_of([id], version)[0] for id, version in self.held.items()])
        np.testing.assert_array_equal(vectors, expected)
        assert payload == [{"version": version} for version in self.held.values()]
        hits = index.search(expected[:3], k=min(5, len(ids)))
        distances = -np.square(expected[:3, None].astype(float) - expected).sum(2)
        np.testing.assert_allclose(hits.scores, -np.sort(-distances, axis=1)[:, : hits.scores.shape[1]], rtol=1e-5)


def vectors_of(ids: list[str], version: int) -> np.ndarray:
    rows = [np.random.default_rng([*map(int, id.split()), version]).normal(size=DIM) for id in ids]
    return np.array(rows, np.float32)


def folders(index: Index) -> set[str]:
    """All folders of segments, guides and scratch indexes."""
    kept = {f"segments/{record.name}" for record in records.read_segments(index._database)}
    kept |= {f"guides/{record.name}" for record in records.read_guides(index._database)}
    found = {entry.relative_to(index.path).as_posix() for entry in index.path.glob("*/*") if entry.is_dir()}
    found |= {entry.name for entry in index.path.glob("compact-*")}
    return found ^ kept   # the difference


def begin(index: Index) -> tuple[Scratch, Task]:
    scratch = index._reserve()
    return scratch, Task(str(index.path), str(scratch.path), scratch.names, index._limits, 1.0)


def finish(index: Index, scratch: Scratch) -> None:
    index._adopt(scratch)
    index._release(scratch)


@pytest.mark.parametrize("seed", range(6))
def test_changes_meanwhile_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The child runs in this process, with random changes between any two of its pieces."""
    monkeypatch.setattr(snapshot, "_STEP_BYTES", 16 * DIM * 4)
    chance = random.Random(seed)
    with Index.create(tmp_path / "index", [2, DIM], metric="l2", limits=LIMITS) as index:
        oracle = Oracle(index, chance)
        for _ in range(chance.randint(0, 25)):
            oracle.step()
        if seed % 2:
            index.build(sketch=True, partition=True)
        for _ in range(chance.randint(1, 3)):
            before = index.snapshot()
            held = [oracle.held.copy(), before.ids().tolist()]
            scratch, task = begin(index)
            for _ in range(chance.randint(0, 12)):   # enough to merge new segments
                oracle.step()
            make(task, oracle.step)
            oracle.check(index)
            for _ in range(chance.randint(0, 12)):
                oracle.step()
            finish(index, scratch)
            oracle.check(index)
            assert before.ids().tolist() == held[1] == list(held[0])   # an old snapshot stays as it was
            if seed % 2 and isa() != NUMPY:   # new segments get guides only where the core is
                guided = {record.segment for record in records.read_guides(index._database)}
                assert guided == {record.name for record in records.read_segments(index._database)}
        assert folders(index) == set()
    with Index.open(tmp_path / "index") as again:
        oracle.check(again)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    made = Index.create(tmp_path / "index", [2, DIM], metric="l2", limits=LIMITS)
    oracle = Oracle(made, random.Random(1))
    for _ in range(20):
        oracle.step()
    made.oracle = oracle   # type: ignore[attr-defined]
    return made


def test_rows_deleted_meanwhile_stay_deleted(index: Index) -> None:
    scratch, task = begin(index)
    make(task, lambda _: None)
    first = index.ids[:30].tolist()
    index.delete(first[:20])
    index.upsert(vectors_of(first[20:], 999), first[20:])
    finish(index, scratch)
    index.verify()
    index.close()
    with Index.open(index.path, writable=True) as again:
        assert not {*first[:20]} & {*again.ids.tolist()}
        np.testing.assert_array_equal(again.get(first[20:])[0], vectors_of(first[20:], 999))
        again.verify()
        again.add(vectors_of(["0 1"], 5), [first[0]])   # a deleted id is free
        again.compact()
        again.verify()
        assert len(records.read_dead(again._database)) == 0


def test_all_rows_may_be_deleted_meanwhile(index: Index) -> None:
    scratch, task = begin(index)
    index.delete(index.ids.tolist())
    make(task, lambda _: None)
    finish(index, scratch)
    index.verify()
    assert index.count == 0
    assert index.snapshot().segments == ()


def test_a_compaction_of_the_index_meanwhile_wins(index: Index) -> None:
    scratch, task = begin(index)
    make(task, lambda _: None)
    Merging.compact(index)
    with pytest.raises(IndexFolderError, match=r"compacted by another call meanwhile.*unchanged"):
        index._adopt(scratch)
    index._release(scratch)
    index.oracle.check(index)   # type: ignore[attr-defined]
    assert folders(index) == set()


def test_a_scratch_folder_is_swept_unless_it_is_in_use(index: Index) -> None:
    scratch, task = begin(index)
    make(task, lambda _: None)
    dead = scratch.path.with_name("compact-0123456789abcdef")
    shutil.copytree(scratch.path, dead)
    (index.path / "compact-mine").mkdir()
    for _ in range(3):   # each addition is a segment, and sweeps
        index.add(np.ones((20, DIM)), [f"{index.count} {n}" for n in range(20)])
    assert scratch.path.exists()
    assert not dead.exists()
    index.close()
    Index.open(index.path, writable=True).close()
    assert [entry.name for entry in index.path.glob("compact-*")] == ["compact-mine"]


def test_a_damaged_segment_is_not_copied(index: Index) -> None:
    scratch, task = begin(index)
    file = next((index.path / "segments" / task.names[1]).glob("rows.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(IndexFolderError, match=r"rows\.npy is damaged"):
        make(task, lambda _: None)
    index._release(scratch)
    assert folders(index) == set()


def test_a_late_guide_of_a_merged_segment_is_not_stored(index: Index) -> None:
    class Note:
        kind = "note"

        def write(self, _: Path) -> Any:
            raise AssertionError

    index.add_guide("0123456789abcdef", Note(), {})   # type: ignore[arg-type]
    assert records.read_guides(index._database) == []
