"""The index as a store: ids, payloads and a commit record in SQLite, vectors in segments that never change."""

from matryo.retrieve.store.batch import Batch
from matryo.retrieve.store.segments.segment import Ids, Limits, Segment
from matryo.retrieve.store.snapshot import Snapshot
from matryo.retrieve.store.store import Store

__all__ = ["Batch", "Ids", "Limits", "Segment", "Snapshot", "Store"]
