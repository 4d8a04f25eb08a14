"""Shards: one index in several folders, by a hash of the ids, searched as one."""

from matryo.retrieve.shards.hashing import shard_of, split
from matryo.retrieve.shards.manifest import Manifest, index_there, open_index
from matryo.retrieve.shards.sharded import ShardedIndex

__all__ = ["Manifest", "ShardedIndex", "index_there", "open_index", "shard_of", "split"]
