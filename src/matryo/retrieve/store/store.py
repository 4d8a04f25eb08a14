"""A store of vectors with ids and payloads: one writer, many readers, and what was acknowledged survives a kill.

>>> import tempfile
>>> from matryo.nesting import Nesting
>>> folder = tempfile.mkdtemp()
>>> with Store.create(f"{folder}/mine", Nesting([2, 4])) as store:
...     store.add([[3, 4, 0, 0], [0, 1, 1, 0]], ids=["a", "b"], payload=[{"year": 2021}, {"year": 2024}])
...     store.where({"year": {"$gt": 2022}}).ids().tolist()
...     store.delete(["a"])
['a', 'b']
['b']
>>> with Store.open(f"{folder}/mine") as store:
...     store.get(["b"])
(array([[0., 1., 1., 0.]], dtype=float32), [{'year': 2024}])

SQLite has the ids, the payloads, a few recent vectors and the list of segments. A larger batch, or recent
vectors that have become many, is written as a segment first, and counts when the list names it. So each call
happens or does not, in one commit.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.embeddings.rows import as_vectors
from matryo.errors import InputError, MatryoError, StorageError
from matryo.retrieve.store.about import About
from matryo.retrieve.store.batch import Batch, as_known_ids, as_new_ids, as_payload
from matryo.retrieve.store.guides import sweep_guides, write_guide
from matryo.retrieve.store.opening import Opened, open_reader, open_writer
from matryo.retrieve.store.segments.merging import to_merge
from matryo.retrieve.store.segments.pieces import Piece, regroup
from matryo.retrieve.store.segments.segment import Limits, open_segment, sweep, write_segment
from matryo.retrieve.store.snapshot import Loader, Snapshot
from matryo.retrieve.store.sql import records
from matryo.retrieve.store.sql.records import Item, State
from matryo.retrieve.store.sql.where import as_sql
from matryo.retrieve.store.verify import verify
from matryo.retrieve.vectors.blocks import checked_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self, TypeVar

    from matryo.nesting import Nesting
    from matryo.retrieve.store.segments.segment import Segment
    from matryo.retrieve.vectors.blocks import Blocks
    from matryo.retrieve.vectors.metric import Metric

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Ids = list[int] | list[str]
    Result = TypeVar("Result")

__all__ = ["Store"]

_LARGE = 2.0**40   # blocks refuse norms above 2⁶²; smaller numbers never have one


class Store:
    """Vectors on disk with ids and payloads; make one with :meth:`create` or :meth:`open`.

    Threads may share a store; each call is one step for all of them.
    """

    def __init__(self, opened: Opened, limits: Limits) -> None:
        self.path, self.about = opened.path, opened.about
        self._database, self._lock, self._limits = opened.database, opened.lock, limits
        self._loader = Loader(opened.path, opened.about)
        self._latest: tuple[tuple[int, int], Snapshot] | None = None
        self._guard = threading.RLock()
        # Also when a store is dropped unclosed: nobody else could write until the process ends.
        self._closing = weakref.finalize(self, _close, opened)

    @classmethod
    def create(
        cls, folder: str | Path, nesting: Nesting, *, dtype: str = "float32", int8_up_to: int = 0,
        metric: Metric = "cosine", limits: Limits | None = None,
    ) -> Store:  # fmt: skip
        """Make an empty store in a new or empty ``folder``, open for writing."""
        about = About(nesting, dtype, int8_up_to, metric)
        return cls(open_writer(Path(folder), about), limits or Limits())

    @classmethod
    def open(cls, folder: str | Path, *, writable: bool = False, limits: Limits | None = None) -> Store:
        """Open a store: for reading beside its writer, or as its only writer."""
        return cls((open_writer if writable else open_reader)(Path(folder)), limits or Limits())

    @property
    def count(self) -> int:
        """How many vectors there are."""
        with self._guard:
            self._check_open()
            with self._database.reading():
                return records.read_state(self._database).count

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        about = self.about
        return f"Store({str(self.path)!r}, {about.nesting.dim} {about.dtype}, {about.metric})"

    def add(self, vectors: Any, ids: Any = None, payload: Any = None) -> Ids:
        """Add rows, durably; returns their ids, by default the integers after the largest so far.

        ``payload`` is a list of dicts of plain JSON values, one a vector.
        """
        with self._changing() as state:
            new = self._checked(vectors, ids, state)
            texts = as_payload(payload, len(new.rows))
            found = records.find(self._database, new.ids)
            if found:
                raise InputError(
                    "ids must be new", got=f"{found[0].id!r:.60}, which is there", cure="upsert replaces what is there"
                )
            self._append(state, new, texts, [])
            return new.ids

    def add_batches(self, batches: Iterable[Any]) -> int:
        """Add one batch after the other: arrays of vectors, or :class:`Batch`; returns how many rows there were.

        A batch is durable before the next is asked for, so an iterator knows how far it got.
        """
        count = 0
        for one in batches:
            count += len(self.add(*one) if isinstance(one, Batch) else self.add(one))
        return count

    def upsert(self, vectors: Any, ids: Any, payload: Any = None) -> None:
        """Add rows, durably; those whose ids are there replace the old ones, payload included, in the same step."""
        with self._changing() as state:
            if ids is None:
                raise InputError("upsert needs ids", got=None, cure="use add for new rows")
            new = self._checked(vectors, ids, state)
            texts = as_payload(payload, len(new.rows))
            self._append(state, new, texts, records.find(self._database, new.ids))

    def delete(self, ids: Any) -> None:
        """Remove rows, durably; every id must be there."""
        with self._changing() as state:
            found = records.find_all(self._database, as_known_ids(ids))
            total = state.total - sum(item.crc for item in found)
            with self._database.writing():
                records.remove(self._database, [item.row for item in found])
                records.write_state(self._database, replace(state, count=state.count - len(found), total=total))

    def get(self, ids: Any) -> tuple[Floats, list[dict[str, Any]]]:
        """The vectors, as float32 [ids, d], and the payloads of ``ids``, every one of which must be there."""
        known = as_known_ids(ids)

        def look(snapshot: Snapshot) -> tuple[Floats, list[dict[str, Any]]]:
            found = {item.id: item for item in records.find_all(self._database, known)}
            asked = [found[one] for one in known]
            vectors = snapshot.vectors(np.array([item.row for item in asked], np.int64))
            return vectors, [json.loads(item.payload or "{}") for item in asked]

        return self._read(look)

    def snapshot(self) -> Snapshot:
        """What is there now; it stays as it is, whatever is written later."""
        with self._guard:
            self._check_open()
            if self._latest is not None and self._latest[0] == self._database.version:
                return self._latest[1]   # a search asks each time, and mostly nothing has changed
            return self._read(lambda snapshot: snapshot)

    def where(self, where: Mapping[str, Any]) -> Snapshot:
        """A snapshot in which only the rows count whose payload matches ``where``, a dict as in :func:`as_sql`."""
        condition, bound = as_sql(where)
        sql = f"SELECT row FROM items WHERE {condition} ORDER BY row"

        def match(snapshot: Snapshot) -> Snapshot:
            return snapshot.among(np.array([row for (row,) in self._database.execute(sql, bound)], np.int64))

        return self._read(match)

    def compact(self) -> None:
        """Write what is alive into as few segments as possible, and give back the space of the rest."""
        with self._changing():
            snapshot, most = self.snapshot(), self._rows_per_segment
            whole = all(one.alive is None for one in snapshot.segments) and not records.count_pending(self._database)
            if whole and len(snapshot.segments) <= -(-snapshot.count // most):
                return
            self._replace(len(snapshot.segments), snapshot.segments)
            self._database.execute("PRAGMA incremental_vacuum").fetchall()

    def wanted(self) -> dict[str, Any]:
        """The guides that each segment is to have: by kind, what they are built with."""
        return self._read(lambda _: records.read_wanted(self._database))

    def build(self, kind: str, fields: Mapping[str, Any], write: Callable[[Blocks, Path], None]) -> None:
        """Have a guide written for each segment that has none of this ``kind`` with these ``fields``, and remember it.

        Each is committed by itself: a kill loses the one in the making.
        """
        with self._changing():
            built = {(one.segment, one.kind): one.fields for one in records.read_guides(self._database)}
            with self._database.writing():
                records.write_wanted(self._database, {**records.read_wanted(self._database), kind: dict(fields)})
            for record in records.read_segments(self._database):
                if built.get((record.name, kind)) != fields:
                    blocks = open_segment(self.path, record).blocks
                    guide = write_guide(self.path, record.name, kind, fields, functools.partial(write, blocks))
                    with self._database.writing():
                        records.insert_guide(self._database, guide)
            self._sweep()

    def verify(self) -> None:
        """Read every byte and raise, naming the file, where a checksum differs."""
        self._read(lambda _: verify(self.path, self._database, self.about))

    def close(self) -> None:
        """Let go of the files; a snapshot in use goes on working."""
        with self._guard:
            self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, work: Callable[[Snapshot], Result]) -> Result:
        """Do ``work`` in one transaction, with its snapshot; again where a segment was compacted away meanwhile."""
        with self._guard:
            self._check_open()
            while True:
                with self._database.reading():
                    names = self._names()
                    try:
                        return work(self._snapshot())
                    except (MatryoError, OSError) as error:
                        failed = error
                with self._database.reading():
                    if names == self._names():
                        raise failed

    def _snapshot(self) -> Snapshot:
        version = self._database.version
        if self._latest is None or self._latest[0] != version:
            self._latest = version, self._loader.load(self._database)
        return self._latest[1]

    def _names(self) -> list[str]:
        return [record.name for record in records.read_segments(self._database)]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        with self._guard:
            self._check_open()
            if self._lock is None:
                raise InputError("this index is open for reading", got=self.path, cure="open it with writable=True")
            with self._database.errors():
                yield records.read_state(self._database)

    def _check_open(self) -> None:
        if not self._closing.alive:
            raise InputError("this index is closed", got=self.path, cure="open it again")

    @property
    def _rows_per_segment(self) -> int:
        return max(1, self._limits.segment_bytes // self.about.row_bytes)

    def _checked(self, vectors: Any, ids: Any, state: State) -> Piece:
        rows = as_vectors(vectors, self.about.dtype, self.about.nesting.dim)
        if len(rows) and max(float(rows.max()), -float(rows.min())) > _LARGE:
            checked_norms(rows, self.about.nesting, "vectors")
        numbers = np.arange(state.next_row, state.next_row + len(rows))
        return Piece(rows, numbers, as_new_ids(ids, len(rows), state))

    def _append(self, state: State, new: Piece, payload: list[str | None], old: list[Item]) -> None:
        if not new.ids:
            return
        items = [Item(*fields) for fields in zip(new.rows.tolist(), new.ids, payload, strict=True)]
        moved = State(
            kind=type(new.ids[0]).__name__,
            next_id=max([state.next_id, *(one + 1 for one in new.ids if isinstance(one, int))]),
            next_row=state.next_row + len(items),
            count=state.count + len(items) - len(old),
            total=state.total + sum(item.crc for item in items) - sum(item.crc for item in old),
        )
        waiting = records.count_pending(self._database) + len(items)
        written = self._write(new, old) if waiting * self.about.row_bytes >= self._limits.pending_bytes else []
        with self._database.writing():
            records.remove(self._database, [item.row for item in old])
            records.insert(self._database, items)
            if written:
                records.clear_pending(self._database)
                records.insert_segments(self._database, written)
            else:
                records.insert_pending(self._database, new)
            records.write_state(self._database, moved)
        if written:
            self._sweep()
            with contextlib.suppress(StorageError):   # the rows are in; the next addition tries again
                self._merge()

    def _write(self, new: Piece, old: list[Item]) -> list[records.Record]:
        """Segments of what is pending, but for the rows that are replaced, and what is new."""
        pending = records.read_pending(self._database, self.about)
        stay = np.flatnonzero(~np.isin(pending.rows, [item.row for item in old]))
        kept = Piece(pending.vectors[stay], pending.rows[stay], [pending.ids[i] for i in stay])
        return [write_segment(self.path, self.about, one) for one in regroup((kept, new), self._rows_per_segment)]

    def _merge(self) -> None:
        listed = records.read_segments(self._database)
        count = to_merge([record.rows for record in listed], self._rows_per_segment)
        if count:
            self._replace(count, self.snapshot().segments[len(listed) - count : len(listed)])

    def _replace(self, count: int, segments: Sequence[Segment]) -> None:
        """Write what is alive in the last ``count`` segments, and in what is pending if it is among them, anew."""
        old = records.read_segments(self._database)[-count:]
        pending = len(segments) > len(old)
        pieces = regroup(Snapshot(self.about, tuple(segments)).pieces(), self._rows_per_segment)
        written = [write_segment(self.path, self.about, piece) for piece in pieces]
        with self._database.writing():
            records.remove_segments(self._database, old, int(segments[-1].rows[-1]))
            if pending:
                records.clear_pending(self._database)
            records.insert_segments(self._database, written)
        self._sweep()

    def _sweep(self) -> None:
        # Only after a commit: one that failed may yet turn out to be on the disk, and then needs its folders.
        sweep(self.path, records.read_segments(self._database))
        sweep_guides(self.path, records.read_guides(self._database))


def _close(opened: Opened) -> None:
    opened.database.close()
    if opened.lock is not None:
        os.close(opened.lock)
