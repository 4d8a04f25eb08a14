"""The table of an engine: its columns, its primary key, its size, and the comment that says matryo made it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matryo.engines.engine import halving
from matryo.engines.postgres.formats import quoted
from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve.vectors.metric import METRICS, check_metric

if TYPE_CHECKING:
    from matryo.engines.address import Address
    from matryo.engines.postgres.session import Session

MADE = "made by matryo"
"""The start of the comment on everything that matryo makes."""


@dataclass(frozen=True)
class Table:
    """A table with a column of vectors."""

    name: str
    """Quoted, with its schema if one was given."""
    column: str
    kind: str
    """vector or halfvec."""
    width: int
    id: str
    text_ids: bool
    payload: str | None
    columns: Mapping[str, str]
    """The types of the other columns by name."""
    ours: bool
    count: int
    nesting: Nesting
    metric: str


def table_name(address: Address) -> str:
    """The quoted name of the table that ``address`` names."""
    schema, table = address.options.get("schema"), address.options["table"]
    return quoted(table) if schema is None else f"{quoted(schema)}.{quoted(table)}"


def read_table(session: Session, address: Address, dims: Sequence[int] | None) -> Table | None:
    """The table that ``address`` names; None if it does not exist."""
    name = table_name(address)
    columns = session.rows(
        "SELECT attname, format_type(atttypid, NULL), atttypmod FROM pg_attribute "
        "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum", name
    )
    if not columns:
        return None
    kinds = {column: kind for column, kind, _ in columns}
    column, kind, width = _vector_column(name, columns, address.options.get("column"))
    id = address.options.get("id") or _primary_key(session, name)
    if id not in kinds:
        raise _no_id(name, id)
    payload = address.options.get("payload", "payload")
    (comment,) = session.rows("SELECT obj_description(to_regclass($1), 'pg_class')", name)[0]
    ours = str(comment or "").startswith(MADE)
    about = json.loads(comment.partition(": ")[2]) if ours else {}
    count = int(session.rows(f"SELECT count({quoted(column)}) FROM {name}")[0][0])
    if width < 0 and count:
        some = f"SELECT vector_dims({quoted(column)}) FROM {name} WHERE {quoted(column)} IS NOT NULL LIMIT 1"
        width = int(session.rows(some)[0][0])
    if width < 0:
        raise InputError(f"the column {column} must have a length", got="vector", cure="declare it vector(512)")
    own_dims = dims or about.get("dims")
    nesting = Nesting(list(own_dims)) if own_dims else halving(width)
    nesting.check_fits(width)
    metric = address.options.get("metric") or about.get("metric") or _metric_of_indexes(session, name) or "cosine"
    check_metric(metric)
    return Table(
        name, column, kind, width, id, kinds[id] not in ("smallint", "integer", "bigint"),
        payload if kinds.get(payload) in ("json", "jsonb") else None,
        {other: kind for other, kind in kinds.items() if other != column}, ours, count, nesting, metric,
    )


def _vector_column(table: str, columns: Sequence[Any], asked: str | None) -> tuple[str, str, int]:
    vectors = [(name, kind.split(".")[-1], size) for name, kind, size in columns
               if kind.split(".")[-1] in ("vector", "halfvec")]
    chosen = [each for each in vectors if asked is None or each[0] == asked]
    if len(chosen) != 1:
        rule = f"the table {table} must have a column {asked or 'of vectors'} of type vector or halfvec"
        names = ", ".join(name for name, *_ in vectors) or "none"
        raise InputError(rule, got=names, cure="specify one of its columns: &column=NAME")
    return chosen[0]


def _primary_key(session: Session, table: str) -> str:
    keys = session.rows(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indrelid = to_regclass($1) AND i.indisprimary", table
    )
    if len(keys) != 1:
        raise _no_id(table, f"a primary key of {len(keys)} columns")
    return str(keys[0][0])


def _no_id(table: str, got: str) -> InputError:
    rule = f"the table {table} must have a unique column of ids"
    return InputError(rule, got=got, cure="specify it: &id=NAME")


def _metric_of_indexes(session: Session, table: str) -> str | None:
    """The metric that the user's own indexes are for, if there is only one."""
    found = session.rows("SELECT o.opcname FROM pg_index i JOIN pg_opclass o ON o.oid = i.indclass[0] "
                         "WHERE i.indrelid = to_regclass($1)", table)
    named = {match[1] for (name,) in found if (match := re.fullmatch(r"(?:vector|halfvec)_(\w+)_ops", name))}
    known = [metric for metric in METRICS if metric in named]
    return known[0] if len(known) == 1 else None
