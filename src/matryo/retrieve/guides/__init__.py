"""Guides: structures beside the vectors that speed up a first stage: sketch, partition (IVF), graph (HNSW)."""

from matryo.retrieve.guides.graph import Graph
from matryo.retrieve.guides.guide import Guide
from matryo.retrieve.guides.partition import Partition
from matryo.retrieve.guides.sketch.sketch import Sketch

__all__ = ["GUIDES", "Graph", "Guide", "Partition", "Sketch"]

GUIDES: dict[str, type[Guide]] = {guide.kind: guide for guide in (Sketch, Partition, Graph)}
"""The guides by kind. A search follows the first that a segment has and that serves the plan."""
