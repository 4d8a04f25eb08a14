"""Merging: segments are rewritten as fewer ones, by the writer at once, or elsewhere while the writer continues.

In the second case (:mod:`matryo.retrieve.compaction`), another process copies the live rows to a scratch index. Until
the writer adopts its segments, all changes are allowed but one: additions do not merge the segments that are replaced.
Rows that are deleted meanwhile keep their tombstones, because row numbers do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.errors import IndexFolderError
from matryo.retrieve.store.filtering import Filtered
from matryo.retrieve.store.guides import sweep_guides
from matryo.retrieve.store.merging.scratch import Scratch, sweep_scratch
from matryo.retrieve.store.segments.pieces import Piece, regroup, to_merge
from matryo.retrieve.store.segments.segment import (
    Limits,
    Segment,
    open_segment,
    remove_segments,
    sweep,
    verify_segment,
    write_segment,
)  # fmt: skip
from matryo.retrieve.store.snapshot import Snapshot, lies_in
from matryo.retrieve.store.sql import records
from matryo.retrieve.store.verify import check_items, verify_copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from matryo.retrieve.store.opening import Opened

_MANY = 1000   # rows for which guides are faster than a scan
_FREED = 2000   # pages of SQLite that are freed in one commit while others wait


class Merging(Filtered):
    """A session that writes segments and merges them."""

    def __init__(self, opened: Opened, limits: Limits) -> None:
        super().__init__(opened)
        self._limits = limits
        self._scratch: Scratch | None = None   # of the compaction that runs

    def compact(self) -> None:
        """Rewrite the live rows into as few segments as possible, and free the space of deleted rows."""
        with self._changing():
            if self._is_compact():
                return
            snapshot = self.snapshot()
            self._replace(len(snapshot.segments), snapshot.segments)
            with self._tidying():
                self._database.execute("PRAGMA incremental_vacuum").fetchall()

    def _is_compact(self) -> bool:
        snapshot = self.snapshot()
        whole = all(segment.alive is None for segment in snapshot.segments)
        few = len(snapshot.segments) <= -(-snapshot.count // self._rows_per_segment)
        return whole and few and not records.count_pending(self._database)

    @property
    def _rows_per_segment(self) -> int:
        return max(1, self._limits.segment_bytes // self.about.row_bytes)

    def _write_segments(self, pieces: Iterable[Piece]) -> list[records.Record]:
        """Write the rows of ``pieces`` as segments: all, or none."""
        written: list[records.Record] = []
        try:
            for piece in regroup(pieces, self._rows_per_segment):   # extended one by one, to remove them on an error
                written += [write_segment(self.path, self.about, piece)]
        except BaseException:
            remove_segments(self.path, written)
            raise
        return written

    def _settle(self) -> None:
        """Write the recent rows as segments, which may have guides, if they are many and at least half of all."""
        with self._changing() as state:
            if _MANY <= state.count <= 2 * records.count_pending(self._database):
                self._write_pending()

    def _write_pending(self) -> None:
        """Write the recent rows, which are in SQLite, as segments; call this inside a change."""
        if records.count_pending(self._database):
            written = self._write_segments([records.read_pending(self._database, self.about)])
            with self._committing():
                records.clear_pending(self._database)
                records.insert_segments(self._database, written)

    def _merge(self) -> None:
        listed = records.read_segments(self._database)
        free = [record.rows for record in listed if self._scratch is None or record.first > self._scratch.last]
        count = to_merge(free, self._rows_per_segment)
        if count:
            self._replace(count, self.snapshot().segments[len(listed) - count : len(listed)])

    def _replace(self, count: int, segments: Sequence[Segment]) -> None:
        """Rewrite the live rows of the last ``count`` segments, and of the pending rows if ``segments`` has them."""
        old = records.read_segments(self._database)[-count:]
        pending = len(segments) > len(old)
        verify_copied(self.path, self._database, old, segments)
        written = self._write_segments(Snapshot(self.path, self.about, tuple(segments)).pieces())
        self._exchange(old, int(segments[-1].rows[-1]), written, pending=pending)

    def _exchange(
        self, old: Sequence[records.Record], last: int, new: Sequence[records.Record],
        guides: Sequence[records.GuideRecord] = (), *, pending: bool = False,
    ) -> None:  # fmt: skip
        """Replace the segments ``old``, which end with row ``last``, by ``new`` ones with their guides, in one commit.

        Rows of ``new`` that were deleted since they were copied keep their tombstones. ``pending`` tells that the new
        segments hold the pending rows, too.
        """
        dead = records.read_dead(self._database)
        copied = [open_segment(self.path, record).rows for record in new] if len(dead) else []
        died = [row for rows in copied for row in rows[lies_in(rows, dead)].tolist()]
        with self._committing():
            records.remove_segments(self._database, old, last)
            if pending:
                records.clear_pending(self._database)
            records.insert_segments(self._database, new)
            for guide in guides:
                records.insert_guide(self._database, guide)
            records.insert_dead(self._database, died)
        with self._tidying():
            self._sweep()

    def _sweep(self) -> None:
        # Only after a commit: a commit that seemed to fail may still be on disk, and then needs its folders. And only
        # when the commit is in the file: if the log were lost, the file would need the old folders.
        if not self._database.checkpoint():
            return
        sweep(self.path, records.read_segments(self._database))
        sweep_guides(self.path, records.read_guides(self._database))
        sweep_scratch(self.path, self._scratch)

    # ── a compaction by another process ───────────────────────────────────────────────────────────────────────

    def _reserve(self) -> Scratch:
        """Begin to replace all segments. Until :meth:`_release`, additions do not merge them."""
        with self._changing() as state:
            self._write_pending()
            self._scratch = Scratch.of(self.path, self._names(), state.next_row - 1)
            return self._scratch

    def _live_rows(self, names: Iterable[str]) -> Iterator[Piece]:
        """The live rows of consecutive segments, 64 MB at a time, each segment as of a recent commit.

        Every byte is verified before it is copied. Each transaction is short: a long one would keep the writer from
        moving its log into the file.
        """
        start: int | None = None
        for name in names:
            record = next(record for record in self._read_records(self._listed) if record.name == name)
            verify_segment(self.path, record)

            def look(snapshot: Snapshot, name: str = name, start: int | None = start) -> Segment:
                segment = next(segment for segment in snapshot.segments if segment.name == name)
                first, last = int(segment.rows[0]), int(segment.rows[-1])
                check_items(self._database, [segment], first if start is None else start, last)
                return segment

            segment = self._read(look)
            start = int(segment.rows[-1]) + 1
            yield from Snapshot(self.path, self.about, (segment,)).pieces()

    def _fill(self, pieces: Iterable[Piece], wanted: Mapping[str, Any]) -> None:
        """Write ``pieces`` to this scratch index, whose segments should have the guides ``wanted``."""
        with self._changing():
            written = self._write_segments(pieces)
            with self._committing():
                records.insert_segments(self._database, written)
                records.write_wanted(self._database, wanted)

    def _listed(self) -> list[records.Record]:
        return records.read_segments(self._database)

    def _adopt(self, scratch: Scratch) -> None:
        """Replace segments by those of a scratch index that another process has filled, with their guides."""
        made = scratch.made()
        with self._changing():
            old = [record for record in self._listed() if record.first <= scratch.last]
            if self._scratch is not scratch or tuple(record.name for record in old) != scratch.names:
                cure = "call index.compact(background=True) again; the index is unchanged"
                raise IndexFolderError("the index was compacted by another call meanwhile", got=self.path, cure=cure)
            self._opened.folder.check()
            scratch.move(self.path, *made)
            self._exchange(old, scratch.last, *made)
        with self._tidying("new vectors are scanned for now"):
            self._join()   # segments that joined the partitions of a replaced one join the new ones
        with self._tidying():
            self._shrink()
            with self._changing():
                self._sweep()

    def _join(self) -> None:
        """Complete the guides of new segments as far as that takes little time; nothing to do for a store."""

    def _release(self, scratch: Scratch) -> None:
        """End a compaction, whether it was adopted or not."""
        with self._guard:
            if self._scratch is scratch:
                self._scratch = None
        scratch.remove()

    def _shrink(self) -> None:
        """Free the space of deleted rows in SQLite's file, in many short commits."""
        before = -1
        while before:
            with self._changing():
                left = int(self._database.execute("PRAGMA freelist_count").fetchone()[0])
                if left == before:   # nothing can be freed
                    return
                self._database.execute(f"PRAGMA incremental_vacuum({_FREED})").fetchall()
                before = left
