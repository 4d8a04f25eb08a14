"""A store of vectors with ids and payloads: one writer, many readers, and durable commits.

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

SQLite holds the ids, the payloads, a few recent vectors and the list of segments. A large batch, or many recent
vectors, is first written as a segment and then added to the list. So each call is atomic: one commit, or nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.embeddings.manifest import as_plain
from matryo.errors import IndexFolderError, InputError
from matryo.nesting import Nesting, as_nesting
from matryo.retrieve.store import forks
from matryo.retrieve.store.about import About
from matryo.retrieve.store.backup import copy_index, new_backup
from matryo.retrieve.store.batch import Batch, as_existing_ids, as_new_ids
from matryo.retrieve.store.guides import is_intact, write_guide
from matryo.retrieve.store.opening import create, open_reader, open_writer
from matryo.retrieve.store.payload import as_payload
from matryo.retrieve.store.rotating.rotation import Rotation
from matryo.retrieve.store.rotating.turning import Turning
from matryo.retrieve.store.segments.pieces import Piece
from matryo.retrieve.store.segments.segment import Limits, open_segment, verify_segment
from matryo.retrieve.store.snapshot import Snapshot
from matryo.retrieve.store.sql import records
from matryo.retrieve.store.sql.records import Item, State
from matryo.retrieve.store.verify import verify
from matryo.retrieve.vectors.blocks import Blocks, checked_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Self, TypeVar

    from matryo.retrieve.guides.guide import Guide
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Floats, Indices

    Ids = list[int] | list[str]
    Result = TypeVar("Result")

_LARGE = 2.0**40   # blocks refuse norms above 2⁶², which smaller components cannot reach


class Store(Turning):
    """Vectors on disk with ids and payloads; make one with :meth:`create` or :meth:`open`.

    Threads may share a store; each call is atomic.
    """

    @classmethod
    @checked
    def create(
        cls, folder: str | Path, nesting: Nesting | Iterable[int], *, dtype: str = "float32", int8_up_to: int = 0,
        metric: Metric = "cosine", limits: Limits | None = None, model: str | Mapping[str, Any] = "",
    ) -> Self:  # fmt: skip
        """Create it empty in a new or empty ``folder``, open for writing.

        ``nesting`` is a nesting or a list of dims: the dims that a plan can read, the last one that of the vectors.
        Blocks up to ``int8_up_to`` also get 8-bit copies, for first stages that read a quarter of the bytes. ``model``
        describes what made the vectors, as in an embeddings folder: a name, or for example
        ``matryo.load("runs/mine").description``.
        """
        about, model = About(as_nesting(nesting), dtype, int8_up_to, metric), as_plain("model", model)
        with forks.no_fork:
            return cls(create(Path(folder), about, model), limits or Limits())

    @classmethod
    @checked
    def open(cls, folder: str | Path, *, writable: bool = False, limits: Limits | None = None) -> Self:
        """Open it for reading (any number of processes), or with ``writable`` as its only writer."""
        with forks.no_fork:
            return cls((open_writer if writable else open_reader)(Path(folder)), limits or Limits())

    @classmethod
    @checked
    def recover(cls, folder: str | Path) -> Self:
        """Open an index whose ``index.sqlite-wal`` is lost, for writing, as it was before the latest changes.

        Every byte is verified. Segments that only the lost changes named are renamed to ``segments/lost-…``.
        """
        with forks.no_fork:
            store = cls(open_writer(Path(folder), recover=True), Limits())
        try:
            store.verify()
        except BaseException:
            store.close()
            raise
        return store

    @property
    def count(self) -> int:
        """The number of vectors."""
        return self._read_records(lambda: records.read_state(self._database).count)

    def __len__(self) -> int:
        return self.count

    @property
    def text_ids(self) -> bool:
        """Whether ids are strings; False in an empty index."""
        return self.snapshot().text_ids

    def add(self, vectors: Any, ids: Any = None, payload: Any = None) -> Ids:
        """Add vectors durably and return their ids, by default the integers after the largest id so far.

        ``vectors`` is an array, lists, a table of numbers or a column of lists. ``payload`` is a list of dicts, one per
        vector, or a table; numpy scalars and dates are converted, see :mod:`matryo.retrieve.store.payload`.
        """
        return self._put(vectors, ids, payload, may_replace=False)

    @checked
    def add_batches(self, batches: Iterable[Any]) -> int:
        """Add batches (arrays of vectors, or :class:`Batch`) one by one, and return the number of rows.

        Each batch is durable before the iterator is advanced, so the iterator can track progress.
        """
        count = 0
        for batch in batches:
            count += len(self.add(*batch) if isinstance(batch, Batch) else self.add(batch))
        return count

    def upsert(self, vectors: Any, ids: Any, payload: Any = None) -> None:
        """Add rows durably; rows with existing ids replace the old rows and payloads in the same commit."""
        if ids is None:
            raise InputError("upsert needs ids", got=None, cure="pass ids, or use add for new rows")
        self._put(vectors, ids, payload, may_replace=True)

    def put(self, batch: Batch, numbers: Indices, *, may_replace: bool) -> None:
        """Add rows whose row ``numbers`` the caller chooses: they increase, and are larger than all before.

        The shards of one index number their rows together, so that their order of insertion is known.
        """
        self._put(*batch, may_replace=may_replace, numbers=numbers)

    def known(self, ids: Ids) -> Ids:
        """Those of the ``ids``, all integers or all strings, that exist."""
        return [item.id for item in self._read_records(lambda: records.find(self._database, ids))]   # type: ignore[return-value]

    def ids_from(self, number: int) -> Ids:
        """The ids of the rows with at least this row number."""
        return self._read_records(lambda: records.ids_from(self._database, number))   # type: ignore[return-value]

    @property
    def counters(self) -> State:
        """The type of the ids, the next free id and row number, and the count."""
        return self._read_records(lambda: records.read_state(self._database))

    def delete(self, ids: Any) -> None:
        """Remove rows durably; all ids must exist."""
        with self._changing() as state:
            found = records.find_all(self._database, as_existing_ids(ids))
            total = state.total - sum(item.crc for item in found)
            with self._committing():
                records.remove(self._database, [item.row for item in found])
                records.write_state(self._database, replace(state, count=state.count - len(found), total=total))
            self._loaded.note(self._database.version, None, [item.row for item in found])
            self._prepare()

    def get(self, ids: Any) -> tuple[Floats, list[dict[str, Any]]]:
        """The vectors (float32 [ids, d]) and the payloads of ``ids``, all of which must exist."""
        wanted = as_existing_ids(ids)

        def look(snapshot: Snapshot) -> tuple[Floats, list[dict[str, Any]]]:
            by_id = {item.id: item for item in records.find_all(self._database, wanted)}
            items = [by_id[id] for id in wanted]
            vectors = snapshot.vectors(np.array([item.row for item in items], np.int64))
            return vectors, [json.loads(item.payload or "{}") for item in items]

        return self._read(look)

    def batches(self) -> Iterator[Batch]:
        """Yield the current rows in the order of insertion, 64 MB at a time, with vectors as they were put in."""
        snapshot = self.snapshot()
        for piece in snapshot.pieces():
            vectors = piece.vectors if snapshot.rotation is None else snapshot.rotation.back(piece.vectors)
            yield Batch(vectors, piece.ids)

    def payloads(self, rows: Indices) -> list[list[dict[str, Any] | None]]:
        """The payloads of row numbers [queries, k], all of which must be live; None for −1."""
        wanted: list[int] = np.unique(rows[rows >= 0]).tolist()
        texts = self._read_records(lambda: records.payloads(self._database, wanted))
        if len(texts) < len(wanted):
            gone = next(row for row in wanted if row not in texts)
            raise IndexFolderError.damaged(self._database.path, f"no payload of row {gone}")
        return [[None if row < 0 else json.loads(texts[row] or "{}") for row in hits] for hits in rows.tolist()]

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, (int, str, np.integer)) or isinstance(id, bool):
            return False
        wanted = as_existing_ids([id])
        return bool(self._read(lambda _: records.find(self._database, wanted)))

    def wanted(self) -> dict[str, Any]:
        """The guides that each segment should have: their arguments by kind."""
        return self._read(lambda _: records.read_wanted(self._database))

    def want(self, guides: Mapping[str, Any]) -> None:
        """Record the guides that each segment should have: their arguments by kind, as :meth:`wanted` returns them."""
        with self._changing(), self._committing():
            records.write_wanted(self._database, guides)

    def build_guide(
        self, kind: str, fields: Mapping[str, Any], make: Callable[[Blocks], Guide],
        own: Callable[[list[int]], list[bool]] | None = None,
    ) -> None:  # fmt: skip
        """Build a guide of this ``kind`` with these ``fields`` for each segment without an intact one, with ``make``.

        Given the numbers of their rows, ``own`` returns which segments get one, by default all. Later calls build it
        for new segments too. Each guide is one commit: a kill or an error loses only the current one.
        """
        with self._changing():
            guides = [guide for guide in records.read_guides(self._database) if guide.kind == kind]
            built = {guide.segment for guide in guides if guide.fields == fields}
            listed = records.read_segments(self._database)
            needed = own([record.rows for record in listed]) if own else [True] * len(listed)
            lacking = [record for record, needs in zip(listed, needed, strict=True)
                       if needs and record.name not in built]  # fmt: skip
            for record in lacking:   # first of all: a guide of damaged vectors would pass for a good one
                verify_segment(self.path, record)
            wanted = {**records.read_wanted(self._database), kind: dict(fields)}
            for record in lacking:
                made = make(open_segment(self.path, record).blocks)
                guide = write_guide(self.path, record.name, kind, fields, made)
                with self._committing():
                    records.insert_guide(self._database, guide)
                    records.write_wanted(self._database, wanted)
            if not lacking:
                with self._committing():
                    records.write_wanted(self._database, wanted)
            with self._tidying():
                self._sweep()

    def add_guide(self, segment: str, guide: Guide, fields: Mapping[str, Any]) -> None:
        """Store a guide of a segment, which was built with these ``fields``, in one commit.

        If the segment was merged since, nothing is stored.
        """
        with self._changing():
            listed = next((listed for listed in self._listed() if listed.name == segment), None)
            if listed is None:
                return
            verify_segment(self.path, listed)   # a guide of damaged vectors would pass for a good one
            record = write_guide(self.path, segment, guide.kind, fields, guide)
            with self._committing():
                records.insert_guide(self._database, record)

    def drop_damaged_guides(self) -> None:
        """Forget the guides of which a byte is not as it was written."""
        with self._changing():
            damaged = [guide for guide in records.read_guides(self._database) if not is_intact(self.path, guide)]
            if damaged:
                with self._committing():
                    records.remove_guides(self._database, damaged)

    def verify(self) -> None:
        """Read every byte; raise an error that names the file if a checksum differs."""
        self._read(lambda _: verify(self.path, self._database, self.about))

    @checked
    def backup(self, path: str | Path) -> None:
        """Write a copy of the current commit to a new folder ``path``, which is an index of its own.

        Every byte of the copy is verified, and ``path`` appears complete or not at all. Other processes may write
        meanwhile; writes of this process wait.
        """
        with new_backup(path, self.path) as work:
            try:
                self._read(lambda _: copy_index(self.path, self._database, work))
            except IndexFolderError:
                self.verify()   # names the damaged file of the index rather than its copy
                raise

    def _put(
        self, vectors: Any, ids: Any, payload: Any, *, may_replace: bool, numbers: Indices | None = None
    ) -> Ids:
        with self._changing() as state:
            rows = self._stored(vectors)
            if not self.about.code_bytes and len(rows) and max(float(rows.max()), -float(rows.min())) > _LARGE:
                checked_norms(rows, self.about.nesting, "vectors")
            if numbers is None:
                numbers = np.arange(state.next_row, state.next_row + len(rows))
            new = Piece(rows, numbers, as_new_ids(ids, len(rows), state))
            texts = as_payload(payload, len(rows))
            old = records.find(self._database, new.ids)
            if old and not may_replace:
                got = f"{old[0].id!r:.60}, which exists"
                raise InputError("ids must be new", got=got, cure="use upsert (--upsert) to replace rows")
            self._append(state, new, texts, old)
            if isinstance(self._rotation, Rotation):
                self._drift.see(self._rotation, self.about.metric, rows)
            return new.ids

    def _append(self, state: State, new: Piece, payload: list[str | None], old: list[Item]) -> None:
        if not new.ids:
            return
        items = [Item(*fields) for fields in zip(new.rows.tolist(), new.ids, payload, strict=True)]
        moved = State(
            kind=type(new.ids[0]).__name__,
            next_id=max([state.next_id, *(id + 1 for id in new.ids if isinstance(id, int))]),
            next_row=items[-1].row + 1,
            count=state.count + len(items) - len(old),
            total=state.total + sum(item.crc for item in items) - sum(item.crc for item in old),
        )
        written = self._write(new, old) if self._are_too_many(len(items)) else []
        with self._committing():
            records.remove(self._database, [item.row for item in old])
            records.insert(self._database, items)
            if written:
                records.clear_pending(self._database)
                records.insert_segments(self._database, written)
            else:
                records.insert_pending(self._database, new)
            records.write_state(self._database, moved)
        if written:
            self._loaded.deleted += [item.row for item in old]
            self._loaded.changes.clear()
            with self._tidying():
                self._sweep()
                self._merge()
            with self._tidying("new vectors are scanned for now"):
                self._join()
        else:
            self._loaded.note(self._database.version, new, [item.row for item in old])
            self._prepare()

    def _prepare(self) -> None:
        """Called after a small commit, which is durable then."""

    def _are_too_many(self, count: int) -> bool:
        """Whether SQLite would hold too many vectors with ``count`` new ones."""
        fit, known = -(-self._limits.pending_bytes // self.about.row_bytes), self._loaded.most_pending
        if known is None or known + count >= fit:   # counting reads a page per few vectors
            known = records.count_pending(self._database)
        self._loaded.most_pending = known + count
        return known + count >= fit

    def _write(self, new: Piece, old: list[Item]) -> list[records.Record]:
        """Write segments of the pending rows, except those of ``old``, and the new rows."""
        pending = records.read_pending(self._database, self.about)
        stay = np.flatnonzero(~np.isin(pending.rows, [item.row for item in old]))
        kept = Piece(pending.vectors[stay], pending.rows[stay], [pending.ids[i] for i in stay])
        return self._write_segments((kept, new))
