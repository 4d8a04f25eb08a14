"""ShardedIndex: an index in several folders, one per shard, which is searched and changed as one.

>>> import tempfile
>>> index = ShardedIndex.create(f"{tempfile.mkdtemp()}/mine", nesting=[2, 4], shards=3)
>>> index.add([[3, 4, 0, 0], [0, 1, 1, 0], [4, 3, 0, 1]], ids=["a", "b", "c"])
['a', 'b', 'c']
>>> index.search([3, 4, 0, 0], k=2).ids.tolist()
[['a', 'c']]
>>> index.delete(["a"])
>>> index.search([3, 4, 0, 0], k=2).ids.tolist(), len(index)
([['c', 'b']], 2)

An id belongs to the shard that its hash selects (:mod:`matryo.retrieve.shards.hashing`). The rows of all shards are
numbered together, so ties are won by the row added first, and exact search returns what one index would return, bit for
bit. A plan runs in each shard: every stage keeps its rows per shard, so the planner, which measures the shards
together, can choose smaller numbers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_integer, checked
from matryo.errors import EmbeddingsError, IndexFolderError, InputError
from matryo.files import resolve
from matryo.folders import replacing_folder
from matryo.retrieve.hits import widened
from matryo.retrieve.index import Entry, Index
from matryo.retrieve.nearest import Nearest, merged, raised
from matryo.retrieve.plan.shift import Watches
from matryo.retrieve.search_arguments import check_search
from matryo.retrieve.shards.changing import Changing
from matryo.retrieve.shards.facts import Facts, joined_state
from matryo.retrieve.shards.manifest import MANIFEST, MOST_SHARDS, Manifest, is_sharded
from matryo.retrieve.store.filters.language import Filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from matryo.retrieve.hits import Hits
    from matryo.retrieve.plan.check import Check
    from matryo.retrieve.plan.choice import Choice
    from matryo.retrieve.plan.plan import Plan
    from matryo.retrieve.vectors.types import Array, Indices


class ShardedIndex(Changing, Facts):
    """An index in shards; make one with :meth:`create` or :meth:`open`.

    Its methods are those of :class:`matryo.Index`. Threads may share it.
    """

    def __init__(self, path: Path, given: Path, shards: Sequence[Index]) -> None:
        self.path, self.given, self.shards = path, given, tuple(shards)
        self._watches = Watches()

    @classmethod
    @checked
    def create(cls, folder: str | Path, nesting: Any, *, shards: int, **settings: Any) -> Self:
        """Create it empty in a new or empty ``folder``, open for writing; ``settings`` are those of `Index.create`."""
        count = as_integer(shards, "shards", 1, MOST_SHARDS)
        if settings.get("rotation") is not None and isinstance(settings["rotation"], str):
            rule = "all shards must have one rotation"
            cure = "fit a map and pass it: Retrofit.fit(vectors); or call index.rotate() after adding vectors"
            raise InputError(rule, got=f"rotation={settings['rotation']!r}", cure=cure)
        if settings.get("compression") is not None:
            raise InputError("shards keep full vectors", got="compression", cure="drop it, or use Index.create")
        path = resolve(folder)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            cure = "choose another folder"
            raise IndexFolderError("a new sharded index needs a new or empty folder", got=folder, cure=cure)
        manifest = Manifest.of(count)
        with replacing_folder(path) as work:
            for name in manifest.shards:
                Index.create(work / name, nesting, **settings).close()
            manifest.save(work)
        return cls.open(folder, writable=True)

    @classmethod
    @checked
    def open(cls, folder: str | Path, *, writable: bool = False) -> Self:
        """Open it for reading (any number of processes), or with ``writable`` as its only writer."""
        if not is_sharded(folder):
            cure = "check the path, or create one: matryo index FOLDER SOURCE --shards 4"
            raise IndexFolderError(f"there is no {MANIFEST} in this folder", got=folder, cure=cure)
        path = resolve(folder)
        manifest = Manifest.load(path)
        with ExitStack() as undo:
            shards = [undo.enter_context(Index.open(path / name, writable=writable)) for name in manifest.shards]
            differ = [shard.path.name for shard in shards if shard.about != shards[0].about]
            if differ:
                got = f"{differ[0]} unlike {shards[0].path.name}"
                raise IndexFolderError.damaged(path, f"shards of different settings: {got}")
            opened = cls(path, Path(folder), shards)
            if writable:
                opened.undo_unfinished()
            undo.pop_all()
        return opened

    def close(self) -> None:
        """Close all shards."""
        for shard in self.shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @checked
    def search(
        self, queries: Any, k: int = 10, plan: Any = None, exact: bool = False, where: Mapping[str, Any] | None = None,
        threads: int = 1, payload: bool = False,
    ) -> Hits:  # fmt: skip
        """Return the ``k`` nearest vectors of each query, [queries, k]; see :meth:`matryo.Index.search`.

        ``threads`` share the queries, or the shards if there are fewer queries.
        """
        vectors, stages = check_search(queries, k, plan, exact, threads, lambda: self.model)
        if where is not None:
            self._check_fields(where)
        while True:
            before = [shard.snapshot() for shard in self.shards]
            try:
                best, source = merged(self._nearest(vectors, k, stages, where, threads), k)
                payloads = self._payloads_of(best, source, k) if payload else None
                break
            except (EmbeddingsError, IndexFolderError, OSError):   # such as a hit that was deleted before it was read
                if all(shard.snapshot() is snapshot for shard, snapshot in zip(self.shards, before, strict=True)):
                    raise
        hits = best.to_hits(k, self._nothing, payloads)
        if stages is not None and stages.promise is not None and where is None:
            self._watches.see(stages.promise, hits.scores)
        return hits

    @checked
    def get(self, ids: Any) -> tuple[Any, list[dict[str, Any]]]:
        """The vectors (float32 [ids, d]) and the payloads of ``ids``, all of which must exist."""
        places, wanted = self._placed(ids)
        vectors = np.empty((len(wanted), self.nesting.dim), np.float32)
        payloads: list[dict[str, Any]] = [{}] * len(wanted)
        for shard, at in zip(self.shards, places, strict=True):
            if len(at):
                vectors[at], own = shard.get([wanted[i] for i in at])
                for i, entry in zip(at, own, strict=True):
                    payloads[i] = entry
        return vectors, payloads

    def __getitem__(self, id: int | str) -> Entry:
        (vector,), (payload,) = self.get([id])
        return Entry(vector, payload)

    @checked
    def plan(self, recall: float | Sequence[float] = 0.99, k: int = 10, queries: Any = None, **settings: Any) -> Any:
        """Choose one plan for all shards, measured on them together; see :meth:`matryo.Index.plan`."""
        from matryo.retrieve.plan.planner import choose_each

        recalls = [recall] if isinstance(recall, float | int) else list(recall)
        choices: list[Choice] = choose_each(self, queries, recalls=recalls, k=k, **settings)
        return choices[0] if isinstance(recall, float | int) else choices

    @checked
    def check(self, queries: Any, plan: Any, k: int | None = None, **settings: Any) -> Check:
        """Measure whether ``plan`` reaches its promised recall on these queries; see :meth:`matryo.Index.check`."""
        from matryo.retrieve.plan.check import check

        return check(self, queries, plan, k=k, **settings)

    @property
    def state(self) -> str:
        """A digest of the rows, the settings and the guides of all shards."""
        return joined_state([shard.state for shard in self.shards])

    def _nearest(
        self, queries: Array, k: int, plan: Plan | None, where: Mapping[str, Any] | None, threads: int
    ) -> list[Nearest]:
        """The best rows of each shard. One after another, each shard is told the k-th best score so far."""
        if threads > 1 and len(queries) < threads and len(self.shards) > 1:
            with ThreadPoolExecutor(min(threads, len(self.shards))) as pool:
                return list(pool.map(lambda shard: shard.nearest(queries, k, plan, where), self.shards))
        found: list[Nearest] = []
        bars = None
        for shard in self.shards:
            found.append(shard.nearest(queries, k, plan, where, threads, bars))
            if plan is None:
                bars = raised(bars, [one.scores for one in found], k)
        return found

    def _payloads_of(self, best: Nearest, source: Indices, k: int) -> list[list[dict[str, Any] | None]]:
        assert best.numbers is not None
        source, rows = widened(source, k, -1), widened(best.numbers, k, -1)
        out: list[list[dict[str, Any] | None]] = [[None] * k for _ in rows]
        for number, shard in enumerate(self.shards):
            here = source == number
            if here.any():
                found = shard.payloads(np.where(here, rows, -1))
                for query, place in zip(*np.nonzero(here), strict=True):
                    out[query][place] = found[query][place]
        return out

    def _check_fields(self, where: Mapping[str, Any]) -> None:
        """Raise if a filter compares a field that no payload of any shard has."""
        for field in Filter.of(where).compared:
            filled = [shard for shard in self.shards if len(shard)]
            if filled and not any(shard.where({field: {"$exists": True}}).count for shard in filled):
                filled[0].where({field: where[field]} if field in where else where, check=True)

    @checked
    def rotate(self, rotation: Any = "auto", *, queries: Any = None, progress: bool = True) -> Any:
        """Store all vectors in one rotation, fitted to the vectors of all shards; see :meth:`matryo.Index.rotate`.

        The shards are rewritten one after another. If interrupted, call it again: a search is right at any moment.
        """
        if isinstance(rotation, str) and rotation == "auto":
            from matryo.retrofit import Retrofit

            rotation = Retrofit.fit(self, queries, nesting=self.nesting, metric=self.metric, model=self.model,
                                    progress=progress)  # fmt: skip
            if rotation.rung == "identity":
                return None
        for shard in self.shards:
            made = shard.rotate(rotation, progress=progress)
        return made

    @checked
    def compact(self, *, background: bool = False, share: float | None = None) -> None:
        """Rewrite each shard in turn into as few files as possible; see :meth:`matryo.Index.compact`.

        ``background`` is for one shard at a time: ``index.shards[0].compact(background=True)``.
        """
        if background:
            cure = "compact without background, or one shard: index.shards[0].compact(background=True)"
            raise InputError("a sharded index is compacted shard by shard", got="background=True", cure=cure)
        for shard in self.shards:
            shard.compact(share=share)

    @checked
    def build(self, **guides: int | bool | None) -> None:
        """Build guides for every shard; see :meth:`matryo.Index.build`.

        Their layout is chosen on the largest shard, so that one plan fits all of them.
        """
        largest = max(self.shards, key=len)
        largest.build(**guides)
        wanted = largest.wanted()

        for shard in self.shards:
            if shard is not largest:
                shard.want(wanted)
                shard.build()
