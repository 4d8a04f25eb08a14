"""DuckDB with its extension vss: a column of first dims with an HNSW index, beside the column of vectors.

:meth:`DuckDb.prepare` adds the column ``matryo_first_64``; a load fills it. Under a filter, DuckDB would filter the few
rows that the index finds, so a filtered search is exact among the rows that match. DuckDB keeps such an index in
memory, and calls its storage in a file experimental: keep the vectors elsewhere too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from matryo.engines.duckdb_where import DuckDbWhere, binding, extension, inline, kind_of, literal, quoted
from matryo.engines.engine import Engine, Prepared, Work, halving, score_of
from matryo.engines.rows import check_loadable
from matryo.errors import EngineError, InputError, MissingExtra
from matryo.nesting import Nesting
from matryo.retrieve.plan.choice import as_plan
from matryo.retrieve.store.filters.language import Filter
from matryo.retrieve.vectors.metric import check_metric

if TYPE_CHECKING:
    from matryo.engines.address import Address
    from matryo.engines.duckdb_where import Bind
    from matryo.engines.rows import Rows
    from matryo.retrieve.hits import Hits
    from matryo.retrieve.plan.plan import Plan

_DISTANCES = {"cosine": "array_cosine_distance", "ip": "array_negative_inner_product", "l2": "array_distance"}
_INDEXES = {"cosine": "cosine", "ip": "ip", "l2": "l2sq"}
_FIRST = "matryo_first_"
_MADE = "made by matryo"
_TRIED = 2000   # rows of the index that is built to estimate the seconds of the real one
_PER_ROW = 700   # bytes of an index per row, besides its vector


class DuckDb(Engine):
    """A table of DuckDB with a column FLOAT[d]."""

    schemes: ClassVar[tuple[str, ...]] = ("duckdb",)
    extra, drivers = "duckdb", ("duckdb", "duckdb_extension_vss", "pyarrow")

    def __init__(self, address: Address, connection: Any, dims: Sequence[int] | None) -> None:
        self.address, self._connection, self._dims = address, connection, dims
        self._ef: int | None = None
        self._refresh()

    @classmethod
    def _connected(cls, address: Address, dims: Sequence[int] | None) -> Self:
        with MissingExtra.unless_installed("duckdb", "duckdb"):
            import duckdb
        if "table" not in address.options:
            raise InputError("a DuckDB engine needs the name of a table", got="none", cure="add ?table=docs to the URL")
        try:
            connection = duckdb.connect(address.path)
            connection.execute(f"LOAD {literal(extension())}")
        except duckdb.Error as error:
            raise EngineError(f"cannot open {address.safe}", got=error,
                              cure="close other writers; pip install 'matryo[duckdb]' brings the extension") from None
        for setting in ("hnsw_enable_experimental_persistence = true", "late_materialization_max_rows = 0"):
            connection.execute(f"SET {setting}")
        return cls(address, connection, dims)

    def another(self) -> Self:
        """Another cursor on the database; DuckDB has one process."""
        cursor = self._connection.cursor()
        cursor.execute("SET late_materialization_max_rows = 0")
        return type(self)(self.address, cursor, self._dims)

    def _refresh(self) -> None:
        self._name = self.address.options["table"]
        self._table = quoted(self._name)
        found = self._rows("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = $1 "
                           "AND schema_name = current_schema() ORDER BY column_index", self._name)
        self._kinds = dict(found)
        if not found:
            self.count, self.nesting, self.metric = 0, Nesting([1]), "cosine"
            return
        (comment,), *_ = self._rows("SELECT comment FROM duckdb_tables() WHERE table_name = $1", self._name)
        self._ours = str(comment or "").startswith(_MADE)
        about = json.loads(comment.partition(": ")[2]) if self._ours else {}
        options = self.address.options
        vectors = [name for name, kind in found if kind.startswith("FLOAT[") and kind != "FLOAT[]"
                   and not name.startswith(_FIRST) and name == options.get("column", name)]
        if len(vectors) != 1:
            raise InputError(f"the table {self._table} must have a column of type FLOAT[dims]",
                             got=", ".join(vectors) or "none", cure="specify one of its columns: &column=NAME")
        self._column = vectors[0]
        width = int(self._kinds[self._column][6:-1])
        keys = self._rows("SELECT constraint_column_names FROM duckdb_constraints() WHERE table_name = $1 "
                          "AND constraint_type = 'PRIMARY KEY'", self._name)
        self._id = options.get("id") or (keys[0][0][0] if len(keys) == 1 and len(keys[0][0]) == 1 else "")
        if self._id not in self._kinds:
            raise InputError(f"the table {self._table} must have a unique column of ids", got=self._id or "none",
                             cure="specify it: &id=NAME")
        self._text_ids = "INT" not in self._kinds[self._id]
        self._payload = next((name for name in [options.get("payload", "payload")] if self._kinds.get(name) == "JSON"),
                             None)
        dims = self._dims or about.get("dims")
        self.nesting = Nesting(list(dims)) if dims else halving(width)
        self.nesting.check_fits(width)
        metric = options.get("metric") or about.get("metric") or "cosine"
        check_metric(metric)
        self.metric = metric   # type: ignore[assignment]   # just checked
        self.count = int(self._rows(f"SELECT count({quoted(self._column)}) FROM {self._table}")[0][0])
        self._read_indexes()

    # ── indexes ───────────────────────────────────────────────────────────────────────────────────────────────

    def _read_indexes(self) -> None:
        rows = self._rows("SELECT h.index_name, h.approx_memory_usage, h.metric, i.comment, i.expressions "
                          "FROM pragma_hnsw_index_info() h JOIN duckdb_indexes() i USING (index_name) "
                          "WHERE h.table_name = $1", self._name)
        self._indexes = {}
        for name, size, metric, comment, expressions in rows:
            column = expressions.strip("[]").strip("'\"")
            dim = self.nesting.dim if column == self._column else None
            if column.startswith(_FIRST):
                dim = int(column.removeprefix(_FIRST))
            if metric == _INDEXES[self.metric] and dim is not None:
                self._indexes[dim] = Prepared(name, dim, size, str(comment or "").startswith(_MADE))

    def prepared(self) -> list[Prepared]:
        """The HNSW indexes for the metric."""
        return [self._indexes[dim] for dim in sorted(self._indexes)] if self._kinds else []

    def _missing(self, plan: Any) -> int | None:
        self._check_there()
        dim = plan if isinstance(plan, int) else as_plan(plan).stages[0].dim
        if dim not in self.nesting.dims:
            raise InputError("an index must be on dims of the nesting", got=dim,
                             cure=f"choose from {', '.join(map(str, self.nesting.dims))}, or open with dims=")
        return None if dim in self._indexes else dim

    def _statements(self, dim: int) -> list[str]:
        column, name = quoted(self._column), f"matryo_{self._name}_{dim}_{self.metric}"
        build = f"WITH (metric = '{_INDEXES[self.metric]}')"
        if dim == self.nesting.dim:
            return [f"CREATE INDEX {quoted(name)} ON {self._table} USING HNSW ({column}) {build}"]
        first = f"{_FIRST}{dim}"
        add = [] if first in self._kinds else [
            f"ALTER TABLE {self._table} ADD COLUMN {first} FLOAT[{dim}]",
            f"UPDATE {self._table} SET {first} = {column}[1:{dim}]::FLOAT[{dim}]",
        ]
        return [*add, f"CREATE INDEX {quoted(name)} ON {self._table} USING HNSW ({first}) {build}"]

    def work(self, plan: Any) -> Work:
        """The cost of :meth:`prepare`; the seconds come from an index of 2,000 rows in a temporary table."""
        dim = self._missing(plan)
        if dim is None:
            return Work((), 0, 0.0)
        count = min(self.count, _TRIED)
        self._run(f"CREATE OR REPLACE TEMP TABLE matryo_tried AS SELECT {quoted(self._column)}[1:{dim}]::FLOAT[{dim}] "
                  f"AS first FROM {self._table} LIMIT {count}")
        start = time.perf_counter()
        self._run("CREATE INDEX matryo_tried_index ON matryo_tried USING HNSW (first)")
        taken = time.perf_counter() - start
        self._run("DROP TABLE matryo_tried")
        seconds = taken * self.count / count * np.log(max(self.count, 2)) / np.log(max(count, 2))
        return Work(tuple(self._statements(dim)), self.count * (8 * dim + _PER_ROW), float(seconds))

    def prepare(self, plan: Any) -> list[str]:
        """Add the column of first dims and its HNSW index."""
        dim = self._missing(plan)
        if dim is None:
            return []
        statements = self._statements(dim)
        for statement in statements:
            self._run(statement)
        name = f"matryo_{self._name}_{dim}_{self.metric}"
        self._run(f"COMMENT ON INDEX {quoted(name)} IS {literal(_MADE)}")
        self._refresh()
        return [name]

    def drop(self, *, table: bool = False) -> list[str]:
        """Drop the indexes that matryo made and their columns, with ``table`` also a table that matryo made."""
        if not self._kinds:
            raise InputError(f"the table {self._table} does not exist", got=self.address.safe, cure="load vectors")
        if table and not self._ours:
            raise InputError(f"the table {self._table} was not made by matryo", got="drop(table=True)",
                             cure="drop it yourself if you mean it")
        names = [index.name for index in self.prepared() if index.ours]
        for name in names:
            self._run(f"DROP INDEX {quoted(name)}")
        if table:
            self._run(f"DROP TABLE {self._table}")
            names.append(self._name)
        else:
            for column in [name for name in self._kinds if name.startswith(_FIRST)]:
                self._run(f"ALTER TABLE {self._table} DROP COLUMN {quoted(column)}")
        self._refresh()
        return names

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────

    def _search(self, queries: Any, k: int, plan: Plan | None, where: Filter | None) -> Hits:
        values: list[Any] = []
        text = self._statement(k, None if where is not None else plan, where, binding(values))
        if plan is not None and plan.ef is not None and plan.ef != self._ef:
            self._run(f"SET hnsw_ef_search = {plan.ef}")
            self._ef = plan.ef
        found = [self._rows(text, query.tolist(), *values) for query in queries]
        return self._hits([[(id, score_of(self.metric, distance)) for id, distance in rows if distance is not None]
                           for rows in found], k)

    def _statement(self, k: int, plan: Plan | None, where: Filter | None, bind: Bind) -> str:
        """The statement of a search, in which ``$1`` is the query."""
        id, column = quoted(self._id), quoted(self._column)
        source = self._table + ("" if where is None else f" WHERE {self._where(where, bind)}")
        stages = () if plan is None else plan.stages
        uses_index = plan is not None and plan.ef is not None
        scanned = " + 0"   # or an index would answer, and a filter would drop most of its few rows
        parts = []
        for number, stage in enumerate(stages[:-1], start=1):
            name = f"shortlist{number if len(stages) > 2 else ''}"
            column_of = self._first(stage.dim) if number == 1 else self._cut(stage.dim)
            parts.append(f"{name} AS MATERIALIZED (\n  SELECT {id}, {column} FROM {source}\n"
                         f"  ORDER BY {self._distance(column_of, stage.dim)}{'' if uses_index else scanned}\n"
                         f"  LIMIT {stage.keep})")
            source = name
        last = stages[-1].dim if stages else self.nesting.dim
        read = self._first(last) if len(stages) == 1 else self._cut(last)
        head = f"WITH {', '.join(parts)}\n" if parts else ""
        return (f"{head}SELECT {id} AS id, {self._distance(read, last)} AS distance FROM {source}\n"
                f"ORDER BY distance{'' if parts or uses_index else scanned} LIMIT {k}")

    def _first(self, dim: int) -> str:
        """The column of first dims, or the first dims of the column of vectors."""
        return f"{_FIRST}{dim}" if f"{_FIRST}{dim}" in self._kinds else self._cut(dim)

    def _cut(self, dim: int) -> str:
        column = quoted(self._column)
        return column if dim == self.nesting.dim else f"{column}[1:{dim}]::FLOAT[{dim}]"

    def _distance(self, column: str, dim: int) -> str:
        full = self.nesting.dim
        query = f"$1::FLOAT[{full}]" if dim == full else f"($1::FLOAT[{full}])[1:{dim}]::FLOAT[{dim}]"
        return f"{_DISTANCES[self.metric]}({column}, {query})"

    def _where(self, where: Filter, bind: Bind) -> str:
        kinds = {name: kind_of(kind) for name, kind in self._kinds.items()
                 if name != self._column and not name.startswith(_FIRST)}
        return DuckDbWhere(bind, kinds, self._payload, self._table).write(where.condition)

    def explain(self, plan: Any = None, k: int = 10, where: Mapping[str, Any] | None = None) -> str:
        """The settings and the statement of a search, to paste; ``$1`` is the query as a list of numbers."""
        self._check_there()
        chosen, filter = None if plan is None else self._as_plan(plan, k), None if where is None else Filter.of(where)
        settings = ["LOAD vss;", "SET late_materialization_max_rows = 0;"]
        if chosen is not None and filter is None and chosen.ef is not None:
            settings.append(f"SET hnsw_ef_search = {chosen.ef};")
        if filter is not None and chosen is not None:
            settings.append("-- no index under a filter: this is exact among the matching rows")
        text = self._statement(k, None if filter is not None else chosen, filter, inline)
        return "\n".join([*settings, f"-- $1: the query, a list of {self.nesting.dim} numbers", f"{text};"])

    def _stream(self, where: Filter | None) -> Iterator[tuple[Any, Any]]:
        condition = "" if where is None else f" AND {self._where(where, inline)}"
        yield from self._read(f"FROM {self._table} WHERE {quoted(self._column)} IS NOT NULL{condition}")

    def sample(self, count: int, seed: int) -> tuple[Any, Any]:
        """Ids and vectors of ``count`` random rows."""
        order = f"md5(concat({quoted(self._id)}, '/{seed}'))"
        where = f"WHERE {quoted(self._column)} IS NOT NULL"
        parts = list(self._read(f"FROM {self._table} {where} ORDER BY {order} LIMIT {count}"))
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([vectors for _, vectors in parts])

    def _read(self, source: str) -> Iterator[tuple[Any, Any]]:
        id = f"{quoted(self._id)}::{'VARCHAR' if self._text_ids else 'BIGINT'}"
        with self._errors():
            cursor = self._connection.cursor()
            cursor.execute(f"SELECT {id} AS id, {quoted(self._column)} AS vector {source}")
            for batch in cursor.to_arrow_reader(8192):
                vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
                ids = batch.column("id").to_numpy(zero_copy_only=False)
                yield ids, np.asarray(vectors, np.float32).reshape(len(ids), -1)

    # ── loading ───────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, dim: int, text_ids: bool, nesting: Nesting, into_existing: bool) -> None:
        options = self.address.options
        if self._kinds:
            fits = dim == self.nesting.dim and text_ids == self._text_ids
            check_loadable(self._table, dim, text_ids, fits=fits, allowed=self._ours or into_existing)
            return
        metric = options.get("metric", "cosine")
        check_metric(metric)
        about = json.dumps({"dims": nesting.dims, "metric": metric})
        columns = (f"{quoted(options.get('id', 'id'))} {'VARCHAR' if text_ids else 'BIGINT'} PRIMARY KEY, "
                   f"{quoted(options.get('column', 'embedding'))} FLOAT[{dim}] NOT NULL, "
                   f"{quoted(options.get('payload', 'payload'))} JSON")
        self._run(f"CREATE TABLE {self._table} ({columns})")
        self._run(f"COMMENT ON TABLE {self._table} IS {literal(f'{_MADE}: {about}')}")
        self._refresh()

    def _write(self, rows: Rows, overwrite: bool) -> int:
        import pyarrow

        if self._payload is None and any(text is not None for text in rows.payload):
            raise InputError(f"the table {self._table} has no JSON column for payloads", got="payloads",
                             cure="add one named payload, or load the vectors alone")
        dim = rows.vectors.shape[1]
        vectors = pyarrow.FixedSizeListArray.from_arrays(rows.vectors.ravel(), dim)
        batch = pyarrow.table({"id": rows.ids, "vector": vectors, "payload": pyarrow.array(rows.payload, "string")})
        firsts = [name for name in self._kinds if name.startswith(_FIRST)]
        names = [self._id, self._column, *([self._payload] if self._payload else []), *firsts]
        read = ["id", "vector", *(["payload"] if self._payload else [])]
        read += [f"vector[1:{name.removeprefix(_FIRST)}]::{self._kinds[name]}" for name in firsts]
        self._connection.register("matryo_batch", batch)
        key = quoted(self._id)
        with self._errors():
            self._connection.execute("BEGIN")
            try:
                if overwrite:
                    self._run(f"DELETE FROM {self._table} WHERE {key} IN (SELECT id FROM matryo_batch)")
                new = f"WHERE id NOT IN (SELECT {key} FROM {self._table})"
                count = self._rows(f"SELECT count(*) FROM matryo_batch {new}")[0][0]
                self._run(f"INSERT INTO {self._table} ({', '.join(map(quoted, names))}) "
                          f"SELECT {', '.join(read)} FROM matryo_batch {new}")
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            finally:
                self._connection.unregister("matryo_batch")
        return int(count)

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        with self._errors():
            return list(self._connection.execute(statement, list(values) or None).fetchall())

    def _run(self, statement: str) -> None:
        with self._errors():
            self._connection.execute(statement)

    def _errors(self) -> _Errors:
        return _Errors(self.address)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Errors:
    """Errors of DuckDB as one line."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: object) -> None:
        import duckdb

        if isinstance(error, duckdb.Error):
            rule = f"DuckDB refused a statement at {self.address.safe}"
            raise EngineError(rule, got=error, cure="see its message") from None
