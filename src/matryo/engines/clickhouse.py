"""ClickHouse, in this process (chdb): a column of first dims is scanned; a small granularity makes re-ranking cheap.

:meth:`ClickHouse.prepare` adds the materialised column ``matryo_first_64``, which later inserts fill by themselves. A
table that matryo makes has an index granularity of 64 rows, so that re-ranking 100 rows reads 100 small pieces of the
vectors. The statements run on any ClickHouse server.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from matryo.engines.clickhouse_where import ClickHouseWhere, kind_of, literal, quoted
from matryo.engines.engine import Engine, Prepared, Work, halving, score_of
from matryo.engines.rows import check_loadable
from matryo.errors import EngineError, InputError, MissingExtra
from matryo.nesting import Nesting
from matryo.retrieve.plan.choice import as_plan
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.store.filters.language import Filter
from matryo.retrieve.vectors.metric import check_metric

if TYPE_CHECKING:
    from matryo.engines.address import Address
    from matryo.engines.rows import Rows
    from matryo.retrieve.hits import Hits

_DISTANCES = {"cosine": "cosineDistance({0}, {1})", "ip": "-dotProduct({0}, {1})", "l2": "L2Distance({0}, {1})"}
_FIRST = "matryo_first_"
_MADE = "made by matryo"
_GRANULE = 64   # rows: re-ranking reads whole granules
_PAGE = 20_000   # rows read at a time
_RATE = 2e8   # bytes of vectors that a mutation reads per second, approximately


class ClickHouse(Engine):
    """A table of ClickHouse with a column Array(Float32), in a folder of this machine."""

    schemes: ClassVar[tuple[str, ...]] = ("chdb",)
    extra, drivers, needs_index = "clickhouse", ("chdb", "pyarrow"), False

    def __init__(self, address: Address, session: Any, dims: Sequence[int] | None) -> None:
        self.address, self._session, self._dims = address, session, dims
        self._refresh()

    @classmethod
    def _connected(cls, address: Address, dims: Sequence[int] | None) -> Self:
        with MissingExtra.unless_installed("chdb", "clickhouse"):
            from chdb.session import Session
        if "table" not in address.options:
            raise InputError("a ClickHouse engine needs the name of a table", got="none", cure="add ?table=docs")
        try:
            session: Any = Session(address.path)   # type: ignore[no-untyped-call, unused-ignore]
        except RuntimeError as error:
            raise EngineError(f"cannot open {address.safe}", got=error,
                              cure="chdb opens one folder per process: close the other first") from None
        return cls(address, session, dims)

    def _refresh(self) -> None:
        name = literal(self.address.options["table"])
        self._table = quoted(self.address.options["table"])
        own = f"database = currentDatabase() AND table = {name}"
        columns = self._rows(f"SELECT name, type, is_in_primary_key FROM system.columns WHERE {own} ORDER BY position")
        self._kinds = {column: kind for column, kind, _ in columns}
        if not columns:
            self.count, self.nesting, self.metric = 0, Nesting([1]), "cosine"
            return
        comment = self._rows(f"SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {name}")
        self._ours = comment[0][0].startswith(_MADE)
        about = json.loads(comment[0][0].partition(": ")[2]) if self._ours else {}
        options = self.address.options
        vectors = [column for column, kind in self._kinds.items() if kind == "Array(Float32)"
                   and not column.startswith(_FIRST) and column == options.get("column", column)]
        keys = [column for column, _, is_key in columns if is_key]
        if len(vectors) != 1 or ("id" not in options and len(keys) != 1):
            raise InputError(f"the table {self._table} must have one column Array(Float32), and a key of one column",
                             got=", ".join([*vectors, *keys]) or "none", cure="specify them: &column=NAME&id=NAME")
        self._column, self._id = vectors[0], options.get("id") or keys[0]
        self._text_ids = "Int" not in self._kinds[self._id]
        payload = options.get("payload", "payload")
        self._payload = payload if self._kinds.get(payload) == "String" else None
        self.count = int(self._rows(f"SELECT count() FROM {self._table}")[0][0])
        width = self._rows(f"SELECT length({quoted(self._column)}) FROM {self._table} LIMIT 1")
        dims = self._dims or about.get("dims")
        self.nesting = Nesting(list(dims)) if dims else halving(int(width[0][0]) if width else 1)
        metric = options.get("metric") or about.get("metric") or "cosine"
        check_metric(metric)
        self.metric = metric   # type: ignore[assignment]   # just checked

    # ── columns of first dims ─────────────────────────────────────────────────────────────────────────────────

    def prepared(self) -> list[Prepared]:
        """The columns of first dims."""
        if not any(name.startswith(_FIRST) for name in self._kinds):
            return []
        name = literal(self.address.options["table"])
        sizes = dict(self._rows(
            "SELECT column, sum(column_data_compressed_bytes) FROM system.parts_columns "
            f"WHERE active AND database = currentDatabase() AND table = {name} GROUP BY column"))
        found = {int(column.removeprefix(_FIRST)): column for column in self._kinds if column.startswith(_FIRST)}
        return [Prepared(found[dim], dim, int(sizes.get(found[dim], 0)), True) for dim in sorted(found)]

    @property
    def openings(self) -> Sequence[Plan]:
        """A scan of each column of first dims, and of the vectors."""
        dims = {*(index.dim for index in self.prepared() if index.dim in self.nesting.dims), self.nesting.dim}
        return tuple(Plan((Stage(dim, 1),)) for dim in sorted(dims))

    def _missing(self, plan: Any) -> int | None:
        self._check_there()
        dim = plan if isinstance(plan, int) else as_plan(plan).stages[0].dim
        if dim not in self.nesting.dims:
            raise InputError("a column must be of dims of the nesting", got=dim,
                             cure=f"choose from {', '.join(map(str, self.nesting.dims))}, or open with dims=")
        return None if dim == self.nesting.dim or f"{_FIRST}{dim}" in self._kinds else dim

    def _statements(self, dim: int) -> tuple[str, str]:
        cut = f"arraySlice({quoted(self._column)}, 1, {dim})"
        return (f"ALTER TABLE {self._table} ADD COLUMN {_FIRST}{dim} Array(Float32) MATERIALIZED {cut} CODEC(NONE)",
                f"ALTER TABLE {self._table} MATERIALIZE COLUMN {_FIRST}{dim} SETTINGS mutations_sync = 1")

    def work(self, plan: Any) -> Work:
        """The cost of :meth:`prepare`: one pass over the vectors."""
        dim = self._missing(plan)
        if dim is None:
            return Work((), 0, 0.0)
        return Work(self._statements(dim), 4 * dim * self.count, 4 * self.nesting.dim * self.count / _RATE)

    def prepare(self, plan: Any) -> list[str]:
        """Add the column of first dims."""
        dim = self._missing(plan)
        if dim is None:
            return []
        for statement in self._statements(dim):
            self._run(statement)
        self._refresh()
        return [f"{_FIRST}{dim}"]

    def drop(self, *, table: bool = False) -> list[str]:
        """Drop the columns that matryo added, with ``table`` also a table that matryo made."""
        if not self._kinds:
            raise InputError(f"the table {self._table} does not exist", got=self.address.safe, cure="load vectors")
        if table and not self._ours:
            raise InputError(f"the table {self._table} was not made by matryo", got="drop(table=True)",
                             cure="drop it yourself if you mean it")
        names = [index.name for index in self.prepared()]
        for name in names:
            self._run(f"ALTER TABLE {self._table} DROP COLUMN {name} SETTINGS mutations_sync = 1")
        if table:
            self._run(f"DROP TABLE {self._table} SYNC")
            names.append(self.address.options["table"])
        self._refresh()
        return names

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────

    def _search(self, queries: Any, k: int, plan: Plan | None, where: Filter | None) -> Hits:
        text, found = self._statement(k, plan, where), []
        for query in queries:
            rows = self._rows(text.replace("{query}", f"[{','.join(map(repr, query.tolist()))}]", 1))
            found.append([(id, score_of(self.metric, distance)) for id, distance in rows if distance is not None])
        return self._hits(found, k)

    def _statement(self, k: int, plan: Plan | None, where: Filter | None) -> str:
        """The statement of a search, with ``{query}`` where the query is."""
        id, stages = quoted(self._id), () if plan is None else plan.stages
        condition = "" if where is None else f" WHERE {self._where(where)}"
        for number, stage in enumerate(stages[:-1]):
            distance = self._distance(stage.dim, first=number == 0)
            inner = f"SELECT {id} FROM {self._table}{condition} ORDER BY {distance} LIMIT {stage.keep}"
            condition = f"\n  PREWHERE {id} IN ({inner})"
        last = stages[-1].dim if stages else self.nesting.dim
        return (f"WITH {{query}}::Array(Float32) AS query\nSELECT {id} AS id, "
                f"{self._distance(last, first=len(stages) == 1)} AS distance FROM {self._table}{condition}\n"
                f"ORDER BY distance LIMIT {k}")

    def _distance(self, dim: int, *, first: bool) -> str:
        column, query = quoted(self._column), "query" if dim == self.nesting.dim else f"arraySlice(query, 1, {dim})"
        if dim < self.nesting.dim:
            ready = first and f"{_FIRST}{dim}" in self._kinds
            column = f"{_FIRST}{dim}" if ready else f"arraySlice({column}, 1, {dim})"
        return _DISTANCES[self.metric].format(column, query)

    def _where(self, where: Filter) -> str:
        kinds = {name: kind_of(kind) for name, kind in self._kinds.items()
                 if name != self._column and not name.startswith(_FIRST)}
        return ClickHouseWhere(kinds, self._payload, self._table).write(where.condition)

    def explain(self, plan: Any = None, k: int = 10, where: Mapping[str, Any] | None = None) -> str:
        """The statement of a search, to paste; ``{query}`` is the query as a list of numbers."""
        self._check_there()
        chosen = None if plan is None else self._as_plan(plan, k)
        text = self._statement(k, chosen, None if where is None else Filter.of(where))
        return f"-- {{query}}: the query, a list of {self.nesting.dim} numbers\n{text};"

    def _stream(self, where: Filter | None) -> Iterator[tuple[Any, Any]]:
        condition, after = "" if where is None else f" AND {self._where(where)}", "TRUE"
        id = quoted(self._id)
        while True:
            ids, vectors = self._read(f"WHERE {after}{condition} ORDER BY {id} LIMIT {_PAGE}")
            if len(ids):
                yield ids, vectors
            if len(ids) < _PAGE:
                return
            after = f"{id} > {literal(ids[-1]) if self._text_ids else int(ids[-1])}"

    def sample(self, count: int, seed: int) -> tuple[Any, Any]:
        """Ids and vectors of ``count`` random rows."""
        id = quoted(self._id)
        chosen = f"SELECT {id} FROM {self._table} ORDER BY cityHash64({id}, {int(seed)}) LIMIT {int(count)}"
        return self._read(f"WHERE {id} IN ({chosen})")

    def _read(self, rest: str) -> tuple[Any, Any]:
        import pyarrow

        id = f"toString({quoted(self._id)})" if self._text_ids else f"toInt64({quoted(self._id)})"
        query = f"SELECT {id} AS id, {quoted(self._column)} AS vector FROM {self._table} {rest}"
        data = self._result(query, "Arrow").bytes()
        table = pyarrow.ipc.open_file(pyarrow.BufferReader(data)).read_all().combine_chunks()
        ids = table.column("id").to_numpy()
        if self._text_ids:
            ids = np.array([id.decode() if isinstance(id, bytes) else id for id in ids], object)
        vectors = table.column("vector").combine_chunks()
        flat = vectors.flatten() if len(table) else pyarrow.array([], "float32")
        return ids, np.asarray(flat, np.float32).reshape(len(ids), self.nesting.dim)

    # ── loading ───────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, dim: int, text_ids: bool, nesting: Nesting, into_existing: bool) -> None:
        options = self.address.options
        if self._kinds:
            fits = dim == self.nesting.dim and text_ids == self._text_ids
            check_loadable(self._table, dim, text_ids, fits=fits, allowed=self._ours or into_existing)
            return
        metric, id = options.get("metric", "cosine"), quoted(options.get("id", "id"))
        check_metric(metric)
        about = literal(f"{_MADE}: {json.dumps({'dims': nesting.dims, 'metric': metric})}")
        self._run(f"CREATE TABLE {self._table} ({id} {'String' if text_ids else 'Int64'}, "
                  f"{quoted(options.get('column', 'embedding'))} Array(Float32) CODEC(NONE), "
                  f"{quoted(options.get('payload', 'payload'))} String) ENGINE = MergeTree ORDER BY {id} "
                  f"SETTINGS index_granularity = {_GRANULE}, min_bytes_for_wide_part = 0 COMMENT {about}")
        self._dims = nesting.dims
        self._refresh()

    def _write(self, rows: Rows, overwrite: bool) -> int:
        import pyarrow
        from pyarrow import parquet

        if self._payload is None and any(text is not None for text in rows.payload):
            raise InputError(f"the table {self._table} has no column String for payloads", got="payloads",
                             cure="add one named payload, or load the vectors alone")
        id, dim = quoted(self._id), rows.vectors.shape[1]
        listed = ", ".join(literal(name) if self._text_ids else str(int(name)) for name in rows.ids)
        there: set[Any] = set()
        if overwrite:
            self._run(f"DELETE FROM {self._table} WHERE {id} IN ({listed}) SETTINGS lightweight_deletes_sync = 2")
        else:
            there = {known for (known,) in self._rows(f"SELECT {id} FROM {self._table} WHERE {id} IN ({listed})")}
        new = [number for number, name in enumerate(rows.ids) if name not in there]
        if not new:
            return 0
        offsets = np.arange(0, len(new) * dim + 1, dim, dtype=np.int32)
        columns = {self._id: [rows.ids[number] for number in new],
                   self._column: pyarrow.ListArray.from_arrays(offsets, rows.vectors[new].ravel())}
        if self._payload is not None:
            columns[self._payload] = [rows.payload[number] or "{}" for number in new]
        with tempfile.TemporaryDirectory(prefix="matryo-") as folder:
            path = Path(folder) / "rows.parquet"
            parquet.write_table(pyarrow.table(columns), path, compression="none")
            names = ", ".join(map(quoted, columns))
            self._run(f"INSERT INTO {self._table} ({names}) SELECT {names} FROM file({literal(str(path))}, Parquet)")
        return len(new)

    # ── the session ───────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self, statement: str) -> list[Any]:
        text = self._result(statement, "JSONCompactEachRow").bytes().decode()
        return [json.loads(line) for line in text.split("\n") if line]

    def _run(self, statement: str) -> None:
        self._result(statement, "Null")

    def _result(self, statement: str, form: str) -> Any:
        try:
            return self._session.query(f"{statement}", form)
        except RuntimeError as error:
            rule = f"ClickHouse refused a statement at {self.address.safe}"
            raise EngineError(rule, got=error, cure="see its message") from None

    def close(self) -> None:
        """Close the session."""
        self._session.close()
