"""Vectors from Parquet and Arrow tables: a column of lists of numbers, a column of ids, and the rest as payload."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MissingExtra
from matryo.retrieve.sources.rows import ID, VECTORS
from matryo.retrieve.sources.source import Columns, Source, unreadable
from matryo.retrieve.store import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Parts = Callable[[list[str], int], Iterator[Any]]
    """``parts(names, rows)`` yields record batches of these columns, of about ``rows`` rows."""


def open_table(path: Path, kind: str, columns: Columns) -> Source:
    """The rows of a Parquet file, or of an Arrow file or stream (``kind`` is parquet or arrow)."""
    with MissingExtra.unless_installed("pyarrow", "arrow"):
        arrow: Any = import_module("pyarrow")
    try:
        schema, count, parts = _open_parquet(path) if kind == "parquet" else _open_arrow(arrow, path)
        table = _chosen(arrow, path, schema, columns)
        first = next(_parts(arrow, parts([table.vector], 1), 1, 0), None)
    except (OSError, arrow.ArrowException) as error:
        raise unreadable(path, kind, error) from error
    if first is None:
        raise InputError(f"{path} must hold a vector", got="no row", cure="check the program that wrote it")
    dim = _width(path, first.column(0), 0, None)

    def read(rows: int, skip: int) -> Iterator[Batch]:
        done = skip
        try:
            for part in _parts(arrow, parts(table.names, rows), rows, skip):
                batch, failed = table.usable(part, dim, done)
                if batch is not None:
                    yield batch
                if failed is not None:
                    raise failed
                done += part.num_rows
        except (OSError, arrow.ArrowException) as error:
            raise unreadable(f"{path}, after row {done}:", kind, error) from error

    return Source(str(path), dim, count, read, without_ids=path if table.id is None else None)


class _BadRow(InputError):
    """A bad row: row ``at`` of a part whose first row is row ``first`` of the file."""

    def __init__(self, path: Path, first: int, at: int, rule: str, got: object, cure: str) -> None:
        super().__init__(f"{path}, row {first + at}: {rule}", got=got, cure=cure)
        self.at = at


def _open_parquet(path: Path) -> tuple[Any, int, Parts]:
    file = import_module("pyarrow.parquet").ParquetFile(path, memory_map=True)
    return file.schema_arrow, file.metadata.num_rows, lambda names, rows: file.iter_batches(rows, columns=names)


def _open_arrow(arrow: Any, path: Path) -> tuple[Any, None, Parts]:
    def reader() -> Any:
        source = arrow.memory_map(str(path), "r")
        try:
            return arrow.ipc.open_file(source)
        except arrow.ArrowInvalid:   # some programs write streams to .arrow files
            source.seek(0)
            return arrow.ipc.open_stream(source)

    def parts(names: list[str], _: int) -> Iterator[Any]:
        file = reader()
        every = iter(file) if isinstance(file, arrow.ipc.RecordBatchStreamReader) else map(
            file.get_batch, range(file.num_record_batches)
        )
        yield from (batch.select(names) for batch in every)

    return reader().schema, None, parts


def _parts(arrow: Any, batches: Iterator[Any], rows: int, skip: int) -> Iterator[Any]:
    """Record batches of ``rows`` rows after the first ``skip``; rows read before an error are yielded first."""
    held: list[Any] = []
    count = 0
    try:
        for batch in batches:
            start = min(skip, batch.num_rows)
            skip -= start
            while start < batch.num_rows:
                held.append(batch.slice(start, rows - count))
                start, count = start + held[-1].num_rows, count + held[-1].num_rows
                if count == rows:
                    yield from _joined(arrow, held)
                    held, count = [], 0
    except (OSError, arrow.ArrowException):
        yield from _joined(arrow, held)
        raise
    yield from _joined(arrow, held)


def _joined(arrow: Any, held: list[Any]) -> list[Any]:
    if len(held) < 2:
        return held
    return list(arrow.Table.from_batches(held).combine_chunks().to_batches())


@dataclass(frozen=True)
class _Table:
    """The file, and the columns that are read from it."""

    arrow: Any
    path: Path
    vector: str
    id: str | None
    payload: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [self.vector, *([] if self.id is None else [self.id]), *self.payload]

    def usable(self, part: Any, dim: int, first: int) -> tuple[Batch | None, _BadRow | None]:
        """The rows of ``part`` before the first bad row, and the error of that row."""
        failed = None
        while part.num_rows:
            try:
                return self._batch(part, dim, first), failed
            except _BadRow as error:
                part, failed = part.slice(0, error.at), error
        return None, failed

    def _batch(self, part: Any, dim: int, first: int) -> Batch:
        column = part.column(self.vector)
        _width(self.path, column, first, dim)
        vectors = _storage(column).flatten().to_numpy(zero_copy_only=False).reshape(part.num_rows, dim)
        return Batch(vectors, self._ids(part, first), self._payload(part, first))

    def _ids(self, part: Any, first: int) -> list[Any] | None:
        if self.id is None:
            return None
        ids: list[Any] = part.column(self.id).to_pylist()
        if None in ids:
            cure = "fill it in, or use another column"
            raise _BadRow(self.path, first, ids.index(None), "every row must have an id", f"{self.id}: null", cure)
        return ids

    def _payload(self, part: Any, first: int) -> list[dict[str, Any]] | None:
        if not self.payload:
            return None
        types, values = self.arrow.types, {}
        for name in self.payload:
            column = part.column(name)
            values[name] = column.to_pylist()
            if types.is_floating(column.type):
                bad = [row for row, value in enumerate(values[name]) if value is not None and not np.isfinite(value)]
                if bad:
                    got, cure = f"{name}: {values[name][bad[0]]}", "write null, or exclude that column with --payload"
                    raise _BadRow(self.path, first, bad[0], "a payload must have finite numbers", got, cure)
            elif types.is_temporal(column.type):
                values[name] = [None if value is None else value.isoformat() for value in values[name]]
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _chosen(arrow: Any, path: Path, schema: Any, columns: Columns) -> _Table:
    """Choose the vector, id and payload columns of ``schema``."""
    types = {field.name: field.type for field in schema}
    if len(types) < len(schema):
        twice = next(name for name in types if schema.names.count(name) > 1)
        raise InputError(f"the columns of {path} must have different names", got=f"{twice} twice", cure="rename one")
    for name in (columns.id, columns.vector, *(columns.payload or ())):
        if name is not None and name not in types:
            raise InputError(f"{path} has no column {name}", got=", ".join(types), cure="use one of these names")
    lists = [name for name, type in types.items() if _is_vector(arrow.types, type)]
    usual = [name for name in VECTORS if name in lists]
    vector = columns.vector or next(iter(usual or (lists if len(lists) == 1 else [])), None)
    if vector is None or vector not in lists:
        got = f"{vector} of {types[vector]}" if vector else f"{', '.join(lists) or 'none'} among {', '.join(types)}"
        cure = "specify one: --vector-column NAME" if lists else "write list<float> or fixed_size_list<float>"
        raise InputError(f"{path} must have one column of lists of numbers", got=got, cure=cure)
    id = columns.id or (ID if ID in types else None)
    if id is not None and not _is_id(arrow.types, types[id]):
        raise InputError(
            f"{path}: the id column must have integers or strings", got=f"{id} of {types[id]}", cure="use another"
        )
    payload = columns.payload if columns.payload is not None else tuple(n for n in types if n not in (vector, id))
    unsupported = [name for name in payload if not _is_plain(arrow.types, types[name])]
    if unsupported:
        rest = ",".join(name for name in payload if name not in unsupported) or "none"
        raise InputError(
            f"{path}: a payload must hold text, numbers, dates, booleans, and lists and structs of these",
            got=f"{unsupported[0]} of {types[unsupported[0]]!s:.60}",
            cure=f"exclude it: --payload {rest}",
        )
    return _Table(arrow, path, vector, id, payload)


def _is_list(types: Any, type: Any) -> bool:
    return bool(types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type))


def _is_vector(types: Any, type: Any) -> bool:
    type = getattr(type, "storage_type", type)   # fixed-shape tensors are stored as lists
    return _is_list(types, type) and bool(types.is_floating(type.value_type) or types.is_integer(type.value_type))


def _is_id(types: Any, type: Any) -> bool:
    inner = type.value_type if types.is_dictionary(type) else type
    return bool(types.is_integer(inner) or types.is_string(inner) or types.is_large_string(inner))


def _is_plain(types: Any, type: Any, top: bool = True) -> bool:
    """Whether values of ``type`` are JSON values; at the ``top`` level dates are allowed, as text."""
    if types.is_struct(type):
        return all(_is_plain(types, field.type, False) for field in type)
    if _is_list(types, type):
        return _is_plain(types, type.value_type, False)
    if _is_id(types, type) or types.is_boolean(type) or types.is_floating(type) or types.is_null(type):
        return True
    return top and bool(types.is_date(type) or types.is_timestamp(type) or types.is_time(type))


def _width(path: Path, column: Any, first: int, dim: int | None) -> int:
    """The length of the lists in ``column``, which must be ``dim``; ``first`` is the number of the first row."""
    compute = import_module("pyarrow.compute")
    lengths = compute.fill_null(compute.list_value_length(_storage(column)), -1).to_numpy(zero_copy_only=False)
    wanted = int(lengths[0]) if dim is None else dim
    bad = np.flatnonzero((lengths != wanted) | (lengths < 1))
    if len(bad):
        rule = f"a vector must have {f'{wanted} numbers, like the first one' if wanted > 0 else 'numbers'}"
        got = "null" if lengths[bad[0]] < 0 else lengths[bad[0]]
        raise _BadRow(path, first, int(bad[0]), rule, got, "drop that row, or encode it again")
    return wanted


def _storage(column: Any) -> Any:
    return getattr(column, "storage", column)
