"""The storage of an index: ids, payloads and the commit record in SQLite, vectors in immutable segments."""

from matryo.retrieve.store.batch import Batch
from matryo.retrieve.store.segments.segment import Ids, Limits, Segment
from matryo.retrieve.store.snapshot import Snapshot
from matryo.retrieve.store.store import Store

__all__ = ["Batch", "Ids", "Limits", "Segment", "Snapshot", "Store"]
