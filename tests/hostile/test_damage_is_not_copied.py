"""Damage is never copied into files with new checksums: not by compact, merges, guides or a copy of the index."""

from __future__ import annotations

import random
import shutil
import sqlite3
import warnings
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from matryo import Index
from matryo.errors import IndexFolderError, MatryoError
from matryo.files import sha256
from matryo.retrieve.sources import open_source
from matryo.retrieve.store import Limits
from matryo.retrieve.store.sql import records

if TYPE_CHECKING:
    from pathlib import Path

VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
IDS = [f"doc-{row}" for row in range(60)]
LIMITS = Limits(pending_bytes=10 * 32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six segments of ten rows, of which two are deleted; two more segments are merged with them."""
    path = tmp_path_factory.mktemp("whole") / "index"
    with Index.create(path, [2, 8], int8_up_to=2, limits=LIMITS) as index:
        for start in range(0, 60, 10):
            index.add(VECTORS[start : start + 10], IDS[start : start + 10])
        index.delete(["doc-7", "doc-33"])
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "index")


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.*") if "sqlite" not in file.name}


def flip(file: Path, at: int, bit: int = 4) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        connection.execute(statement)
        connection.commit()


def segment_files() -> list[str]:
    blocks = ("block-00.npy", "block-01.npy", "int8-00.npy", "norms.npy", "blocks.json")
    return ["rows.npy", "ids.npy", "ids.txt", *(f"blocks/{name}" for name in blocks)]


@pytest.mark.parametrize("name", segment_files())
def test_compact_and_merges_refuse_a_damaged_file(path: Path, name: str) -> None:
    file = sorted(path.glob(f"segments/*/{name}"))[2]
    flip(file, -3)
    before = files(path)
    with Index.open(path, writable=True, limits=LIMITS) as index:
        with pytest.raises(IndexFolderError, match=rf"{file.name} is damaged"):
            index.compact()
        assert files(path) == before
        if name != "blocks/blocks.json" and name != "rows.npy":   # without these no row can be read
            with pytest.warns(UserWarning, match=rf"the change is committed, but .*{file.name} is damaged"):
                for start in (60, 70):
                    index.add(VECTORS[:10], [f"doc-{row}" for row in range(start, start + 10)])
            assert len(index) == 78
            assert before.items() <= files(path).items()
    with Index.open(path) as index, pytest.raises(IndexFolderError, match=f"{file.name} is damaged"):
        index.verify()


def test_a_guide_of_damaged_vectors_is_not_built(path: Path) -> None:
    flip(sorted(path.glob("segments/*/blocks/block-01.npy"))[0], -3)
    with Index.open(path, writable=True) as index:
        with pytest.raises(IndexFolderError, match=r"block-01\.npy is damaged"):
            index.build(sketch=True)
        assert not list(path.glob("guides/*"))


def test_a_damaged_index_is_not_a_source(path: Path) -> None:
    assert sum(len(batch.vectors) for batch in open_source(str(path)).batches()) == 58
    flip(sorted(path.glob("segments/*/blocks/block-01.npy"))[0], -3)
    with pytest.raises(IndexFolderError, match=r"block-01\.npy is damaged"):
        list(open_source(str(path)).batches())


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET id = 'other' WHERE row = 1",
        "DELETE FROM items WHERE row = 1",
        "DELETE FROM dead WHERE row = 7",
        "UPDATE dead SET row = 8 WHERE row = 7",
    ],
)
def test_rows_that_differ_from_the_ledger_are_not_copied(path: Path, statement: str) -> None:
    change(path, statement)
    before = files(path)
    with Index.open(path, writable=True) as index, pytest.raises(IndexFolderError, match=r"index\.sqlite is damaged"):
        index.compact()
    assert files(path) == before


def test_ids_that_differ_from_the_ledger_fail_verification(path: Path) -> None:
    """As left by versions that copied damage: all checksums are right, but a segment has another id than its item."""
    with Index.open(path, writable=True) as index, closing(sqlite3.connect(path / "index.sqlite")) as other:
        index.verify()
        first, name, rows, recorded, _ = other.execute("SELECT * FROM segments ORDER BY first").fetchone()
        file = path / "segments" / name / "ids.txt"
        old = sha256(file)
        flip(file, -1, 0)
        changed = recorded.replace(old, sha256(file))
        crc = records._crc(first, name, rows, changed)
        other.execute("UPDATE segments SET files = ?, crc = ? WHERE name = ?", (changed, crc, name))
        other.commit()
    with Index.open(path, writable=True) as index:
        for call in (index.verify, index.compact):
            with pytest.raises(IndexFolderError, match=r"live rows and rows with vectors differ"):
                call()


def test_a_search_in_damaged_files_ends_with_hits_or_an_error_of_ours(path: Path) -> None:
    chance = random.Random(0)
    for name in ("rows.npy", "ids.npy", "ids.txt"):
        for file in sorted(path.glob(f"segments/*/{name}"))[::3]:
            good = file.read_bytes()
            for _ in range(10):
                flip(file, chance.randrange(0 if name == "ids.txt" else 128, len(good)), chance.randrange(8))
                with Index.open(path) as index, warnings.catch_warnings():
                    for call in (
                        lambda: index.search(VECTORS[:3], k=60),
                        lambda: index.search(VECTORS[:3], k=60, where={"x": {"$exists": False}}),
                        lambda: index.get(IDS[:5]),
                        lambda: index.sample(10, 0),
                        lambda: index.ids,
                    ):
                        try:
                            call()
                        except MatryoError as error:
                            assert "damaged" in str(error)
                file.write_bytes(good)
