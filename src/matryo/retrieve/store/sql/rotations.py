"""SQL statements about the rotation, or the code, of the stored vectors. One commit names it with its rows.

The entry "rotation" of `meta` has the name of the rotation and what was asked for; the table `rotations` has the map.
An index without one has neither, and remains readable for versions of matryo that know no rotations.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from matryo.errors import IndexFolderError
from matryo.retrieve.store.about import CODED, ROTATED, UNROTATED
from matryo.retrieve.store.rotating.coding import Coding
from matryo.retrieve.store.rotating.rotation import Rotation
from matryo.retrieve.store.sql.records import _crc, put, take

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matryo.retrieve.store.sql.database import Database

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS rotations "
    "(name TEXT PRIMARY KEY, about TEXT NOT NULL, tensors BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"
)


@dataclass(frozen=True)
class Wish:
    """The request of the caller: a rotation that the index fits, or not."""

    auto: bool = False
    """Whether the index fits its rotation by itself."""
    fitted: int = 0
    """The number of rows when it last did, or decided that none is better; 0 for never."""


def read_wish(database: Database) -> Wish:
    """The request of the caller."""
    entry = take(database, "rotation", default={})
    return Wish(bool(entry.get("auto", False)), int(entry.get("fitted", 0)))


def read(database: Database, known: Rotation | Coding | None = None) -> Rotation | Coding | None:
    """The rotation or the code of the stored vectors; ``known`` if it is still that one, which saves reading it."""
    name = take(database, "rotation", default={}).get("name")
    if name is None:
        return None
    if known is not None and known.name == name:
        return known
    found = database.execute("SELECT about, tensors, crc FROM rotations WHERE name = ?", (name,)).fetchone()
    if found is None or found[2] != _crc(name, found[0], found[1]):
        raise IndexFolderError.damaged(database.path, "the rotation of the vectors")
    try:
        return (Coding if Coding.wrote(found[0]) else Rotation).from_bytes(name, found[0], found[1])
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise IndexFolderError.damaged(database.path, f"the rotation of the vectors: {error}") from error


def write(database: Database, rotation: Rotation | Coding | None, wish: Wish) -> None:
    """Set the rotation of all stored vectors, and what was asked for, in this transaction."""
    name = None if rotation is None else rotation.name
    put(database, "rotation", {"name": name, **asdict(wish)})
    version = UNROTATED if rotation is None else CODED if isinstance(rotation, Coding) else ROTATED
    put(database, "about", take(database, "about") | {"format": version})
    database.execute(_SCHEMA)
    database.execute("DELETE FROM rotations")
    if rotation is not None:
        about, tensors = rotation.to_bytes()
        database.execute(
            "INSERT INTO rotations VALUES (?, ?, ?, ?)", (name, about, tensors, _crc(name, about, tensors))
        )


def read_recall(database: Database) -> dict[str, Any]:
    """The recall of the stored codes that was measured among all vectors; empty if it was not."""
    found: dict[str, Any] = take(database, "recall", default={})
    return found


def write_recall(database: Database, facts: Mapping[str, Any]) -> None:
    """Record the recall of the stored codes, in this transaction."""
    put(database, "recall", dict(facts))


def write_wish(database: Database, wish: Wish) -> None:
    """Set what was asked for, in this transaction; the rotation stays."""
    put(database, "rotation", take(database, "rotation", default={"name": None}) | asdict(wish))


__all__ = ["Wish", "read", "read_recall", "read_wish", "write", "write_recall", "write_wish"]
