"""Build an index in shards on a cluster: each worker reads the vectors once and writes some of the shards.

A shard is built beside its place and renamed when it is complete, so that a job that starts again builds only what is
missing. The manifest is written last.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_integer
from matryo.errors import IndexFolderError, InputError
from matryo.files import json_digest, parse_json, sync_folder, write_json
from matryo.progress import tqdm
from matryo.ray.cluster import Cluster
from matryo.ray.parts import Parts
from matryo.ray.place import Place
from matryo.retrieve import Index
from matryo.retrieve.shards import Manifest, ShardedIndex, split
from matryo.retrieve.shards.manifest import MANIFEST, MOST_SHARDS
from matryo.retrieve.store import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build_index"]

_JOB = "building.json"
_STEP_BYTES = 64 << 20


class _Builder:
    """A worker: the vectors, opened once."""

    def __init__(self, vectors: str, folder: str, total: int, settings: dict[str, Any]) -> None:
        self.parts, self.folder, self.total, self.settings = Parts.open(vectors), Path(folder), total, settings

    def run(self, shards: Sequence[int], guides: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
        """Build some shards in one pass; return the guides that they have, with their options."""
        names = Manifest.of(self.total).shards
        works = {shard: self.folder / f"{names[shard]}.building" for shard in shards}
        for work in works.values():
            shutil.rmtree(work, ignore_errors=True)   # of a worker that died
        indexes = {shard: Index.create(work, **self.settings) for shard, work in works.items()}
        step = max(1, _STEP_BYTES // (4 * self.parts.dim))
        for first in range(0, self.parts.count, step):
            count = min(step, self.parts.count - first)
            vectors, ids = self.parts.read(first, count), self.parts.read(first, count, "ids").tolist()
            places = split(ids, self.total)
            for shard, index in indexes.items():
                if len(at := places[shard]):
                    batch = Batch(np.asarray(vectors[at], np.float32), [ids[i] for i in at])
                    index.put(batch, first + at, may_replace=False)
        made: dict[str, Any] = {}
        for shard, index in indexes.items():
            index.compact()
            if guides:
                if wanted:
                    index.want(wanted)
                index.build(**({} if wanted else guides))
                made = index.wanted()
            index.close()
            works[shard].rename(self.folder / names[shard])
        sync_folder(self.folder)
        return made


def build_index(
    vectors: Any, folder: Any, *, shards: int, guides: dict[str, Any] | None = None, cluster: Cluster | None = None,
    nesting: Any = None, progress: bool = True, **settings: Any,
) -> ShardedIndex:  # fmt: skip
    """Build a sharded index of the vectors at a path or a URL, in a new ``folder`` that all machines see.

    ``guides`` are the arguments of :meth:`matryo.Index.build`; their layout is chosen on the first shard. ``settings``
    are those of :meth:`matryo.Index.create`. Ids are those of the embeddings, or row numbers. If interrupted, the same
    call resumes.
    """
    parts, place = Parts.open(vectors), Place.of(folder).path
    total = as_integer(shards, "shards", 1, MOST_SHARDS)
    dims = [2**power for power in range(3, parts.dim.bit_length()) if 2**power < parts.dim] + [parts.dim]
    given = {**settings, "nesting": list(nesting or dims)}
    if guides and guides.get("graph"):
        raise InputError("shards are built with a sketch and partitions", got="graph", cure="drop graph")
    job = json_digest({"shards": total, "settings": given, "guides": guides or {}, "vectors": parts.place.url,
                       "count": parts.count})  # fmt: skip
    left = _left(place, job, total)
    chosen: dict[str, Any] = {}
    with cluster or Cluster() as running:
        workers = max(1, min(running.room(), len(left)))
        arguments = (parts.place.url, str(place), total, given)
        with tqdm(desc="build shards", total=total, initial=total - len(left), unit="shard", delay=2,
                  disable=not progress) as bar:  # fmt: skip
            if guides:
                chosen = _chosen(place, total)
                if not chosen and left:
                    ((_, chosen),) = running.run(_Builder, arguments, [([left.pop(0)], guides, {})])
                    bar.update()
            groups = [left[start::workers] for start in range(workers) if left[start::workers]]
            for number, _ in running.run(_Builder, arguments, [(group, guides or {}, chosen) for group in groups]):
                bar.update(len(groups[number]))
    Manifest.of(total).save(place)
    (place / _JOB).unlink()
    return ShardedIndex.open(place)


def _left(place: Path, job: str, total: int) -> list[int]:
    """The shards that are still to be built."""
    names = Manifest.of(total).shards
    journal = place / _JOB
    if place.exists() and any(place.iterdir()):
        same = journal.is_file() and parse_json(journal.read_bytes()).get("job") == job
        if (place / MANIFEST).exists() or not same:
            got = "a finished index" if (place / MANIFEST).exists() else "files of something else"
            raise IndexFolderError("a new sharded index needs a new or empty folder, or that of the same call",
                                   got=f"{place}, with {got}", cure="choose another folder")  # fmt: skip
    place.mkdir(parents=True, exist_ok=True)
    write_json(journal, {"job": job})
    return [number for number, name in enumerate(names) if not (place / name).is_dir()]


def _chosen(place: Path, total: int) -> dict[str, Any]:
    """The guides of a shard that an earlier attempt has built; {} if there is none."""
    for name in Manifest.of(total).shards:
        if (place / name).is_dir():
            with Index.open(place / name) as index:
                return index.wanted()
    return {}
