"""Plans on databases: load or find vectors there, measure plans there, and get the statement to paste.

An engine is one module with a subclass of :class:`Engine`, and its line in ``ENGINES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from matryo.engines.address import Address
from matryo.engines.engine import Engine, Prepared, Work
from matryo.errors import InputError

__all__ = ["ENGINES", "Engine", "Prepared", "Work", "installed", "open"]

ENGINES = {
    "postgresql": "matryo.engines.postgres.engine:Postgres",
    "postgres": "matryo.engines.postgres.engine:Postgres",
    "duckdb": "matryo.engines.duckdb:DuckDb",
    "chdb": "matryo.engines.clickhouse:ClickHouse",
    "qdrant-edge": "matryo.engines.qdrant:Qdrant",
}
"""The engines by the scheme of their URLs."""


def open(
    url: str, table: str | None = None, column: str | None = None, *, id: str | None = None,
    payload: str | None = None, schema: str | None = None, metric: str | None = None,
    dims: Sequence[int] | None = None,
) -> Engine:
    """Open a table (or collection) of a database as an engine; a table that does not exist yet can be loaded.

    ``table``, ``column`` (of the vectors), ``id``, ``payload``, ``schema`` and ``metric`` may also be in the query of
    the URL. By default, the column is the only one of vectors, and the id is the primary key. ``dims`` are the dims
    that plans may read: those that :meth:`Engine.load` recorded, or full dim halved down to 16.

    Credentials come from the URL or from the environment of the driver, and never appear in messages.
    """
    if not isinstance(url, str):
        raise InputError("an engine needs a URL", got=type(url).__name__, cure="for example postgresql://host/database")
    options = {"table": table, "column": column, "id": id, "payload": payload, "schema": schema, "metric": metric}
    address = Address.of(url, **options)
    if address.scheme not in ENGINES:
        raise InputError(f"the scheme of an engine must be one of {', '.join(ENGINES)}", got=address.scheme,
                         cure="for example postgresql://host/database?table=docs")
    module, _, name = ENGINES[address.scheme].partition(":")
    kind: Any = getattr(import_module(module), name)
    engine: Engine = kind._connected(address, dims)
    return engine


def installed() -> dict[str, str | None]:
    """The engines by name, each with how to install its driver; None if it is installed."""
    found = {}
    for scheme, place in ENGINES.items():
        kind: Any = getattr(import_module(place.partition(":")[0]), place.partition(":")[2])
        if scheme == kind.schemes[0]:
            missing = [name for name in kind.drivers if find_spec(name) is None]
            found[scheme] = f"pip install 'matryo[{kind.extra}]'" if missing else None
    return found
