"""Facts about a sharded index: those of its shards, put together."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_integer, checked
from matryo.files import resolve
from matryo.folders import replacing_folder
from matryo.retrieve.description import Description
from matryo.retrieve.shards.manifest import Manifest
from matryo.retrieve.store.backup import check_new

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matryo.nesting import Nesting
    from matryo.retrieve.index import Index
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.store.about import About
    from matryo.retrieve.store.batch import Batch
    from matryo.retrieve.vectors.metric import Metric
    from matryo.retrieve.vectors.types import Array


class Facts:
    """The properties and the upkeep of a sharded index."""

    path: Path
    given: Path
    shards: tuple[Index, ...]

    @property
    def about(self) -> About:
        """The settings that all shards share."""
        return self.shards[0].about

    @property
    def nesting(self) -> Nesting:
        """The dims that a plan can read."""
        return self.about.nesting

    @property
    def metric(self) -> Metric:
        """The metric: "cosine", "ip" or "l2"."""
        return self.about.metric

    @property
    def dtype(self) -> str:
        """The dtype of the stored vectors."""
        return self.about.dtype

    @property
    def keeps_full(self) -> bool:
        """Whether the vectors are stored, as in :attr:`matryo.Index.keeps_full`."""
        return True

    @property
    def count(self) -> int:
        """The number of vectors."""
        return sum(len(shard) for shard in self.shards)

    def __len__(self) -> int:
        return self.count

    @property
    def closed(self) -> bool:
        """Whether the index has been closed."""
        return self.shards[0].closed

    @property
    def is_current(self) -> bool:
        """Whether a search needs no reading first; see :class:`matryo.Index`."""
        return all(shard.is_current for shard in self.shards)

    @property
    def text_ids(self) -> bool:
        """Whether ids are strings; False in an empty index."""
        return any(shard.snapshot().text_ids for shard in self.shards)

    @property
    def ids(self) -> Array:
        """All ids in the order of insertion: int64, or str objects."""
        snapshots = [shard.snapshot() for shard in self.shards]
        rows = [segment.rows[segment.positions] for each in snapshots for segment in each.segments]
        ids = [each.ids() for each in snapshots if each.count]
        if not ids:
            return np.empty(0, np.int64)
        return np.concatenate(ids)[np.argsort(np.concatenate(rows), kind="stable")]

    @property
    def model(self) -> str | dict[str, Any]:
        """The model that made the vectors, as in :attr:`matryo.Index.model`."""
        return self.shards[0].model

    def set_model(self, model: str | Mapping[str, Any]) -> None:
        """Record, durably, which model made the vectors."""
        for shard in self.shards:
            shard.set_model(model)

    def sources(self) -> dict[str, dict[str, Any]]:
        """The sources that were added completely, as in an index."""
        return self.shards[0].sources()

    def add_source(self, digest: str, facts: Mapping[str, Any]) -> None:
        """Record, durably, that all rows of a source were added."""
        self.shards[0].add_source(digest, facts)

    def wanted(self) -> dict[str, Any]:
        """The guides that each segment should have: their arguments by kind."""
        return self.shards[0].wanted()

    @property
    def openings(self) -> Sequence[Plan]:
        """The first stages that the shards support, for the planner."""
        filled = [shard for shard in self.shards if len(shard)] or self.shards[:1]
        return tuple(dict.fromkeys(plan for shard in filled for plan in shard.openings))

    @checked
    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """Ids and vectors of ``count`` random rows."""
        snapshots = [shard.snapshot() for shard in self.shards]
        counts = [each.count for each in snapshots]
        as_integer(count, "count", 0, sum(counts))
        shares = np.random.default_rng(seed).multivariate_hypergeometric(counts, count)
        each = [one.sample(int(share), seed + number)
                for number, (one, share) in enumerate(zip(snapshots, shares, strict=True)) if share]  # fmt: skip
        if not each:
            return np.empty(0, np.int64), np.empty((0, self.nesting.dim), np.float32)
        return np.concatenate([ids for ids, _ in each]), np.concatenate([vectors for _, vectors in each])

    def batches(self) -> Iterator[Batch]:
        """Yield the rows of each shard in turn, 64 MB at a time."""
        for shard in self.shards:
            yield from shard.batches()

    def describe(self) -> Description:
        """The size, settings, guides and payload fields of all shards together."""
        each = [shard.describe() for shard in self.shards]
        filled = [one for one in each if one.count] or each[:1]
        drifts = [one for one in each if one.drift is not None]
        joined = sum(one.joined for one in drifts)
        return replace(
            filled[0], path=self.given, count=sum(one.count for one in each), shards=len(each),
            segments=sum(one.segments for one in each), unguided=sum(one.unguided for one in each),
            joined=joined, bytes=sum(one.bytes for one in each),
            drift=sum(one.drift * one.joined for one in drifts if one.drift) / joined if joined else None,
            fields=tuple(dict.fromkeys(field for one in each for field in one.fields)),
        )  # fmt: skip

    def verify(self) -> None:
        """Read every byte of every shard; raise an error that names the file if a checksum differs."""
        Manifest.load(self.path)
        for shard in self.shards:
            shard.verify()

    @checked
    def backup(self, path: str | Path) -> None:
        """Write a verified copy to a new folder ``path``. Each shard is copied as it is when its turn comes."""
        check_new(path)
        with replacing_folder(resolve(path)) as work:
            for shard in self.shards:
                shard.backup(work / shard.path.name)
            Manifest(tuple(shard.path.name for shard in self.shards)).save(work)
            check_new(path)   # again, because copying takes a while

    @property
    def _nothing(self) -> Any:
        """The id of an unused place."""
        return "" if self.text_ids else -1

    def __repr__(self) -> str:
        name = f"ShardedIndex({str(self.given)!r})"
        if self.closed:
            return f"{name}: closed"
        return f"{name}: {len(self):,} × {self.nesting.dim} in {len(self.shards)} shards, {self.metric}, {self.dtype}"


def joined_state(states: Sequence[str]) -> str:
    """A digest of the states of all shards."""
    return hashlib.sha256("\0".join(states).encode()).hexdigest()
