"""The manifest of a sharded index: which folders hold its shards, and by which hash ids are distributed.

``shards.json`` lies beside the folders of the shards, each of which is an ordinary index.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from matryo.errors import IndexFolderError
from matryo.files import is_plain_name, json_digest, parse_json, storage, write_json
from matryo.folders import restore
from matryo.retrieve.index import Index
from matryo.retrieve.shards.hashing import HASH

if TYPE_CHECKING:
    from typing import TypeAlias

    from matryo.retrieve.shards.sharded import ShardedIndex

    AnyIndex: TypeAlias = Index | ShardedIndex

MANIFEST = "shards.json"
MOST_SHARDS = 4096
_FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """The folders of the shards, in the order of their numbers."""

    shards: tuple[str, ...]
    hash: str = HASH
    format: int = _FORMAT

    @classmethod
    def of(cls, count: int) -> Manifest:
        """The manifest of ``count`` new shards."""
        return cls(tuple(f"shard-{number:04d}" for number in range(count)))

    def save(self, folder: Path) -> None:
        """Write the manifest, atomically."""
        data = asdict(self)
        write_json(folder / MANIFEST, {**data, "sha256": json_digest(data)})

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of ``folder``; raise if it is damaged or of a newer version."""
        path = folder / MANIFEST
        with storage(path, "read"):
            content = path.read_bytes()
        try:
            data: dict[str, Any] = dict(parse_json(content))
            if data.pop("sha256", None) != json_digest(data):
                raise ValueError("other bytes than were written")
            made = cls(tuple(data["shards"]), data["hash"], data["format"])
            if not all(isinstance(name, str) and is_plain_name(name) for name in made.shards) or not made.shards:
                raise ValueError("shards must be names of folders")
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFolderError.damaged(path, error) from error
        if made.format > _FORMAT or made.hash != HASH:
            raise IndexFolderError(
                f"{path} was written by a newer version of matryo", got=f"format {made.format}, hash {made.hash}",
                cure="pip install --upgrade matryo",
            )   # fmt: skip
        return made


def is_sharded(folder: str | Path) -> bool:
    """Whether ``folder`` holds a sharded index."""
    restore(Path(folder))
    return (Path(folder) / MANIFEST).is_file()


def index_there(folder: str | Path) -> bool:
    """Whether ``folder`` holds an index, sharded or not."""
    return is_sharded(folder) or Index.exists(folder)


def open_index(folder: str | Path, *, writable: bool = False) -> AnyIndex:
    """Open an index, sharded or not; the arguments are those of :meth:`matryo.Index.open`."""
    if is_sharded(folder):
        from matryo.retrieve.shards.sharded import ShardedIndex

        return ShardedIndex.open(folder, writable=writable)
    return Index.open(folder, writable=writable)
