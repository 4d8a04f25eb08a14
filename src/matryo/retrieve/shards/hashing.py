"""The shard of an id: a hash that never changes, on any machine and in any language.

The hash is BLAKE2b with a digest of 8 bytes, read as a little-endian integer, modulo the number of shards. It is taken
of the bytes of the id: UTF-8 for a string, 8 bytes little-endian two's complement for an integer.

>>> [shard_of(id, 4) for id in (0, 1, -1, "0", "cat")]
[2, 3, 1, 0, 3]
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.retrieve.vectors.types import Indices

HASH = "blake2b-64"
"""The name of the hash in manifests."""


def shard_of(id: int | str, shards: int) -> int:
    """Return the number of the shard that holds an id."""
    content = id.encode() if isinstance(id, str) else int(id).to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") % shards


def split(ids: Sequence[int] | Sequence[str], shards: int) -> list[Indices]:
    """Return the places in ``ids`` of the ids of each shard, in order."""
    of = np.fromiter((shard_of(id, shards) for id in ids), np.int64, len(ids))
    return [np.flatnonzero(of == shard) for shard in range(shards)]
