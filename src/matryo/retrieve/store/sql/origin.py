"""SQL statements about the origin of the vectors: their model and their sources, and a digest of the current state.

They are entries of `meta`: "model", and "source DIGEST" for each source. Indexes of earlier versions have none.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from matryo.retrieve.store.sql.records import put, take

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matryo.retrieve.store.sql.database import Database

_SOURCE = "source "


def read_model(database: Database) -> str | dict[str, Any]:
    """The model that made the vectors; "" if none is recorded."""
    model: str | dict[str, Any] = take(database, "model", default="")
    return model


def write_model(database: Database, model: str | Mapping[str, Any]) -> None:
    """Record the model that made the vectors, in this transaction."""
    put(database, "model", model)


def read_sources(database: Database) -> dict[str, dict[str, Any]]:
    """The recorded sources, by the digest of their content."""
    sql = "SELECT key FROM meta WHERE key GLOB ? ORDER BY key"
    keys = [key for (key,) in database.execute(sql, (f"{_SOURCE}*",)).fetchall()]
    return {key.removeprefix(_SOURCE): take(database, key) for key in keys}


def write_source(database: Database, digest: str, facts: Mapping[str, Any]) -> None:
    """Record a source by the digest of its content, in this transaction."""
    put(database, f"{_SOURCE}{digest}", facts)


def state_digest(database: Database) -> str:
    """A digest of the rows, the settings and the guides of the current commit."""
    digest = hashlib.sha256()
    for sql in (
        "SELECT key, crc FROM meta WHERE key IN ('about', 'state', 'guides', 'rotation') ORDER BY key",
        "SELECT first, name, crc FROM segments ORDER BY first",
        "SELECT name, crc FROM guides ORDER BY name",
        "SELECT row, crc FROM pending ORDER BY row",
    ):
        for record in database.execute(sql):
            digest.update(repr(record).encode())
    return digest.hexdigest()
