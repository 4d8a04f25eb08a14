"""Compaction in the background: a child process copies the live rows and builds guides, and the writer adopts them.

The child only reads the index and writes to a scratch folder. All commits are those of the writer, so a child or a
writer that is killed leaves the index as it was.
"""

from matryo.retrieve.compaction.handle import Compaction
from matryo.retrieve.compaction.task import Task

__all__ = ["Compaction", "Task"]
