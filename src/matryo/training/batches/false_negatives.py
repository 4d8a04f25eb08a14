"""False-negative filter: which candidates belong to which query, so that no positive is used as a negative.

Items are compared by content, not by row: equal texts are one item wherever they occur. In pairs by label, all items of
a label are one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.dataset import TextSplit
from matryo.training.batches.order import pick

if TYPE_CHECKING:
    from matryo.arrays import Bools, Integers
    from matryo.data.dataset import PairSplit

_TRIES = 16   # draws of another negative; more are needed only if nearly all candidates are positives of the query


def keys_of(split: PairSplit) -> tuple[Integers, Integers]:
    """One key per query and one per candidate, counted from 0; equal items have equal keys.

    Texts are compared without case and extra spaces. Images are equal only if they are the same row.
    """
    queries, candidates = split.queries, split.candidates
    sides = [queries] if candidates is queries else [queries, candidates]
    hashes = [side.labels for side in sides] if split.by_label else [_hashes(side, n) for n, side in enumerate(sides)]
    keys = np.unique(np.concatenate(hashes), return_inverse=True)[1].reshape(-1)
    return keys[: len(queries)], keys[-len(candidates) :]


def _hashes(side: Any, number: int) -> Any:
    if not isinstance(side, TextSplit):
        return np.arange(len(side), dtype=np.uint64) + np.uint64(number << 62)
    texts = (" ".join(side.text(row).casefold().split()) for row in range(len(side)))
    # Not hash(), which differs between processes: all must compute the same order.
    return np.frombuffer(b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts), "<u8")


class Positives:
    """The keys that belong to each query: those of its candidates, and its own."""

    def __init__(self, pairs: Integers, keys: tuple[Integers, Integers]) -> None:
        self.keys, self.count = keys, 1 + int(max(keys[0].max(), keys[1].max()))
        queries = keys[0][pairs[:, 0]]
        own = np.unique(queries)
        # A (query key, positive key) pair as one number, sorted.
        codes = np.concatenate([queries * self.count + keys[1][pairs[:, 1]], own * self.count + own])
        self.codes = np.unique(codes)
        self.starts = np.searchsorted(self.codes, np.arange(self.count + 1) * self.count)

    def of(self, key: int) -> list[int]:
        """The keys that belong to the query with ``key``."""
        positives: list[int] = (self.codes[self.starts[key] : self.starts[key + 1]] % self.count).tolist()
        return positives

    def true_negatives(self, pairs: Integers, negatives: Integers, seed: int) -> Integers:
        """``negatives`` [n, h] of ``pairs`` with the query's positives replaced by random candidates."""
        kept = negatives.copy()
        queries = np.repeat(self.keys[0][pairs[:, 0]], negatives.shape[1])
        flat, unchecked = kept.reshape(-1), np.arange(kept.size)
        for turn in range(_TRIES):
            codes = queries[unchecked] * self.count + self.keys[1][flat[unchecked]]
            nearest = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
            unchecked = unchecked[self.codes[nearest] == codes]
            flat[unchecked] = pick(seed, turn, unchecked, np.full(len(unchecked), len(self.keys[1])))
        return kept

    def conflicting(self, queries: Integers, brought: Integers) -> Bools:
        """Whether each of ``queries`` may conflict with another: one brings a candidate that belongs to the other.

        ``brought`` [n, 2] lists (position in ``queries``, key) of every candidate that may come with that query.
        """
        own = self.keys[0][queries]
        sizes = np.diff(self.starts)[own]
        positions = np.repeat(np.arange(len(own)), sizes)
        within = np.arange(len(positions)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positives = self.codes[np.repeat(self.starts[own], sizes) + within] % self.count
        is_positive = np.zeros(self.count, bool)
        is_positive[positives] = True
        both = np.concatenate([positives * len(own) + positions, brought[:, 1] * len(own) + brought[:, 0]])
        keys, positions = np.divmod(np.unique(both), len(own))
        contested = is_positive & (np.bincount(keys, minlength=self.count) > 1)
        return np.bincount(positions[contested[keys]], minlength=len(own)) > 0
