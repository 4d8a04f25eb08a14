"""All SQL statements of a store: ids, payloads, recent vectors, tombstones, and the list of segments.

Row numbers are assigned in the order of insertion and never reused. ``items`` holds the live rows. The vector of a row
is in ``pending`` while it is recent, and later in a segment. ``dead`` lists the deleted rows of segments (tombstones).
SQLite has no checksums for data in its file, so each record has one. ``State`` has the number of items and the sum of
their checksums, which also detects items that disappear or come back.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings.manifest import FileRecord
from matryo.errors import IndexFolderError, UnknownId, shown
from matryo.retrieve.store.about import FORMAT, About
from matryo.retrieve.store.segments.pieces import Piece

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from matryo.retrieve.store.sql.database import Database
    from matryo.retrieve.vectors.types import Indices

    Id = int | str

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
_AMONG = "IN (SELECT value FROM json_each(?))"   # many values in one bound parameter
_TOGETHER = 10_000   # values per parameter, which must be shorter than a gigabyte


@dataclass(frozen=True)
class State:
    """The counters that each commit updates."""

    kind: str = ""
    """The type of the ids: "int" or "str", or "" until the first row is added."""
    next_id: int = 0
    next_row: int = 0
    count: int = 0
    total: int = 0
    """The sum of the checksums of all items."""


@dataclass(frozen=True)
class Item:
    """A live row."""

    row: int
    id: Id
    payload: str | None
    """JSON text; None for an empty object."""

    @cached_property
    def crc(self) -> int:
        """The checksum of row number, id and payload."""
        text = self.payload or ""
        return zlib.crc32(f"{self.row}\0{type(self.id).__name__}\0{self.id}\0{text}".encode())


@dataclass(frozen=True)
class Record:
    """A committed segment: its folder, first row number, row count and files."""

    name: str
    first: int
    rows: int
    files: Mapping[str, FileRecord]


@dataclass(frozen=True)
class GuideRecord:
    """A committed guide: its folder, its segment, its kind and the checksum of its header."""

    name: str
    segment: str
    kind: str
    fields: Mapping[str, Any]
    """The arguments that it was built with."""
    header: str


def create(database: Database, about: About) -> None:
    """Create the tables of an empty store, inside a transaction."""
    for statement in _SCHEMA:
        database.execute(statement)
    put(database, "about", about.to_json())
    write_state(database, State())
    write_wanted(database, {})


def exists(database: Database) -> bool:
    """Whether the tables exist; a creation that was killed leaves an empty file."""
    return database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone() is not None


def read_about(database: Database) -> About:
    """The settings of the store."""
    if not exists(database):
        raise IndexFolderError("the creation of this index did not finish", got=database.path, cure="create it again")
    data = take(database, "about")
    if data["format"] > FORMAT:
        raise IndexFolderError(
            f"{database.path} was written by a newer version of matryo",
            got=f"format {data['format']}, supported up to {FORMAT}",
            cure="pip install --upgrade matryo",
        )
    return About.from_json(data)


def read_state(database: Database) -> State:
    """The counters after the last commit."""
    return State(**take(database, "state"))


def write_state(database: Database, state: State) -> None:
    """Update the counters in this transaction."""
    put(database, "state", asdict(state))


def is_marked_open(database: Database) -> bool:
    """Whether a writer has opened the index and not closed it: its latest commits may be in the log only."""
    return bool(take(database, "open", default=False))   # indexes of earlier versions have no mark


def mark_open(database: Database, opened: bool) -> None:
    """Record, in this transaction, whether a writer has the index open."""
    put(database, "open", opened)


def find(database: Database, ids: Sequence[Id]) -> list[Item]:
    """The items of those ``ids`` that exist, with their checksums verified."""
    sql = f"SELECT row, id, payload, crc FROM items WHERE id {_AMONG}"
    wanted = {id: None for id in ids if isinstance(id, str) or -(2**63) <= id < 2**63}
    found = (row for part in _parts(list(wanted)) for row in database.execute(sql, (_as_json(part),)))
    return [_checked(database, *row) for row in found if row[1] in wanted]   # SQLite may cut a wanted id at NUL


def ids_from(database: Database, row: int) -> list[Id]:
    """The ids of the rows from this row number on."""
    return [id for (id,) in database.execute("SELECT id FROM items WHERE row >= ? ORDER BY row", (row,))]


def find_all(database: Database, ids: Sequence[Id]) -> list[Item]:
    """The items of ``ids``, all of which must exist."""
    found = find(database, ids)
    missing = set(ids) - {item.id for item in found}
    if missing:
        first = next(id for id in ids if id in missing)
        words = {"int": "use an integer, as all ids of this index", "str": "use a string, as all ids of this index"}
        kind = read_state(database).kind
        cure = "index.ids has all ids" if kind in ("", type(first).__name__) else words[kind]
        raise UnknownId("the index has no such id", got=shown(first), cure=cure)
    return found


def payloads(database: Database, rows: Sequence[int]) -> dict[int, str | None]:
    """The payload of each of these row numbers that is live, as JSON text, with the checksums verified."""
    found = {}
    for part in _parts(rows):
        sql = f"SELECT row, id, payload, crc FROM items WHERE row {_AMONG}"
        for record in database.execute(sql, (_as_json(part),)):
            found[record[0]] = _checked(database, *record).payload
    return found


def field_names(database: Database) -> list[str]:
    """The names of all fields of the payloads, in order of appearance."""
    sql = "SELECT DISTINCT key FROM items, json_each(payload) WHERE typeof(key) = 'text'"
    return [name for (name,) in database.execute(sql)]


def row_payloads(database: Database, first: int, last: int) -> sqlite3.Cursor:
    """Row number and payload of the live rows from ``first`` to ``last`` with a payload; no checksum is verified."""
    sql = "SELECT row, payload FROM items WHERE row BETWEEN ? AND ? AND payload IS NOT NULL ORDER BY row"
    return database.execute(sql, (first, last))


def row_ids(database: Database, first: int = 0, last: int = 2**63 - 1) -> Iterator[tuple[int, Id]]:
    """Row number and id of the live rows from ``first`` to ``last``, in order; no checksum is verified."""
    return database.execute("SELECT row, id FROM items WHERE row BETWEEN ? AND ? ORDER BY row", (first, last))


def items(database: Database) -> Iterator[Item]:
    """All live rows in order, with their checksums verified."""
    for row in database.execute("SELECT row, id, payload, crc FROM items ORDER BY row"):
        yield _checked(database, *row)


def insert(database: Database, new: Iterable[Item]) -> None:
    """Add live rows."""
    rows = ((item.row, item.id, item.payload, item.crc) for item in new)
    database.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)


def remove(database: Database, rows: Sequence[int]) -> None:
    """Remove rows; rows whose vectors are in segments get a tombstone."""
    for part in _parts(rows):
        numbers = (_as_json(part),)
        database.execute(f"DELETE FROM items WHERE row {_AMONG}", numbers)
        database.execute(
            "INSERT INTO dead SELECT value FROM json_each(?) WHERE value NOT IN (SELECT row FROM pending)", numbers
        )
        database.execute(f"DELETE FROM pending WHERE row {_AMONG}", numbers)


def read_pending(database: Database, about: About, after: int = -1) -> Piece:
    """The rows that are in no segment yet and have numbers above ``after``, with their checksums verified."""
    sql = "SELECT row, id, vector, pending.crc FROM pending LEFT JOIN items USING (row) WHERE row > ? ORDER BY row"
    found = database.execute(sql, (after,)).fetchall()
    for row, id, vector, crc in found:
        if crc != _crc(row, vector) or len(vector) != about.row_bytes or id is None:
            raise IndexFolderError.damaged(database.path, f"the vector of row {row}")
    vectors = np.frombuffer(b"".join(vector for _, _, vector, _ in found), about.dtype)
    rows = np.array([row for row, _, _, _ in found], np.int64)
    return Piece(vectors.reshape(-1, about.stored.dim), rows, [id for _, id, _, _ in found])


def insert_pending(database: Database, piece: Piece) -> None:
    """Store vectors that are too few for a segment."""
    pairs = zip(piece.rows.tolist(), map(bytes, piece.vectors), strict=True)
    database.executemany("INSERT INTO pending VALUES (?, ?, ?)", ((row, data, _crc(row, data)) for row, data in pairs))


def count_pending(database: Database) -> int:
    """The number of rows that are in no segment yet."""
    return int(database.execute("SELECT count(*) FROM pending").fetchone()[0])


def pending_rows(database: Database) -> Indices:
    """The numbers of the rows that are in no segment yet, in order."""
    return np.array([row for (row,) in database.execute("SELECT row FROM pending ORDER BY row")], np.int64)


def clear_pending(database: Database) -> None:
    """Remove all pending vectors; a segment holds them now."""
    database.execute("DELETE FROM pending")


def read_dead(database: Database) -> Indices:
    """The deleted rows of segments (tombstones), in order."""
    return np.array([row for (row,) in database.execute("SELECT row FROM dead ORDER BY row")], np.int64)


def count_dead(database: Database) -> int:
    """The number of tombstones."""
    return int(database.execute("SELECT count(*) FROM dead").fetchone()[0])


def find_dead(database: Database, rows: Sequence[int]) -> Indices:
    """Those of ``rows`` that are tombstones, in order."""
    found = (row for part in _parts(rows)
             for (row,) in database.execute(f"SELECT row FROM dead WHERE row {_AMONG}", (_as_json(part),)))  # fmt: skip
    return np.array(sorted(found), np.int64)


def insert_dead(database: Database, rows: Sequence[int]) -> None:
    """Add tombstones of rows that new segments hold, in this transaction."""
    for part in _parts(rows):
        database.execute("INSERT INTO dead SELECT value FROM json_each(?)", (_as_json(part),))


def read_segments(database: Database) -> list[Record]:
    """The committed segments in the order of their rows, with their checksums verified."""
    return [_segment(database.path, *values) for values in database.execute("SELECT * FROM segments ORDER BY first")]


@lru_cache(maxsize=1024, typed=True)   # they are read again after each commit
def _segment(path: Path, first: int, name: str, rows: int, files: str, crc: int) -> Record:
    if crc != _crc(first, name, rows, files):
        raise IndexFolderError.damaged(path, f"the record of segment {name!r:.40}")
    return Record(name, first, rows, {path: FileRecord(*record) for path, record in json.loads(files).items()})


def insert_segments(database: Database, new: Iterable[Record]) -> None:
    """Add segments to the list, in this transaction."""
    for record in new:
        files = json.dumps({path: [file.size, file.sha256] for path, file in record.files.items()})
        values = (record.first, record.name, record.rows, files)
        database.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", (*values, _crc(*values)))


def remove_segments(database: Database, old: Iterable[Record], last: int) -> None:
    """Remove consecutive segments up to row ``last`` from the list, with their guides and tombstones."""
    listed = list(old)
    names = (_as_json([record.name for record in listed]),)
    database.execute(f"DELETE FROM guides WHERE segment {_AMONG}", names)
    database.execute(f"DELETE FROM segments WHERE name {_AMONG}", names)
    if listed:
        database.execute("DELETE FROM dead WHERE row BETWEEN ? AND ?", (listed[0].first, last))


def read_guides(database: Database) -> list[GuideRecord]:
    """The committed guides, with their checksums verified."""
    return [_guide(database.path, *values) for values in database.execute("SELECT * FROM guides")]


@lru_cache(maxsize=1024, typed=True)
def _guide(path: Path, name: str, segment: str, kind: str, fields: str, header: str, crc: int) -> GuideRecord:
    if crc != _crc(name, segment, kind, fields, header):
        raise IndexFolderError.damaged(path, f"the record of guide {name!r:.40}")
    return GuideRecord(name, segment, kind, json.loads(fields), header)


def insert_guide(database: Database, new: GuideRecord) -> None:
    """Add a guide in this transaction; it replaces a guide of the same kind and segment."""
    database.execute("DELETE FROM guides WHERE segment = ? AND kind = ?", (new.segment, new.kind))
    values = (new.name, new.segment, new.kind, json.dumps(new.fields), new.header)
    database.execute("INSERT INTO guides VALUES (?, ?, ?, ?, ?, ?)", (*values, _crc(*values)))


def remove_guides(database: Database, old: Iterable[GuideRecord]) -> None:
    """Remove guides from the list, in this transaction."""
    names = [guide.name for guide in old]
    database.execute(f"DELETE FROM guides WHERE name {_AMONG}", (_as_json(names),))


def read_wanted(database: Database) -> dict[str, Any]:
    """The guides that each segment should have: the arguments to build them with, by kind."""
    wanted: dict[str, Any] = take(database, "guides")
    return wanted


def write_wanted(database: Database, wanted: Mapping[str, Any]) -> None:
    """Set the guides that each segment should have, in this transaction."""
    put(database, "guides", wanted)


def put(database: Database, key: str, value: Any) -> None:
    """Set an entry of `meta` to a JSON value, in this transaction."""
    text = json.dumps(value)
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, text, _crc(key, text)))


def take(database: Database, key: str, default: Any = None) -> Any:
    """The JSON value of an entry of `meta`, with its checksum verified; ``default``, unless None, if it is absent."""
    record = database.execute("SELECT value, crc FROM meta WHERE key = ?", (key,)).fetchone()
    if record is None and default is not None:
        return default
    if record is None or record[1] != _crc(key, record[0]):
        raise IndexFolderError.damaged(database.path, f"the record {key!r}")
    return json.loads(record[0])


def _checked(database: Database, row: int, id: Id, payload: str | None, crc: int) -> Item:
    item = Item(row, id, payload)
    if crc != item.crc:
        raise IndexFolderError.damaged(database.path, f"row {row}, id {id!r:.60}")
    return item


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + _TOGETHER] for start in range(0, len(values), _TOGETHER))


def _as_json(values: Sequence[Id]) -> str:
    return json.dumps(values, ensure_ascii=False)


def _crc(*parts: object) -> int:
    return zlib.crc32(b"\0".join(part if isinstance(part, bytes) else str(part).encode() for part in parts))
