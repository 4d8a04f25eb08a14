"""A creation that was killed while SQLite switches a new file to WAL mode leaves no index, and may be repeated."""

import sqlite3

import pytest

from matryo.errors import IndexFolderError
from matryo.retrieve import Index


def test_a_hot_journal_is_no_index(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    with sqlite3.connect(tmp_path / "other.sqlite", isolation_level=None) as other:
        other.executescript("PRAGMA cache_spill = 1; PRAGMA cache_size = 1; BEGIN; CREATE TABLE a (b);")
        other.executemany("INSERT INTO a VALUES (?)", [("x" * 4000,)] * 50)   # more than the cache: written early
        for end in ("", "-journal"):
            (folder / f"index.sqlite{end}").write_bytes((tmp_path / f"other.sqlite{end}").read_bytes())
        other.execute("ROLLBACK")
    other.close()
    assert not Index.exists(folder)
    for writable in (False, True):
        with pytest.raises(IndexFolderError, match="there is no index in this folder"):
            Index.open(folder, writable=writable)
    Index.create(folder, [2, 4]).close()
    assert Index.exists(folder)
