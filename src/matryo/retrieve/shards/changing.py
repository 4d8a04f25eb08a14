"""Changes of a sharded index: each row goes to the shard of its id, numbered in one order over all shards.

The rows of one call may reach several shards, which commit one after another. Everything is checked before the first
commit. ``adding.json`` records an addition in progress; if it was interrupted, the next writer removes its rows, so an
addition is whole or absent. Replacements and deletions that were interrupted have changed some of the shards: repeat
the call.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.embeddings.rows import as_vectors
from matryo.errors import InputError, UnknownId, shown
from matryo.files import parse_json, write_json
from matryo.retrieve.shards.hashing import shard_of, split
from matryo.retrieve.store.batch import Batch, as_existing_ids, as_new_ids
from matryo.retrieve.store.payload import as_payload
from matryo.retrieve.store.sql.records import State
from matryo.retrieve.vectors.blocks import checked_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from matryo.retrieve.index import Index
    from matryo.retrieve.vectors.types import Indices

    Ids = list[int] | list[str]

ADDING = "adding.json"


class Changing:
    """The methods that add, replace and delete rows."""

    path: Path
    given: Path
    shards: tuple[Index, ...]

    def add(self, vectors: Any, ids: Any = None, payload: Any = None) -> Ids:
        """Add vectors durably and return their ids, by default the integers after the largest id so far."""
        return self._put(vectors, ids, payload, may_replace=False)

    def upsert(self, vectors: Any, ids: Any, payload: Any = None) -> None:
        """Add rows durably; rows with existing ids replace the old rows and payloads.

        The rows of one shard are one commit. If interrupted, repeat the call.
        """
        if ids is None:
            raise InputError("upsert needs ids", got=None, cure="pass ids, or use add for new rows")
        self._put(vectors, ids, payload, may_replace=True)

    @checked
    def add_batches(self, batches: Iterable[Any]) -> int:
        """Add batches (arrays of vectors, or :class:`Batch`) one by one, and return the number of rows."""
        return sum(len(self.add(*batch) if isinstance(batch, Batch) else self.add(batch)) for batch in batches)

    def delete(self, ids: Any) -> None:
        """Remove rows durably; all ids must exist. The rows of one shard are one commit."""
        places, wanted = self._placed(ids)
        parts = [[wanted[i] for i in at] for at in places]
        for shard, part in zip(self.shards, parts, strict=True):
            missing = set(part) - set(shard.known(part))
            if missing:
                first = next(id for id in wanted if id in missing)
                raise UnknownId("the index has no such id", got=shown(first), cure="index.ids has all ids")
        for shard, part in zip(self.shards, parts, strict=True):
            if part:
                shard.delete(part)

    def undo_unfinished(self) -> None:
        """Remove the rows of an addition that was interrupted between the commits of two shards."""
        journal = self.path / ADDING
        if journal.exists():
            first = int(parse_json(journal.read_bytes())["first"])
            for shard in self.shards:
                if ids := shard.ids_from(first):
                    shard.delete(ids)
            journal.unlink()

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, (int, str, np.integer)) or isinstance(id, bool):
            return False
        plain = id if isinstance(id, str) else int(id)
        if isinstance(plain, int) and not -(2**63) <= plain < 2**63:
            return False
        return plain in self.shards[shard_of(plain, len(self.shards))]

    def _placed(self, ids: Any) -> tuple[list[Indices], Ids]:
        """The places of existing ``ids`` by shard, and the ids as plain values."""
        wanted = as_existing_ids(ids)
        for id in wanted:
            if isinstance(id, int) and not -(2**63) <= id < 2**63:
                raise UnknownId("the index has no such id", got=shown(id), cure="index.ids has all ids")
        return split(wanted, len(self.shards)), wanted

    def _counters(self) -> State:
        """The counters of all shards together."""
        each = [shard.counters for shard in self.shards]
        kind = next((state.kind for state in each if state.kind), "")
        return State(kind, max(state.next_id for state in each), max(state.next_row for state in each),
                     sum(state.count for state in each))  # fmt: skip

    def _put(self, vectors: Any, ids: Any, payload: Any, *, may_replace: bool) -> Ids:
        about, state = self.shards[0].about, self._counters()
        rows = as_vectors(vectors, "float32", about.nesting.dim)
        as_vectors(rows, about.dtype)   # finite in float16, too
        checked_norms(rows, about.nesting, "vectors")
        new = as_new_ids(ids, len(rows), state)
        texts = as_payload(payload, len(rows))
        places = split(new, len(self.shards))
        if not may_replace:
            for shard, at in zip(self.shards, places, strict=True):
                if known := shard.known([new[i] for i in at]):
                    got = f"{known[0]!r:.60}, which exists"
                    raise InputError("ids must be new", got=got, cure="use upsert (--upsert) to replace rows")

        def commit() -> None:
            for shard, at in zip(self.shards, places, strict=True):
                if len(at):
                    own = [None if texts[i] is None else json.loads(texts[i] or "{}") for i in at]
                    batch = Batch(rows[at], [new[i] for i in at], own)
                    shard.put(batch, state.next_row + at, may_replace=may_replace)

        several = sum(map(bool, map(len, places))) > 1
        if several and not may_replace:
            self._journalled(commit, state.next_row)
        else:
            commit()
        return new

    def _journalled(self, commit: Callable[[], None], first: int) -> None:
        write_json(self.path / ADDING, {"first": first})
        try:
            commit()
        except BaseException:
            self.undo_unfinished()
            raise
        (self.path / ADDING).unlink()
