"""HNSW indexes of a table: those that are there, what another one would cost, and making and dropping ours."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from matryo.engines.engine import Prepared, Work
from matryo.engines.postgres.formats import index_bytes, literal, quoted
from matryo.engines.postgres.table import MADE, Table
from matryo.errors import EngineError

if TYPE_CHECKING:
    from matryo.engines.postgres.session import Session

MOST_DIMS = 4000
"""pgvector's limit for halfvec."""
_TRIED = 2000   # rows of the index that is built to estimate the seconds of the real one
_SLOWER = 1.6   # a large build takes longer than n log n: its graph leaves the caches of the processor
_MEMORY = 64 << 20, 2 << 30   # bytes of maintenance_work_mem for a build: at least, at most


@dataclass(frozen=True)
class Indexed:
    """An HNSW index on the vectors, and the expression that it is on, with ``{}`` for a vector."""

    prepared: Prepared
    expression: str


def find_indexes(session: Session, table: Table) -> list[Indexed]:
    """The valid HNSW indexes for the metric of the table, those of fewer dims first."""
    rows = session.rows(
        "SELECT c.relname, pg_get_indexdef(i.indexrelid, 1, true), pg_relation_size(i.indexrelid), "
        "coalesce(obj_description(i.indexrelid, 'pg_class'), '') "
        "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam "
        "JOIN pg_opclass o ON o.oid = i.indclass[0] "
        "WHERE i.indrelid = to_regclass($1) AND m.amname = 'hnsw' AND i.indisvalid AND i.indpred IS NULL "
        "AND o.opcname LIKE $2", table.name, f"%\\_{table.metric}\\_ops"
    )
    column = re.escape(session.rows("SELECT quote_ident($1)", table.column)[0][0])
    found = [(_expression(text, column, table.width), name, size, comment) for name, text, size, comment in rows]
    indexes = [Indexed(Prepared(name, known[0], size, comment.startswith(MADE)), known[1])
               for known, name, size, comment in found if known is not None]
    return sorted(indexes, key=lambda index: (index.prepared.dim, index.prepared.bytes))


def _expression(text: str, column: str, full: int) -> tuple[int, str] | None:
    """The dim of an index on ``text``, and its expression; None for an index on something else."""
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    if re.fullmatch(column, text):
        return full, "{}"
    if match := re.fullmatch(rf"{column}::(vector|halfvec)\({full}\)", text):
        return full, f"{{}}::{match[1]}({full})"
    if match := re.fullmatch(rf"subvector\({column}, 1, (\d+)\)::(vector|halfvec)\(\1\)", text):
        return int(match[1]), f"subvector({{}}, 1, {match[1]})::{match[2]}({match[1]})"
    return None


def work_of(session: Session, table: Table, dim: int) -> Work:
    """The cost of an index of the first ``dim`` dims; the seconds are those of few rows, scaled by n log n."""
    return Work((_create(table, dim)[1],), index_bytes(table.count, dim, half=True), _tried(session, table, dim))


def create_index(session: Session, table: Table, dim: int) -> str:
    """Create the index of the first ``dim`` dims while writes go on, and return its name."""
    name, statement = _create(table, dim)
    place = _in_schema(session, table, name)
    # An interrupted CREATE INDEX CONCURRENTLY leaves an invalid index under our name.
    if session.rows("SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid", place):
        session.run(f"DROP INDEX {place}")
    memory = int(np.clip(1.5 * index_bytes(table.count, dim, half=True), *_MEMORY))
    session.set({"maintenance_work_mem": f"{memory >> 10}kB"})
    try:
        session.run(statement)
    finally:
        session.set({"maintenance_work_mem": None})
    session.run(f"COMMENT ON INDEX {place} IS {literal(f'{MADE}: the first {dim} dims of {table.column}')}")
    return name


def drop_indexes(session: Session, table: Table) -> list[str]:
    """Drop the indexes of the table that matryo made."""
    names = [index.prepared.name for index in find_indexes(session, table) if index.prepared.ours]
    for name in names:
        session.run(f"DROP INDEX {_in_schema(session, table, name)}")
    return names


def _create(table: Table, dim: int) -> tuple[str, str]:
    """The name of the index of the first ``dim`` dims, and the statement that creates it."""
    digest = sha256(f"{table.name}.{table.column}".encode()).hexdigest()[:8]
    name = f"matryo_{digest}_{dim}_{table.metric}"
    operators = f"halfvec_{table.metric}_ops"
    return name, (f"CREATE INDEX CONCURRENTLY {quoted(name)} ON {table.name} "
                  f"USING hnsw (({_cut(table, dim)}) {operators})")


def _cut(table: Table, dim: int) -> str:
    column = quoted(table.column)
    return f"{f'subvector({column}, 1, {dim})' if dim < table.width else column}::halfvec({dim})"


def _in_schema(session: Session, table: Table, name: str) -> str:
    """The qualified name of an index, which is in the schema of its table."""
    query = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass($1)"
    return f"{session.rows(query, table.name)[0][0]}.{quoted(name)}"


def _tried(session: Session, table: Table, dim: int) -> float:
    """The seconds of a build, from one of few rows in a temporary table that is dropped at once."""
    count, column = min(table.count, _TRIED), quoted(table.column)
    try:
        with session.errors(), session.connection.transaction():
            session.run(f"CREATE TEMP TABLE matryo_tried ON COMMIT DROP AS SELECT {column} FROM {table.name} "
                        f"WHERE {column} IS NOT NULL LIMIT {count}")
            start = time.perf_counter()
            session.run(f"CREATE INDEX ON matryo_tried USING hnsw (({_cut(table, dim)}) halfvec_{table.metric}_ops)")
            taken = time.perf_counter() - start
    except EngineError:   # no right to make temporary tables, or a server that only reads
        return float("nan")
    return float(_SLOWER * taken * table.count / count * np.log(max(table.count, 2)) / np.log(max(count, 2)))
