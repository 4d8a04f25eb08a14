"""The partition guide (IVF): build it, store it, and search it along a plan."""

from matryo.retrieve.guides.partition.partition import HEADER, Partition
from matryo.retrieve.guides.partition.search import PartitionSearch

__all__ = ["HEADER", "Partition", "PartitionSearch"]
