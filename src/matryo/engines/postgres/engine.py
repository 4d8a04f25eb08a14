"""PostgreSQL with pgvector: an HNSW index on the first dims finds a shortlist that the same statement re-ranks.

The index is on an expression, ``subvector(embedding, 1, 64)::halfvec(64)``, so the table and its rows stay as they are.
An existing table is only read; :meth:`Postgres.prepare` creates indexes CONCURRENTLY, :meth:`Postgres.drop` drops them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from matryo.engines.engine import Engine, Prepared, Work, score_of
from matryo.engines.postgres.formats import binary, copied, literal, quoted
from matryo.engines.postgres.indexes import MOST_DIMS, Indexed, create_index, drop_indexes, find_indexes, work_of
from matryo.engines.postgres.session import Session, Vector
from matryo.engines.postgres.table import MADE, Table, read_table, table_name
from matryo.engines.postgres.where import PostgresWhere
from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.retrieve.plan.choice import as_plan
from matryo.retrieve.store.filters.language import Filter
from matryo.retrieve.vectors.metric import check_metric

if TYPE_CHECKING:
    from matryo.engines.address import Address
    from matryo.engines.rows import Rows
    from matryo.retrieve.hits import Hits
    from matryo.retrieve.plan.plan import Plan

    Bind = Callable[[Any, str], str]

_OPERATORS = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}
_KEYS = {"smallint": ">h", "integer": ">i"}   # binary forms of ids
_FEW = 2000   # matching rows that are scored one by one: cheaper than a walk that a filter stops at every step
_MOST_EF = 1000   # pgvector's limit; further rows come from an iterative scan
_LARGE = 200_000   # rows above which a sample is not drawn from all of them


@dataclass(frozen=True)
class _Statement:
    """One search: the statement, its parameters after the query, and the settings of the session."""

    text: str
    values: tuple[Any, ...]
    settings: dict[str, str | None]


class Postgres(Engine):
    """A table of PostgreSQL with a column of pgvector's type vector or halfvec."""

    schemes: ClassVar[tuple[str, ...]] = ("postgresql", "postgres")
    extra, drivers = "postgres", ("psycopg",)

    def __init__(self, address: Address, session: Session, dims: Sequence[int] | None) -> None:
        self.address, self._session, self._dims = address, session, dims
        self._refresh()

    @classmethod
    def _connected(cls, address: Address, dims: Sequence[int] | None) -> Self:
        if "table" not in address.options:
            cure = "add it to the URL: ?table=docs&column=embedding"
            raise InputError("a PostgreSQL engine needs the name of a table", got="none", cure=cure)
        session = Session(address)
        try:
            return cls(address, session, dims)
        except BaseException:
            session.close()
            raise

    def _refresh(self) -> None:
        self._found = read_table(self._session, self.address, self._dims)
        self._forget()
        if self._found is None:
            self.count, self.nesting, self.metric = 0, Nesting([1]), "cosine"
        else:
            self.count, self.nesting = self._found.count, self._found.nesting
            self.metric = self._found.metric   # type: ignore[assignment]   # read_table checked it
            self.dtype = "float16" if self._found.kind == "halfvec" else "float32"

    def _forget(self) -> None:
        self._indexes: list[Indexed] | None = None
        self._statements: dict[Any, _Statement] = {}

    @property
    def _table(self) -> Table:
        if self._found is None:
            raise InputError(f"the table {table_name(self.address)} does not exist", got=self.address.safe,
                             cure="load vectors into it: engine.load(…)")
        return self._found

    # ── indexes ───────────────────────────────────────────────────────────────────────────────────────────────

    def _indexed(self) -> list[Indexed]:
        if self._indexes is None:
            self._indexes = find_indexes(self._session, self._table)
        return self._indexes

    def prepared(self) -> list[Prepared]:
        """The HNSW indexes for the metric, also the user's own."""
        return [] if self._found is None else [index.prepared for index in self._indexed()]

    def work(self, plan: Any) -> Work:
        """The cost of :meth:`prepare`; the seconds come from building an index of 2,000 rows in a temporary table."""
        dim = self._missing(plan)
        return Work((), 0, 0.0) if dim is None else work_of(self._session, self._table, dim)

    def prepare(self, plan: Any) -> list[str]:
        """Create the HNSW index on the first dims of ``plan`` (or of a dim) CONCURRENTLY: writes are not blocked."""
        dim = self._missing(plan)
        if dim is None:
            return []
        try:
            return [create_index(self._session, self._table, dim)]
        finally:
            self._forget()

    def _missing(self, plan: Any) -> int | None:
        """The first dim of ``plan`` if no index serves it."""
        self._check_there()
        first = None if isinstance(plan, int) else as_plan(plan)
        dim: int = plan if first is None else first.stages[0].dim
        if dim not in self.nesting.dims:
            raise InputError("an index must be on dims of the nesting", got=dim,
                             cure=f"choose from {', '.join(map(str, self.nesting.dims))}, or open with dims=")
        if dim > MOST_DIMS:
            raise InputError(f"pgvector indexes at most {MOST_DIMS:,} dims", got=dim, cure="prepare fewer dims")
        is_wanted = first is None or first.ef is not None
        return dim if is_wanted and dim not in {index.dim for index in self.prepared()} else None

    def drop(self, *, table: bool = False) -> list[str]:
        """Drop the indexes that matryo made, with ``table`` also the table if matryo made it."""
        names = drop_indexes(self._session, self._table)
        self._forget()
        if table:
            if not self._table.ours:
                raise InputError(f"the table {self._table.name} was not made by matryo", got="drop(table=True)",
                                 cure="drop it yourself if you mean it")
            self._session.run(f"DROP TABLE {self._table.name}")
            self._refresh()
            names.append(self.address.options["table"])
        return names

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────

    def _search(self, queries: Any, k: int, plan: Plan | None, where: Filter | None) -> Hits:
        statement = self._statements.get((k, plan, where))
        if statement is None:
            # Scoring few matching rows one by one is exact, and faster than a walk.
            is_exact = plan is None or (where is not None and self._few_match(where))
            values: list[Any] = []
            statement = self._statement(k, None if is_exact else plan, where, _binding(values), values)
            self._statements[k, plan, where] = statement
        self._session.set(statement.settings)
        return self._hits([self._scored(statement, query) for query in queries], k)

    def _scored(self, statement: _Statement, query: Any) -> list[tuple[Any, float]]:
        rows = self._session.rows(statement.text, Vector(binary(query)), *statement.values)
        return [(id, score_of(self.metric, distance)) for id, distance in rows if distance is not None]

    def _statement(
        self, k: int, plan: Plan | None, where: Filter | None, bind: Bind, values: Sequence[Any]
    ) -> _Statement:
        """The statement of a search, in which ``$1`` is the query; ``bind`` may add to ``values``."""
        table, column = self._table, quoted(self._table.column)
        source = table.name + ("" if where is None else f" WHERE {self._where(where, bind)}")
        stages = () if plan is None else plan.stages
        settings: dict[str, str | None] = {"enable_indexscan": "off"}   # or an index would answer exact search
        index = None
        if plan is not None and plan.ef is not None:
            index = next(index for index in self._indexed() if index.prepared.dim == stages[0].dim)
            more = where is not None or stages[0].keep > min(plan.ef, _MOST_EF)
            order = "strict_order" if len(stages) == 1 else "relaxed_order"   # a later stage sorts again
            settings = {"enable_indexscan": None, "hnsw.ef_search": str(min(plan.ef, _MOST_EF)),
                        "hnsw.iterative_scan": order if more else None}
        parts = []
        for number, stage in enumerate(stages[:-1], start=1):
            name = f"shortlist{number if len(stages) > 2 else ''}"
            parts.append(f"{name} AS MATERIALIZED (\n  SELECT {quoted(table.id)}, {column} FROM {source}\n"
                         f"  ORDER BY {self._distance(stage.dim, index)}\n  LIMIT {stage.keep})")
            source, index = name, None
        last = stages[-1].dim if stages else table.width
        head = f"WITH {', '.join(parts)}\n" if parts else ""
        id = quoted(table.id) + ("::text" if table.text_ids else "")
        text = f"{head}SELECT {id} AS id, {self._distance(last, index)} AS distance FROM {source}\n"
        return _Statement(f"{text}ORDER BY distance LIMIT {k}", tuple(values), settings)

    def _distance(self, dim: int, index: Indexed | None) -> str:
        """The distance of the first ``dim`` dims to the query, as the expression of ``index`` if it serves."""
        width = self._table.width
        query = f"$1::vector({width})" + (f"::halfvec({width})" if self._table.kind == "halfvec" else "")
        plain = "{}" if dim == width else f"subvector({{}}, 1, {dim})"
        expression = plain if index is None else index.expression
        return f"{expression.format(quoted(self._table.column))} {_OPERATORS[self.metric]} {expression.format(query)}"

    def _where(self, where: Filter, bind: Bind) -> str:
        return PostgresWhere(bind, self._table).write(where.condition)

    def _few_match(self, where: Filter) -> bool:
        values: list[Any] = []
        limited = f"SELECT 1 FROM {self._table.name} WHERE {self._where(where, _binding(values, first=1))}"
        count = self._session.rows(f"SELECT count(*) FROM ({limited} LIMIT {_FEW + 1}) AS matching", *values)[0][0]
        return bool(count <= _FEW)

    def explain(self, plan: Any = None, k: int = 10, where: Mapping[str, Any] | None = None) -> str:
        """The settings and the statement of a search, to paste; ``$1`` is the query as a vector."""
        self._check_there()
        chosen = None if plan is None else self._as_plan(plan, k)
        filter, note = None if where is None else Filter.of(where), ""
        if filter is not None and chosen is not None and self._few_match(filter):
            chosen, note = None, f"-- at most {_FEW:,} rows match now, so an exact search among them is faster\n"
        statement = self._statement(k, chosen, filter, _inline, [])
        settings = [f"SET {name} = {value};" for name, value in statement.settings.items() if value is not None]
        query = f"-- $1: the query, a vector({self._table.width})"
        return note + "\n".join([*settings, query, f"{statement.text};"])

    def _stream(self, where: Filter | None) -> Iterator[tuple[Any, Any]]:
        condition = "" if where is None else f" AND {self._where(where, _inline)}"
        yield from self._copied(self._table.name, condition)

    def sample(self, count: int, seed: int) -> tuple[Any, Any]:
        """Ids and vectors of ``count`` random rows."""
        part = ""
        if self.count > _LARGE:
            part = f" TABLESAMPLE BERNOULLI ({min(100.0, 400 * count / self.count):.6f}) REPEATABLE ({seed})"
        order = f"md5({quoted(self._table.id)}::text || {literal(f'/{seed}')})"
        parts = list(self._copied(self._table.name + part, f" ORDER BY {order} LIMIT {count}"))
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([vectors for _, vectors in parts])

    def _copied(self, source: str, rest: str) -> Iterator[tuple[Any, Any]]:
        table, column = self._table, quoted(self._table.column)
        id = f"{quoted(table.id)}::{'text' if table.text_ids else 'bigint'}"
        query = f"SELECT {id}, {column}::vector FROM {source} WHERE {column} IS NOT NULL{rest}"
        yield from self._session.copy_out(query, table.width, table.text_ids)

    # ── loading ───────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, dim: int, text_ids: bool, nesting: Nesting, into_existing: bool) -> None:
        if self._found is not None:
            if not self._found.ours and not into_existing:
                raise InputError(f"the table {self._found.name} exists, and matryo did not make it", got="load",
                                 cure="choose another table, or pass into_existing=True (--into-existing)")
            if self._found.kind != "vector":
                raise InputError("rows can be loaded into a column of type vector", got=self._found.kind,
                                 cure="choose another table")
            if dim != self._found.width or text_ids != self._found.text_ids:
                got = f"{dim} dims, {'text' if text_ids else 'integer'} ids"
                rule = f"rows must have the dims and the kind of ids of {self._found.name}"
                raise InputError(rule, got=got, cure="choose another table")
            return
        if dim > 16_000:
            raise InputError("pgvector stores at most 16,000 dims", got=dim, cure="truncate the vectors")
        options, name = self.address.options, table_name(self.address)
        check_metric(options.get("metric", "cosine"))
        about = json.dumps({"dims": nesting.dims, "metric": options.get("metric", "cosine")})
        columns = (f"{quoted(options.get('id', 'id'))} {'text' if text_ids else 'bigint'} PRIMARY KEY, "
                   f"{quoted(options.get('column', 'embedding'))} vector({dim}) NOT NULL, "
                   f"{quoted(options.get('payload', 'payload'))} jsonb")
        with self._session.errors(), self._session.connection.transaction():
            self._session.run(f"CREATE TABLE {name} ({columns})")
            self._session.run(f"COMMENT ON TABLE {name} IS {literal(f'{MADE}: {about}')}")
        self._refresh()

    def _write(self, rows: Rows, overwrite: bool) -> int:
        table, kind = self._table, "text" if self._table.text_ids else "bigint"
        if any(text is not None and "\\u0000" in text for text in rows.payload):
            raise InputError("PostgreSQL stores no NUL character in a payload", got="\\u0000", cure="remove it")
        if table.payload is None and any(text is not None for text in rows.payload):
            raise InputError(f"the table {table.name} has no jsonb column for payloads", got="payloads",
                             cure="add one named payload, or load the vectors alone")
        names = [quoted(name) for name in (table.id, table.column, table.payload) if name is not None]
        own = f"{quoted(table.id)} = ANY($1::{kind}[])"
        with self._session.errors(), self._session.connection.transaction():
            there: set[Any] = set()
            if overwrite:
                self._session.run(f"DELETE FROM {table.name} WHERE {own}", rows.ids)
            else:
                query = f"SELECT {names[0]}::{kind} FROM {table.name} WHERE {own}"
                there = {known for (known,) in self._session.rows(query, rows.ids)}
            new = [number for number, name in enumerate(rows.ids) if name not in there]
            if new:
                payload = None if table.payload is None else [rows.payload[number] for number in new]
                ids, key = [rows.ids[number] for number in new], _KEYS.get(table.columns[table.id], ">q")
                data = copied(ids, rows.vectors[new], payload, key)
                self._session.copy_in(f"{table.name} ({', '.join(names)})", data)
        return len(new)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


def _binding(values: list[Any], first: int = 2) -> Bind:
    """A function that adds a parameter to ``values`` and returns its place; ``$1`` is the query."""

    def bind(value: Any, kind: str) -> str:
        values.append(value)
        return f"${first + len(values) - 1}::{kind}"

    return bind


def _inline(value: Any, kind: str) -> str:
    """A value as a literal."""
    return f"{literal(value)}::{kind}"
