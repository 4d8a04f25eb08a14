"""Every SQL statement of a store but the filters: ids, payloads, recent vectors, tombstones, the list of segments.

A row number is given once and never again, in the order of insertion. ``items`` has the rows that are alive.
A row's vector is in ``pending`` while it is recent, later in a segment; ``dead`` lists the rows of segments
that are alive no more. SQLite has no checksums of its own for what is in the file, so each record has one, and
``State`` has the count and the sum of those of all items: a record that is gone or back shows too.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings.manifest import FileRecord
from matryo.errors import IndexFolderError, InputError
from matryo.retrieve.store.about import FORMAT, About
from matryo.retrieve.store.damage import damaged
from matryo.retrieve.store.segments.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from matryo.retrieve.store.sql.database import Database

    Rows = np.ndarray[Any, np.dtype[np.int64]]
    Id = int | str

__all__ = ["GuideRecord", "Item", "Record", "State"]

_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE items (row INTEGER PRIMARY KEY, id NOT NULL UNIQUE, payload TEXT, crc INTEGER NOT NULL)",
    "CREATE TABLE pending (row INTEGER PRIMARY KEY, vector BLOB NOT NULL, crc INTEGER NOT NULL)",
    "CREATE TABLE dead (row INTEGER PRIMARY KEY)",
    "CREATE TABLE segments (first INTEGER PRIMARY KEY, name TEXT NOT NULL, rows INTEGER NOT NULL,"
    " files TEXT NOT NULL, crc INTEGER NOT NULL)",
    "CREATE TABLE guides (name TEXT PRIMARY KEY, segment TEXT NOT NULL, kind TEXT NOT NULL, fields TEXT NOT NULL,"
    " header TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
)
_AMONG = "IN (SELECT value FROM json_each(?))"   # any number of values as one bound parameter


@dataclass(frozen=True)
class State:
    """What each commit moves on."""

    kind: str = ""
    """"int" or "str", what the ids of this store are; "" until the first is added."""
    next_id: int = 0
    next_row: int = 0
    count: int = 0
    total: int = 0
    """The sum of the checksums of all items."""


@dataclass(frozen=True)
class Item:
    """One row that is alive."""

    row: int
    id: Id
    payload: str | None
    """JSON text; None for an empty object."""

    @cached_property
    def crc(self) -> int:
        """The checksum of the three."""
        text = self.payload or ""
        return zlib.crc32(f"{self.row}\0{type(self.id).__name__}\0{self.id}\0{text}".encode())


@dataclass(frozen=True)
class Record:
    """A segment that counts: its folder, the number of its first row, how many it has, and its files."""

    name: str
    first: int
    rows: int
    files: Mapping[str, FileRecord]


@dataclass(frozen=True)
class GuideRecord:
    """A guide that counts: its folder, the segment it leads into, what it is, and the checksum of its header."""

    name: str
    segment: str
    kind: str
    fields: Mapping[str, Any]
    """What it was built with."""
    header: str


def create(database: Database, about: About) -> None:
    """Lay out an empty store, inside a transaction."""
    for statement in _SCHEMA:
        database.execute(statement)
    _put(database, "about", about.to_json())
    write_state(database, State())
    write_wanted(database, {})


def exists(database: Database) -> bool:
    """Whether the file has been laid out: a creation that was killed leaves an empty one."""
    return database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone() is not None


def read_about(database: Database) -> About:
    """What was fixed at the creation."""
    if not exists(database):
        raise IndexFolderError("the index must have been created", got=database.path, cure="create it again")
    data = _take(database, "about")
    if data["format"] > FORMAT:
        raise IndexFolderError(
            f"{database.path} has a layout newer than this matryo reads",
            got=f"format {data['format']}, known up to {FORMAT}",
            cure="pip install --upgrade matryo",
        )
    return About.from_json(data)


def read_state(database: Database) -> State:
    """Where the last commit left things."""
    return State(**_take(database, "state"))


def write_state(database: Database, state: State) -> None:
    """Move things on, with the commit of this transaction."""
    _put(database, "state", asdict(state))


def find(database: Database, ids: Sequence[Id]) -> list[Item]:
    """Those of ``ids`` that are there, checked."""
    sql = f"SELECT row, id, payload, crc FROM items WHERE id {_AMONG}"
    return [_checked(database, *found) for found in database.execute(sql, (_as_json(ids),))]


def find_all(database: Database, ids: Sequence[Id]) -> list[Item]:
    """The same, where every one of ``ids`` must be there."""
    found = find(database, ids)
    missing = set(ids) - {item.id for item in found}
    if missing:
        first = next(one for one in ids if one in missing)
        raise InputError("every id must be in the index", got=f"{first!r:.60}", cure="check the ids")
    return found


def items(database: Database) -> Iterator[Item]:
    """Every row that is alive, checked, in order."""
    for found in database.execute("SELECT row, id, payload, crc FROM items ORDER BY row"):
        yield _checked(database, *found)


def insert(database: Database, new: Iterable[Item]) -> None:
    """Add rows that are alive."""
    rows = ((item.row, item.id, item.payload, item.crc) for item in new)
    database.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)


def remove(database: Database, rows: Sequence[int]) -> None:
    """Take rows away; those whose vectors lie in segments are listed as dead."""
    given = (_as_json(rows),)
    database.execute(f"DELETE FROM items WHERE row {_AMONG}", given)
    database.execute(
        "INSERT INTO dead SELECT value FROM json_each(?) WHERE value NOT IN (SELECT row FROM pending)", given
    )
    database.execute(f"DELETE FROM pending WHERE row {_AMONG}", given)


def read_pending(database: Database, about: About) -> Piece:
    """The rows that are in no segment yet, checked."""
    sql = "SELECT row, id, vector, pending.crc FROM pending LEFT JOIN items USING (row) ORDER BY row"
    found = database.execute(sql).fetchall()
    for row, id, vector, crc in found:
        if crc != _crc(row, vector) or len(vector) != about.row_bytes or id is None:
            raise damaged(database.path, f"the vector of row {row}")
    vectors = np.frombuffer(b"".join(vector for _, _, vector, _ in found), about.dtype)
    rows = np.array([row for row, _, _, _ in found], np.int64)
    return Piece(vectors.reshape(-1, about.nesting.dim), rows, [id for _, id, _, _ in found])


def insert_pending(database: Database, piece: Piece) -> None:
    """Keep vectors that are too few for a segment."""
    given = zip(piece.rows.tolist(), map(bytes, piece.vectors), strict=True)
    database.executemany("INSERT INTO pending VALUES (?, ?, ?)", ((row, data, _crc(row, data)) for row, data in given))


def count_pending(database: Database) -> int:
    """How many rows are in no segment yet."""
    return int(database.execute("SELECT count(*) FROM pending").fetchone()[0])


def clear_pending(database: Database) -> None:
    """Forget the vectors that a segment now has."""
    database.execute("DELETE FROM pending")


def read_dead(database: Database) -> Rows:
    """The rows of segments that are alive no more, in order."""
    return np.array([row for (row,) in database.execute("SELECT row FROM dead ORDER BY row")], np.int64)


def read_segments(database: Database) -> list[Record]:
    """The segments that count, in the order of their rows, checked."""
    records = []
    for first, name, rows, files, crc in database.execute("SELECT * FROM segments ORDER BY first"):
        if crc != _crc(first, name, rows, files):
            raise damaged(database.path, f"the record of segment {name!r:.40}")
        found = {path: FileRecord(*record) for path, record in json.loads(files).items()}
        records.append(Record(name, first, rows, found))
    return records


def insert_segments(database: Database, new: Iterable[Record]) -> None:
    """Make segments count, with the commit of this transaction."""
    for record in new:
        files = json.dumps({path: [file.size, file.sha256] for path, file in record.files.items()})
        known = (record.first, record.name, record.rows, files)
        database.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", (*known, _crc(*known)))


def remove_segments(database: Database, old: Iterable[Record], last: int) -> None:
    """Forget segments that follow each other up to the row ``last``, their guides and their tombstones."""
    listed = list(old)
    names = (_as_json([record.name for record in listed]),)
    database.execute(f"DELETE FROM guides WHERE segment {_AMONG}", names)
    database.execute(f"DELETE FROM segments WHERE name {_AMONG}", names)
    if listed:
        database.execute("DELETE FROM dead WHERE row BETWEEN ? AND ?", (listed[0].first, last))


def read_guides(database: Database) -> list[GuideRecord]:
    """The guides that count, checked."""
    found = []
    for *known, crc in database.execute("SELECT * FROM guides"):
        if crc != _crc(*known):
            raise damaged(database.path, f"the record of guide {known[0]!r:.40}")
        name, segment, kind, fields, header = known
        found.append(GuideRecord(name, segment, kind, json.loads(fields), header))
    return found


def insert_guide(database: Database, new: GuideRecord) -> None:
    """Make a guide count, with the commit of this transaction; it takes the place of one of its kind."""
    database.execute("DELETE FROM guides WHERE segment = ? AND kind = ?", (new.segment, new.kind))
    known = (new.name, new.segment, new.kind, json.dumps(new.fields), new.header)
    database.execute("INSERT INTO guides VALUES (?, ?, ?, ?, ?, ?)", (*known, _crc(*known)))


def read_wanted(database: Database) -> dict[str, Any]:
    """The guides that each segment is to have: by kind, what to build them with."""
    found: dict[str, Any] = _take(database, "guides")
    return found


def write_wanted(database: Database, wanted: Mapping[str, Any]) -> None:
    """Change that, with the commit of this transaction."""
    _put(database, "guides", wanted)


def _put(database: Database, key: str, value: Any) -> None:
    text = json.dumps(value)
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, text, _crc(key, text)))


def _take(database: Database, key: str) -> Any:
    found = database.execute("SELECT value, crc FROM meta WHERE key = ?", (key,)).fetchone()
    if found is None or found[1] != _crc(key, found[0]):
        raise damaged(database.path, f"the record {key!r}")
    return json.loads(found[0])


def _checked(database: Database, row: int, id: Id, payload: str | None, crc: int) -> Item:
    item = Item(row, id, payload)
    if crc != item.crc:
        raise damaged(database.path, f"row {row}, id {id!r:.60}")
    return item


def _as_json(values: Sequence[Id]) -> str:
    return json.dumps(values, ensure_ascii=False)


def _crc(*parts: object) -> int:
    return zlib.crc32(b"\0".join(part if isinstance(part, bytes) else str(part).encode() for part in parts))
