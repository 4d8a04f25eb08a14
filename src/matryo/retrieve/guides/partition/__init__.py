"""The partition guide (IVF): build it, store it, let rows join it, and search it along a plan."""

from matryo.retrieve.guides.partition.joined import Joined
from matryo.retrieve.guides.partition.partition import HEADER, Partition
from matryo.retrieve.guides.partition.search import PartitionSearch
from matryo.retrieve.guides.partition.tail import Tail, TailPart, TailView

__all__ = ["HEADER", "Joined", "Partition", "PartitionSearch", "Tail", "TailPart", "TailView"]
