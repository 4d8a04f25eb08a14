"""Index: vectors in a folder that are searched with few dims first, and more for those that are left.

>>> import tempfile
>>> from matryo.nesting import Nesting
>>> index = Index.create(f"{tempfile.mkdtemp()}/mine", nesting=Nesting([2, 4]))
>>> index.add([[3, 4, 0, 0], [0, 1, 1, 0], [4, 3, 0, 1]], ids=["a", "b", "c"])
['a', 'b', 'c']
>>> index.search([3, 4, 0, 0], k=2).ids.tolist()
[['a', 'c']]
>>> index.search([3, 4, 0, 0], k=2, plan=Plan.adaptive(2, 4, keep=2, k=2)).scores.round(2)
array([[1.  , 0.94]], dtype=float32)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError, InputError
from matryo.retrieve.engines.execute import Hits
from matryo.retrieve.guides.guided import KINDS, Guided, build_guide
from matryo.retrieve.guides.partition import tile_dim
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from matryo.nesting import Nesting
    from matryo.retrieve.plan.choice import Choice, Cost
    from matryo.retrieve.store import Snapshot
    from matryo.retrieve.vectors.metric import Metric

    Array = np.ndarray[Any, np.dtype[Any]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["Index"]

_PROBES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15)   # shares of the rows that a planner tries to visit
_EFS = (16, 32, 64, 128, 256, 512)   # candidates that it tries to hold

class Index:
    """A store of vectors that can be searched; make one with :meth:`create` or :meth:`open`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._guided = Guided(store.about.metric)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        nesting: Nesting,
        *,
        metric: Metric = "cosine",
        dtype: str = "float32",
        int8_up_to: int = 0,
    ) -> Index:
        """Make an empty index in a new folder, open for writing.

        Vectors lie in the blocks of ``nesting``, so its dims are those that a plan may read. Blocks up to
        ``int8_up_to`` are kept in 8 bits too, for first stages that read a quarter of the bytes.
        """
        return cls(Store.create(folder, nesting, dtype=dtype, int8_up_to=int8_up_to, metric=metric))

    @classmethod
    def open(cls, folder: str | Path, *, writable: bool = False) -> Index:
        """Open an index: for reading, beside a writer and other readers, or as its only writer."""
        return cls(Store.open(folder, writable=writable))

    @property
    def nesting(self) -> Nesting:
        """The dims that a plan may read."""
        return self.store.about.nesting

    @property
    def metric(self) -> Metric:
        """How vectors are compared: "cosine", "ip" or "l2"; a larger score is nearer."""
        return self.store.about.metric

    @property
    def count(self) -> int:
        """How many vectors there are."""
        return len(self.store)

    @property
    def dtype(self) -> str:
        """What vectors are stored as in full precision."""
        return self.store.about.dtype

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"Index({str(self.store.path)!r}, {len(self):,} × {self.nesting.dim}, {self.metric})"

    def add(self, vectors: Any, ids: Any = None, payload: Any = None) -> list[int] | list[str]:
        """Add vectors, durably; ids are by default 0, 1, 2, …, a payload is a dict of JSON values a vector."""
        return self.store.add(vectors, ids, payload)

    def add_batches(self, batches: Iterable[Any]) -> int:
        """Add one batch after the other, each durably; returns how many vectors there were."""
        return self.store.add_batches(batches)

    def upsert(self, vectors: Any, ids: Any, payload: Any = None) -> None:
        """Add vectors, or replace those whose ids are there."""
        self.store.upsert(vectors, ids, payload)

    def delete(self, ids: Any) -> None:
        """Remove vectors; every id must be there."""
        self.store.delete(ids)

    def get(self, ids: Any) -> tuple[Floats, list[dict[str, Any]]]:
        """Vectors [n, d] and payloads, by id."""
        return self.store.get(ids)

    def search(
        self,
        queries: Any,
        k: int = 10,
        plan: Plan | None = None,
        exact: bool = False,
        where: Mapping[str, Any] | None = None,
        threads: int = 1,
    ) -> Hits:
        """The ``k`` nearest of each query, [queries, k], nearest first; of equal scores the one added first.

        Without a ``plan``, and with ``exact``, it is the ``k`` nearest at full dim that are found; a sketch (see
        :meth:`build`) spares reading most vectors. ``where`` restricts the search to payloads that match
        (``{"year": {"$gte": 2020}}``). Where there are fewer than ``k``, scores are −∞ and ids −1 or "". A single
        query may be one-dimensional; many are shared by ``threads``.
        """
        if threads < 1:
            raise InputError("threads must be at least 1", got=threads, cure="use as many as there are cores")
        if exact and plan is not None:
            raise InputError("an exact search has no plan", got=plan, cure="give a plan, or exact=True")
        asked = np.asarray(queries)
        asked = asked[None] if asked.ndim == 1 else asked
        while True:
            now = self.store.snapshot()
            snapshot = now if where is None else self.store.where(where)
            try:
                return self._shared(snapshot, asked, k, plan, min(threads, max(1, len(asked))))
            except (EmbeddingsError, OSError):
                # A guide may have been replaced since; what is damaged stays so.
                if self.store.snapshot() is now:
                    raise

    def build(
        self, *, sketch: bool | None = None, partition: int | bool | None = None, graph: int | None = None
    ) -> None:
        """Make the guides that speed searches up, for what has none yet; they are part of the index from then on.

        ``sketch`` is for exact search, ``partition`` for plans with ``probe`` and for first stages in int8 (a dim of
        the nesting, or True for one chosen), ``graph`` for plans with ``ef`` (a dim; needs faiss). Without any, those
        that were asked for before, or else a sketch and partitions. What is added later has none until the next call,
        and is scanned until then.
        """
        if sketch is partition is graph is None:
            wanted = self.store.wanted()
            sketch, partition, graph = (wanted.get(kind, {}).get("dim", kind in wanted) for kind in KINDS)
            if not wanted:
                sketch = partition = True
        dims = {"partition": tile_dim(self.nesting) if partition is True else partition, "graph": graph}
        for asked in filter(None, dims.values()):
            Plan.single(asked).check_fits(self.nesting)
        for kind, dim in {"sketch": sketch, **dims}.items():
            if dim:
                fields = {} if kind == "sketch" else {"dim": dim}
                self.store.build(kind, fields, partial(build_guide, kind, self.metric, fields))

    def to(self, device: str | None) -> Index:
        """Search on a ``device`` of torch, such as "cuda", from now on; None searches with the processor again."""
        engine = None
        if device is not None:
            from matryo.retrieve.engines.torch.engine import torch_engine

            engine = torch_engine(device)
        self._guided = Guided(self.metric, engine)
        return self

    def plan(
        self,
        recall: float = 0.99,
        k: int = 10,
        queries: Any = None,
        *,
        cost: Cost = "latency",
        budget: float | None = None,
        labels: tuple[Any, Any] | None = None,
        confidence: float = 0.95,
        seed: int = 0,
        progress: bool = True,
    ) -> Choice:
        """The cheapest plan that finds ``recall`` of the ``k`` nearest, on queries like these, with ``confidence``.

        See :func:`matryo.retrieve.plan.planner.choose`.
        """
        from matryo.retrieve.plan.planner import choose

        return choose(
            self, queries, recall=recall, k=k, cost=cost, budget=budget, labels=labels, confidence=confidence,
            seed=seed, progress=progress,
        )  # fmt: skip

    @property
    def openings(self) -> Sequence[Plan]:
        """The first stages that plans of this index may have, for the planner."""
        from matryo.retrieve.plan.planner import openings

        wanted, nesting = self.store.wanted(), self.nesting
        found = [*openings(nesting, int8=[dim for dim in nesting.dims if dim <= self.store.about.int8_up_to])]
        if "partition" in wanted:
            tiles = Stage(wanted["partition"]["dim"], 1, "int8")
            found += [Plan((tiles,), probe=probe) for probe in (None, *_PROBES)]
        if "graph" in wanted:
            found += [Plan((Stage(wanted["graph"]["dim"], 1),), ef=ef) for ef in _EFS]
        return tuple(dict.fromkeys(found))

    def sample(self, count: int, seed: int) -> tuple[Array, Array]:
        """So many vectors drawn at random: ids and vectors."""
        ids = self.store.snapshot().ids()
        chosen = np.sort(np.random.default_rng(seed).choice(len(ids), count, replace=False))
        return ids[chosen], self.get(ids[chosen].tolist())[0]

    def compact(self) -> None:
        """Write what is alive into as few files as possible, give back the space of the rest, and guide all of it."""
        self.store.compact()
        if self.store.wanted():
            self.build()

    def _shared(self, snapshot: Snapshot, queries: Array, k: int, plan: Plan | None, threads: int) -> Hits:
        """A part of the queries for each thread; kernels and products let the others run."""
        if threads == 1:
            return self._search(snapshot, queries, k, plan)
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(lambda part: self._search(snapshot, part, k, plan), np.array_split(queries, threads)))
        return Hits(np.concatenate([one.ids for one in found]), np.concatenate([one.scores for one in found]))

    def _search(self, snapshot: Snapshot, queries: Array, k: int, plan: Plan | None) -> Hits:
        """Every segment by itself, and the best of all."""
        self._check_guide(snapshot, plan)
        ids: list[Array] = []
        scores: list[Floats] = []
        for segment in snapshot.segments:
            rows, found = self._guided.search(segment, queries, plan, k)
            ids.append(np.where(rows < 0, _nothing(segment.ids.take([0])), segment.ids.take(np.maximum(rows, 0))))
            scores.append(found)
        if not ids:
            (plan or Plan.single(self.nesting.dim)).for_k(k).check_fits(self.nesting)
            return Hits(np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32))
        if len(ids) == 1:
            return Hits(ids[0], scores[0])
        every, worth = np.concatenate(ids, axis=1), np.concatenate(scores, axis=1)
        # Stable: segments follow each other in the order of insertion, which decides between equal scores.
        best = np.argsort(-worth, axis=1, kind="stable")[:, :k]
        return Hits(np.take_along_axis(every, best, axis=1), np.take_along_axis(worth, best, axis=1))

    def _check_guide(self, snapshot: Snapshot, plan: Plan | None) -> None:
        for name, kind in (("probe", "partition"), ("ef", "graph")):
            asked = getattr(plan, name, None)
            built = any(kind in segment.guides for segment in snapshot.segments)
            if plan is not None and asked is not None and not built and kind not in self.store.wanted():
                raise InputError(
                    f"a plan with {name} needs an index with a {kind}",
                    got=f"{name}={asked}",
                    cure=f"index.build({kind}={plan.stages[0].dim})",
                )

    def verify(self) -> None:
        """Read every byte and raise, naming the file, where a checksum differs."""
        self.store.verify()

    def close(self) -> None:
        """Let go of the files."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing(like: Array) -> Array:
    """The id of no vector at all."""
    return np.array("" if like.dtype.kind == "U" else -1, like.dtype)
