"""The recall of an index of codes among all of its vectors, measured while they are added.

A choice of a code measures recall on a sample. Among more vectors neighbours lie closer together, and recall is lower.

>>> rows = np.random.default_rng(0).normal(size=(50, 8)).astype("f4")
>>> filling = Filling("cosine", most=5)
>>> ids = [filling.see(batch, range(start, start + 10)) for start, batch in
...        zip(range(0, 50, 10), filling.sampled(np.split(rows, 5)))]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.retrieve.compress.codes import scoring
from matryo.retrofit.choice import lower_bound
from matryo.retrofit.reading import Reservoir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matryo.arrays import Array, Floats

_QUERIES = 200
_LEVEL = 0.05   # one minus the confidence of the lower bound


class Filling:
    """Random rows as queries: :meth:`sampled` reads all vectors once, :meth:`see` takes them as they are added."""

    def __init__(self, metric: str, k: int = 10, most: int = _QUERIES, seed: int = 0) -> None:
        self._metric, self._k = metric, k
        self._reservoir = Reservoir(most, np.empty(0, np.int64), np.random.default_rng(seed))
        self._queries: Floats | None = None
        self._own: list[Any] = []
        self._scores: Floats | None = None
        self._ids: Array | None = None
        self.seen = 0

    def sampled(self, batches: Iterable[Floats]) -> Iterator[Floats]:
        """Yield the batches, of which a random sample becomes the queries."""
        for batch in batches:
            self._reservoir.add(np.asarray(batch, np.float32))
            yield batch

    def see(self, vectors: Array, ids: Sequence[Any]) -> None:
        """Take notice of added vectors, in the order of :meth:`sampled`, and of their ids."""
        rows, queries = self._reservoir.sample()
        if self._queries is None:
            self._queries = scoring.prepared(queries, self._metric)
            self._scores = np.empty((len(queries), 0), np.float32)
            self._ids = np.empty((len(queries), 0), np.object_)
        assert self._scores is not None and self._ids is not None
        added = scoring.prepared(np.asarray(vectors, np.float32), self._metric)
        scores = self._queries @ added.T
        if self._metric == "l2":
            scores = 2 * scores - np.square(added).sum(axis=1)
        near = scoring.best_of(scores, self._k + 1)
        names = np.empty(len(ids), np.object_)
        names[:] = list(ids)
        both = np.concatenate([self._scores, np.take_along_axis(scores, near, axis=1)], axis=1)
        every = np.concatenate([self._ids, names[near]], axis=1)
        kept = scoring.best_of(both, self._k + 1)
        self._scores, self._ids = np.take_along_axis(both, kept, axis=1), np.take_along_axis(every, kept, axis=1)
        here = rows[(rows >= self.seen) & (rows < self.seen + len(ids))] - self.seen
        self._own += names[here].tolist()
        self.seen += len(ids)

    def recall(self, index: Any) -> dict[str, Any] | None:
        """Return the mean share of the true ``k`` nearest that the index finds, with a lower bound."""
        if self._ids is None or self.seen != self._reservoir.seen or self.seen <= self._k:
            return None
        found = index.search(self._reservoir.sample()[1], self._k + 1).ids
        shares = []
        for own, some, right in zip(self._own, found.tolist(), self._ids.tolist(), strict=True):
            near, true = ([id for id in each if id != own][: self._k] for each in (some, right))
            shares.append(len({*near} & {*true}) / self._k)
        values = np.array(shares)
        return {"k": self._k, "recall": float(values.mean()), "lower": max(0.0, lower_bound(values, _LEVEL)),
                "confidence": 1 - _LEVEL, "queries": len(values), "rows": self.seen}  # fmt: skip
