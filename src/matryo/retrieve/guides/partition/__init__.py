"""The partition guide (IVF): build it, store it, and search it along a plan."""

from matryo.retrieve.guides.partition.partition import HEADER, Partition, tile_dim
from matryo.retrieve.guides.partition.search import PartitionSearch

__all__ = ["HEADER", "Partition", "PartitionSearch", "tile_dim"]
