"""A connection to PostgreSQL whose errors never show credentials, and which sends queries as binary vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from matryo.engines.postgres.formats import END, HEADER, literal, parsed
from matryo.errors import EngineError, MissingExtra

if TYPE_CHECKING:
    from matryo.engines.address import Address


class Vector(bytes):
    """A query in the binary form of pgvector."""


class Session:
    """One connection, in autocommit mode; statements have parameters ``$1``, ``$2``, …"""

    def __init__(self, address: Address) -> None:
        with MissingExtra.unless_installed("psycopg", "postgres"):
            import psycopg
        self.address, self._settings = address, dict[str, str | None]()
        try:
            self.connection: Any = psycopg.connect(
                address.url, autocommit=True, application_name="matryo", cursor_factory=psycopg.RawCursor
            )
        except psycopg.Error as error:
            raise EngineError(f"cannot connect to {address.safe}", got=address.redacted(error),
                              cure="check host, database and credentials (PGPASSWORD, ~/.pgpass)") from None
        self._register_vectors()

    def _register_vectors(self) -> None:
        """Send :class:`Vector` in binary: as text it would take longer than the search."""
        from psycopg.adapt import Dumper
        from psycopg.pq import Format

        (number,) = self.rows("SELECT to_regtype('vector')::oid")[0]
        if number is None:
            self.close()
            raise EngineError("this database does not have pgvector", got=self.address.safe,
                              cure="run CREATE EXTENSION vector as its owner, or add its schema to search_path")

        class VectorDumper(Dumper):   # type: ignore[misc, unused-ignore]
            oid, format = int(number), Format.BINARY

            def dump(self, obj: Any) -> Any:
                return bytes(obj)

        self.connection.adapters.register_dumper(Vector, VectorDumper)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a query."""
        with self.errors():
            return list(self.connection.execute(statement, values or None).fetchall())

    def run(self, statement: str, *values: Any) -> None:
        """Run a statement that returns nothing."""
        with self.errors():
            self.connection.execute(statement, values or None)

    def set(self, settings: Mapping[str, str | None]) -> None:
        """Change the settings of the session that differ; None is the default of the server."""
        for name, value in settings.items():
            if self._settings.get(name) != value:
                self.run(f"RESET {name}" if value is None else f"SET {name} = {literal(value)}")
                self._settings[name] = value

    def copy_in(self, target: str, data: bytes) -> None:
        """Write rows in binary to a table."""
        statement = f"COPY {target} FROM STDIN (FORMAT BINARY)"
        with self.errors(), self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(HEADER + data + END)

    def copy_out(self, query: str, dim: int, text_ids: bool) -> Iterator[tuple[Any, Any]]:
        """Ids and vectors of a query, in batches."""
        statement = f"COPY ({query}) TO STDOUT (FORMAT BINARY)"
        with self.errors(), self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            yield from parsed(map(bytes, copy), dim, text_ids)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the driver become one line without credentials."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            rule = f"PostgreSQL refused a statement at {self.address.safe}"
            raise EngineError(rule, got=self.address.redacted(error), cure="see the server's message") from None

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
