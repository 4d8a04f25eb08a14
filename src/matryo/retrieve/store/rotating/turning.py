"""Turning: all vectors of a store are rewritten in another rotation, and appear with it in one commit.

New segments are written beside the old ones; the commit that names them also names the rotation, so a snapshot never
mixes the two. A kill before the commit leaves the index as it was, and the next call with this map continues after the
last finished segment, if the rows are those it was begun with. Readers keep their snapshots until they ask for the next
one.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from matryo.embeddings.rows import as_vectors
from matryo.progress import tqdm
from matryo.retrieve.store.merging.merging import Merging
from matryo.retrieve.store.rotating.coding import Coding
from matryo.retrieve.store.rotating.drift import Drift
from matryo.retrieve.store.rotating.progress import Progress, sweep_progress
from matryo.retrieve.store.snapshot import Loaded
from matryo.retrieve.store.sql import records, rotations
from matryo.retrieve.store.verify import verify_copied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from matryo.retrieve.store.opening import Opened
    from matryo.retrieve.store.rotating.rotation import Rotation
    from matryo.retrieve.store.segments.pieces import Piece
    from matryo.retrieve.store.segments.segment import Limits
    from matryo.retrieve.store.snapshot import Snapshot
    from matryo.retrieve.vectors.types import Array


class Turning(Merging):
    """A session that stores vectors in the space of a rotation."""

    def __init__(self, opened: Opened, limits: Limits) -> None:
        super().__init__(opened, limits)
        self._drift = Drift()
        self._rotation: Rotation | Coding | None = None   # of the last write

    def _stored(self, vectors: Any) -> Array:
        """Checked vectors in the space and the dtype of the store; call this inside a change."""
        dtype, dim = self.about.dtype, self.about.nesting.dim
        self._rotation = rotations.read(self._database, self._rotation)
        if self._rotation is None:
            return as_vectors(vectors, dtype, dim)
        given = as_vectors(vectors, "float32", dim)
        turned = self._rotation.turn(given)
        if isinstance(self._rotation, Coding):
            self._drift.see_codes(self._rotation, given, turned)
            return turned
        return as_vectors(turned, dtype, dim)

    def _turn(self, new: Rotation | None, wish: rotations.Wish, *, progress: bool = False) -> None:
        """Rewrite every vector for the rotation ``new``, in one commit. The guides must be built again."""
        with self._changing() as state:
            snapshot = self.snapshot()
            listed = records.read_segments(self._database)
            verify_copied(self.path, self._database, listed, snapshot.segments)
            done = Progress(self.path, [new and new.digest, *(record.name for record in listed), asdict(state)])
            with tqdm(desc="rotate", total=snapshot.count, initial=done.rows, unit="row", unit_scale=True, delay=2,
                      disable=not progress) as bar:  # fmt: skip
                done.write(self.about, self._turned(snapshot, new, done.rows, bar), self._rows_per_segment)
            written = done.move()
            last = int(snapshot.segments[-1].rows[-1]) if snapshot.segments else -1
            with self._committing():
                records.remove_segments(self._database, listed, last)
                records.clear_pending(self._database)
                records.insert_segments(self._database, written)
                rotations.write(self._database, new, wish)
            self._loaded, self._latest, self._drift = Loaded(), None, Drift()
            with self._tidying():
                self._sweep()

    def _sweep(self) -> None:
        super()._sweep()
        sweep_progress(self.path)

    def _turned(self, snapshot: Snapshot, new: Rotation | None, skip: int, bar: Any) -> Iterator[Piece]:
        """The live rows after the first ``skip``, in the space of ``new``."""
        for whole in snapshot.pieces():
            piece = whole.cut(min(skip, len(whole.rows)))[1]
            skip -= len(whole.rows) - len(piece.rows)
            if not len(piece.rows):
                continue
            vectors = np.asarray(piece.vectors, np.float32)
            if snapshot.rotation is not None:
                vectors = snapshot.rotation.back(vectors)
            if new is not None:
                vectors = new.turn(vectors)
            yield piece._replace(vectors=as_vectors(vectors, self.about.dtype))
            bar.update(len(piece.rows))

    def _wish(self) -> rotations.Wish:
        """Whether the store fits its rotation by itself, and on how many rows it did."""
        return self._read_records(lambda: rotations.read_wish(self._database))
