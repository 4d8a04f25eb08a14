"""A byte that is torn, flipped or lost is detected, and the file is named."""

from __future__ import annotations

import random
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo.errors import IndexFolderError, MatryoError, StorageError
from matryo.nesting import Nesting
from matryo.retrieve.store import Limits, Store
from matryo.retrieve.store.sql import records
from matryo.retrieve.store.sql.database import Database

if TYPE_CHECKING:
    from pathlib import Path

VECTORS = np.random.default_rng(3).standard_normal((40, 8)).astype(np.float32)
IDS = [f"row {n}" for n in range(40)]
PAYLOAD = [{"n": n, "word": "x" * (n % 9)} for n in range(40)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two segments, tombstones and recent rows."""
    path = tmp_path_factory.mktemp("whole") / "index"
    with Store.create(path, Nesting([2, 4, 8]), int8_up_to=4, limits=Limits(pending_bytes=15 * 32)) as store:
        for rows in (slice(0, 20), slice(20, 36), slice(36, 40)):
            store.add(VECTORS[rows], IDS[rows], PAYLOAD[rows])
        store.delete(["row 3", "row 30", "row 38"])
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "index")


def contents(path: Path) -> Any:
    with Store.open(path) as store:
        store.verify()
        snapshot = store.snapshot()
        ids = snapshot.ids().tolist()
        vectors, payload = store.get(ids)
        return store.about, ids, vectors.tolist(), payload, store.where({"n": {"$gte": 20}}).ids().tolist()


def segment_files(path: Path) -> list[Path]:
    return sorted(file for file in (path / "segments").rglob("*") if file.is_file())


def test_a_whole_store_passes(copy: Path) -> None:
    _, ids, vectors, payload, late = contents(copy)
    kept = [n for n in range(40) if n not in (3, 30, 38)]
    assert ids == [IDS[n] for n in kept]
    assert vectors == VECTORS[kept].tolist()
    assert payload == [PAYLOAD[n] for n in kept]
    assert late == [IDS[n] for n in kept if n >= 20]
    assert len(segment_files(copy)) == 2 * (3 + 2 + 1 + 1 + 3)   # blocks, int8, norms, header; rows, ids, text


def test_every_file_of_a_segment_is_checked(copy: Path) -> None:
    chance = random.Random(0)
    for file in segment_files(copy):
        good = file.read_bytes()
        for at in {0, len(good) - 1, *(chance.randrange(len(good)) for _ in range(4))}:
            bad = bytearray(good)
            bad[at] ^= 1 << chance.randrange(8)
            file.write_bytes(bad)
            with Store.open(copy) as store, pytest.raises(IndexFolderError, match=f"{file.name} is damaged"):
                store.verify()
        for cut in (good[:-1], good[: len(good) // 2], b""):
            file.write_bytes(cut)
            with Store.open(copy) as store, pytest.raises(IndexFolderError, match=f"{file.name}"):
                store.snapshot()   # sizes are checked without reading the vectors
        file.unlink()
        with Store.open(copy) as store, pytest.raises(IndexFolderError, match=f"{file.name}"):
            store.verify()
        file.write_bytes(good)
    contents(copy)


def test_a_flip_in_the_database_is_found_or_changes_nothing(copy: Path) -> None:
    right, file = contents(copy), copy / "index.sqlite"
    good, chance, found = file.read_bytes(), random.Random(1), 0
    header = range(0, 100, 3)
    for at in [*header, *(chance.randrange(len(good)) for _ in range(80))]:
        bad = bytearray(good)
        bad[at] ^= 1 << chance.randrange(8)
        for log in copy.glob("index.sqlite-*"):
            log.unlink()
        file.write_bytes(bad)
        try:
            assert contents(copy) == right   # a byte that nothing uses
        except (IndexFolderError, StorageError) as error:
            assert "index.sqlite" in str(error)
            found += 1
    assert found > 20


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET payload = '{\"n\": 99}' WHERE row = 1",
        "UPDATE items SET id = 'other' WHERE row = 1",
        "DELETE FROM items WHERE row = 1",
        "DELETE FROM pending WHERE row = 37",
        "UPDATE pending SET vector = zeroblob(32) WHERE row = 37",
        "UPDATE pending SET vector = x'00' WHERE row = 37",
        "DELETE FROM dead WHERE row = 3",
        "UPDATE dead SET row = 4 WHERE row = 3",
        "INSERT INTO dead VALUES (1000)",
        "DELETE FROM segments WHERE first = 0",
        "UPDATE segments SET rows = 19 WHERE first = 0",
        "UPDATE meta SET value = replace(value, 'cosine', 'l2') WHERE key = 'about'",
        "UPDATE meta SET value = replace(value, '37', '36') WHERE key = 'state'",
        "DELETE FROM meta WHERE key = 'state'",
        "DROP TABLE dead",
    ],
)
def test_records_that_were_changed_behind_our_back_are_found(copy: Path, statement: str) -> None:
    connection = sqlite3.connect(copy / "index.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(IndexFolderError, match=r"index\.sqlite is damaged"), Store.open(copy) as store:
        store.verify()


def test_damage_that_a_read_meets_is_told_then(copy: Path) -> None:
    connection = sqlite3.connect(copy / "index.sqlite")
    connection.execute("UPDATE items SET payload = '{\"n\": 99}' WHERE row = 1")
    connection.commit()
    connection.close()
    with Store.open(copy, writable=True) as store:
        with pytest.raises(IndexFolderError, match=r"damaged .*row 1, id 'row 1'"):
            store.get(["row 0", "row 1"])
        with pytest.raises(IndexFolderError, match=r"damaged .*row 1"):
            store.upsert(VECTORS[:1], ["row 1"])
        store.get(["row 0"])


def test_what_is_no_database_is_told(copy: Path) -> None:
    (copy / "index.sqlite").write_bytes(b"not a database" * 100)
    for writable in (False, True):
        with pytest.raises(IndexFolderError, match=r"index\.sqlite is damaged .*not a database"):
            Store.open(copy, writable=writable)
    (copy / "index.sqlite").write_bytes(b"")
    with pytest.raises(IndexFolderError, match="creation of this index did not finish"):
        Store.open(copy)
    assert issubclass(IndexFolderError, MatryoError)


def test_a_newer_layout_is_told(copy: Path) -> None:
    database = Database(copy / "index.sqlite", "rw")
    with database.writing():
        records.put(database, "about", {"format": 4, "shape": "unknown"})
    database.close()
    with pytest.raises(IndexFolderError, match=r"written by a newer version of matryo .*format 4, supported up to 3"):
        Store.open(copy)
