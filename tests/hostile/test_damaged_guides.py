"""A damaged guide is named when it is opened, crashes no search, and is built again by ``build()``."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from attacks.outcome import forked
from needs_core import needs_core

from matryo import Index, Plan
from matryo.errors import IndexFolderError
from matryo.retrieve.guides.partition import HEADER
from matryo.retrieve.store import Store
from matryo.retrieve.vectors.array_folder import write_arrays

pytestmark = needs_core
ROWS = np.random.default_rng(0).standard_normal((1001, 16)).astype(np.float32)
PLAN = Plan(Plan.of([(8, 1000, "int8"), (16, 1000)]).stages, probe=1.0)
SCAN = Plan.adaptive(8, 16, keep=1001)


def made(path, **guides):
    with Index.create(path, [8, 16]) as index:
        index.add(ROWS)
        Store.compact(index)
        index.build(**guides)


def flip(path, byte=-1, bits=0x40):
    content = bytearray(path.read_bytes())
    content[byte] ^= bits
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("guide", "file", "plan"),
    [("sketch", "axes.npy", None), ("sketch", "sketch.json", None), ("partition", "lists.npy", PLAN),
     ("partition", "adjust.npy", PLAN), ("partition", "slots.npy", PLAN), ("partition", "tile_columns.npy", PLAN),
     ("partition", "budgets.npy", PLAN), ("graph", "graph.npy", Plan.adaptive(8, 16, keep=50, ef=60))],
)  # fmt: skip
def test_a_search_names_the_file_and_build_repairs_it(guide, file, plan, tmp_path) -> None:
    if guide == "graph":
        pytest.importorskip("faiss")
    made(tmp_path / "index", **{guide: True if guide == "sketch" else 8})
    (path,) = (tmp_path / "index").rglob(file)
    with Index.open(tmp_path / "index") as index:
        before = index.search(ROWS[:5], k=5, plan=plan).ids.tolist()
    flip(path)
    with Index.open(tmp_path / "index") as index:
        for call in (lambda: index.search(ROWS[:5], k=5, plan=plan), index.verify):
            with pytest.raises(IndexFolderError, match=rf"{file} is damaged: index\.build\(\) builds the guide"):
                call()
        # Searches that do not follow the guide are not affected.
        assert index.search(ROWS[:5], k=1, plan=SCAN).ids[:, 0].tolist() == [*range(5)]
    with Index.open(tmp_path / "index", writable=True) as index:
        index.build()
        index.verify()
        assert index.search(ROWS[:5], k=5, plan=plan).ids.tolist() == before


def test_partitions_of_an_older_version_are_built_again(tmp_path) -> None:
    made(tmp_path / "index", partition=8)
    with Index.open(tmp_path / "index") as index:
        before = index.search(ROWS[:5], k=5, plan=PLAN).ids.tolist()
    (header,) = (tmp_path / "index").rglob(HEADER)
    shutil.rmtree(header.parent)
    write_arrays(header.parent, HEADER, 1, {"metric": "cosine", "dim": 8, "long": 16}, {"gaps": np.zeros(3)})
    with Index.open(tmp_path / "index") as index:
        said = r"layout of an older matryo: index\.build\(\) builds the guide"
        with pytest.raises(IndexFolderError, match=said):
            index.search(ROWS[:5], k=5, plan=PLAN)
    with Index.open(tmp_path / "index", writable=True) as index:
        index.build()
        index.verify()
        assert index.search(ROWS[:5], k=5, plan=PLAN).ids.tolist() == before


def test_a_row_that_does_not_exist_is_never_read(tmp_path) -> None:
    """A place that was empty when the guide was opened seems to be in use: its row is 0xFFFFFFFF."""
    made(tmp_path / "index", partition=8)
    (path,) = (tmp_path / "index").rglob("adjust.npy")

    def search_a_file_that_changes() -> int:
        with Index.open(tmp_path / "index") as index:
            index.search(ROWS[:50], k=1000, plan=PLAN)
            numbers = np.load(path)
            start = path.stat().st_size - numbers.nbytes
            with path.open("r+b") as file:   # in place: the mapped file of the open guide changes
                file.seek(start)
                file.write(np.where(np.isnan(numbers), np.float32(1), numbers).tobytes())
            return int(index.search(ROWS[:50], k=1000, plan=PLAN).ids.max())

    end = forked(search_a_file_that_changes)
    assert (end.kind, end.value) == ("returned", 1000), end
