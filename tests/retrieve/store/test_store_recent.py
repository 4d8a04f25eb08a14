"""Recent rows are read once, and snapshots of earlier commits stay unchanged while they grow."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo import Index
from matryo.nesting import Nesting
from matryo.retrieve.store import Limits, Snapshot, Store
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from pathlib import Path

VECTORS = np.random.default_rng(5).standard_normal((500, 4)).astype(np.float32)
NESTING = Nesting([2, 4])


def contents(snapshot: Snapshot) -> dict[Any, list[float]]:
    pieces = list(snapshot.pieces())
    vectors = [vector.tolist() for piece in pieces for vector in piece.vectors]
    return dict(zip((id for piece in pieces for id in piece.ids), vectors, strict=True))


@pytest.mark.parametrize("ids", ["int", "str"])
def test_every_snapshot_stays_as_it_was(tmp_path: Path, ids: str) -> None:
    chance = random.Random(ids)
    names = [number if ids == "int" else "é" * (number % 7) + str(number) for number in range(120)]
    held: dict[Any, list[float]] = {}
    taken: list[tuple[Snapshot, dict[Any, list[float]]]] = []
    with Store.create(tmp_path / "index", NESTING, limits=Limits(pending_bytes=70 * 16)) as store:
        for step in range(90):
            rows = VECTORS[step : step + chance.choice((1, 1, 1, 2, 5))].copy()
            chosen = chance.sample(names, len(rows))
            gone = [name for name in chosen if name in held]
            if chance.random() < 0.3 and gone:
                store.delete(gone)
                held = {name: vector for name, vector in held.items() if name not in gone}
            else:
                store.upsert(rows, chosen)
                held = {name: vector for name, vector in held.items() if name not in gone}
                held.update(zip(chosen, rows.tolist(), strict=True))
                rows[:] = 7   # the array is the caller's
            if chance.random() < 0.02:
                store.compact()
            if chance.random() < 0.4:
                continue   # the next snapshot follows several commits
            snapshot = store.snapshot()
            assert list(contents(snapshot).items()) == list(held.items())
            np.testing.assert_array_equal(store.get(list(held))[0], np.array(list(held.values())).reshape(-1, 4))
            taken.append((snapshot, dict(held)))
        store.verify()
        for snapshot, right in taken:
            assert contents(snapshot) == right
            for segment in snapshot.segments:
                kept = segment.blocks.rows(np.arange(len(segment)), 4)
                norms = np.stack([np.linalg.norm(kept[:, :dim], axis=1) for dim in (2, 4)], axis=1)
                np.testing.assert_allclose(segment.blocks.norms, norms, rtol=1e-6)


def test_a_writer_follows_its_small_commits_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.create(tmp_path / "index", NESTING, limits=Limits(pending_bytes=300 * 16)) as store:
        store.add(VECTORS[:300])   # a segment
        store.add(VECTORS[300:302])
        store.snapshot()
        with monkeypatch.context() as patched:
            patched.delattr(records, "read_segments")   # the first that loading calls
            store.add(VECTORS[302:304])
            store.delete([5, 301])
            store.upsert(VECTORS[400:402], ids=[7, 303])
            store.delete([303])
            followed = store.snapshot()
        with Store.open(tmp_path / "index") as reader:
            assert contents(followed) == contents(reader.snapshot())
        assert [segment.live for segment in followed.segments] == [298, 3]
        store.delete([302, 7, 300])   # most recent rows are gone: they are read anew, without the others
        left = {id: row for id, row in contents(followed).items() if id not in (302, 7, 300)}
        assert contents(store.snapshot()) == left
        assert [len(segment) for segment in store.snapshot().segments] == [300]
        with pytest.raises(RuntimeError), store._committing():   # a commit that failed is not followed
            store.add(VECTORS[:1], ids=[1000])
            raise RuntimeError


def test_a_recent_row_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, read_pending = [], records.read_pending

    def counted(*args: Any) -> Any:
        piece = read_pending(*args)
        read.extend(piece.rows.tolist())
        return piece

    monkeypatch.setattr(records, "read_pending", counted)
    with Store.create(tmp_path / "index", NESTING) as store, Store.open(tmp_path / "index") as reader:
        for row in range(0, 300, 2):
            store.add(VECTORS[row : row + 2])
            assert reader.snapshot().count == row + 2
        assert read == list(range(300))
        reader.snapshot()
        store.delete([3, 7])   # needs no vectors
        assert reader.snapshot().count == 298
        assert len(read) == 300
        store.delete(list(range(100, 300)))   # most of the memory would be for rows that are gone
        assert [len(segment) for segment in reader.snapshot().segments] == [98]


def test_searches_run_while_rows_are_added(tmp_path: Path) -> None:
    """A search of one thread reads the arrays that additions of another thread extend."""
    stop, failed = threading.Event(), []

    def search(index: Index) -> None:
        while not stop.is_set():
            hits = index.search(VECTORS[:3], k=3)
            if not np.allclose(hits.scores[:, 0], 1, atol=1e-5) or hits.ids[:, 0].tolist() != [0, 1, 2]:
                failed.append(hits)

    with Index.create(tmp_path / "index", NESTING) as index:
        index.add(VECTORS[:3])
        thread = threading.Thread(target=search, args=(index,))
        thread.start()
        for row in range(3, 60):
            index.add(VECTORS[row : row + 1])
        stop.set()
        thread.join()
    assert not failed
