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

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.execute import Hits, execute
from matryo.retrieve.plan import Plan
from matryo.retrieve.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Self

    from matryo.nesting import Nesting
    from matryo.retrieve.metric import Metric
    from matryo.retrieve.store import Snapshot

    Array = np.ndarray[Any, np.dtype[Any]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["Index"]


class Index:
    """A store of vectors that can be searched; make one with :meth:`create` or :meth:`open`."""

    def __init__(self, store: Store) -> None:
        self.store = store

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

    def __len__(self) -> int:
        return len(self.store)

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
    ) -> Hits:
        """The ``k`` nearest of each query, [queries, k], nearest first; of equal scores the one added first.

        Without a ``plan``, and with ``exact``, every vector is scored at full dim. ``where`` restricts the search to
        payloads that match (``{"year": {"$gte": 2020}}``). Where there are fewer than ``k``, scores are −∞ and ids −1
        or "". A single query may be one-dimensional.
        """
        if exact and plan is not None:
            raise InputError("an exact search has no plan", got=plan, cure="give a plan, or exact=True")
        asked = np.atleast_2d(np.asarray(queries))
        snapshot = self.store.snapshot() if where is None else self.store.where(where)
        return _search(snapshot, asked, k, plan or Plan.single(self.nesting.dim, k=max(k, 1)), self.metric)

    def compact(self) -> None:
        """Write what is alive into as few files as possible, and give back the space of the rest."""
        self.store.compact()

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


def _search(snapshot: Snapshot, queries: Array, k: int, plan: Plan, metric: Metric) -> Hits:
    """Every segment by itself, and the best of all."""
    ids: list[Array] = []
    scores: list[Floats] = []
    for segment in snapshot.segments:
        rows, found = execute(segment.blocks, queries, plan, k, metric, segment.alive)
        ids.append(np.where(rows < 0, _nothing(segment.ids.take([0])), segment.ids.take(np.maximum(rows, 0))))
        scores.append(found)
    if not ids:
        plan.for_k(k).check_fits(snapshot.about.nesting)
        return Hits(np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32))
    every, worth = np.concatenate(ids, axis=1), np.concatenate(scores, axis=1)
    # Stable: segments follow each other in the order of insertion, which decides between equal scores.
    best = np.argsort(-worth, axis=1, kind="stable")[:, :k]
    return Hits(np.take_along_axis(every, best, axis=1), np.take_along_axis(worth, best, axis=1))


def _nothing(like: Array) -> Array:
    """The id of no vector at all."""
    return np.array("" if like.dtype.kind == "U" else -1, like.dtype)
