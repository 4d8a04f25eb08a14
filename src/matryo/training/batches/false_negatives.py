"""What belongs to which query, told by what items are and not by their rows: who must not meet in a batch.

Equal texts are one thing wherever they stand, and of pairs by label all items of a label are.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.data.dataset import TextSplit
from matryo.training.batches.order import pick

if TYPE_CHECKING:
    from matryo.data.dataset import PairSplit
    from matryo.training.batches.order import Rows

__all__ = ["Belonging", "keys_of"]

_TRIES = 16   # draws of another negative: more are needed only where nearly all candidates belong to the query


def keys_of(split: PairSplit) -> tuple[Rows, Rows]:
    """A number for each query and each candidate, counted from 0: the same one for what is the same.

    Texts are told apart but for capitals and spaces. Images are known by their rows alone.
    """
    one, other = split.queries, split.candidates
    sides = [one] if other is one else [one, other]
    found = [side.labels for side in sides] if split.by_label else [_hashes(side, n) for n, side in enumerate(sides)]
    keys = np.unique(np.concatenate(found), return_inverse=True)[1].reshape(-1)
    return keys[: len(one)], keys[-len(other) :]


def _hashes(side: Any, number: int) -> Any:
    if not isinstance(side, TextSplit):
        return np.arange(len(side), dtype=np.uint64) + np.uint64(number << 62)
    texts = (" ".join(side.text(row).casefold().split()) for row in range(len(side)))
    # Not hash(), which differs from process to process: all must agree on an order.
    return np.frombuffer(b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts), "<u8")


class Belonging:
    """Which keys belong to which: of each query its positives, and what is the same as itself."""

    def __init__(self, pairs: Rows, keys: tuple[Rows, Rows]) -> None:
        self.keys, self.count = keys, 1 + int(max(keys[0].max(), keys[1].max()))
        asked = keys[0][pairs[:, 0]]
        itself = np.unique(asked)
        codes = np.concatenate([asked * self.count + keys[1][pairs[:, 1]], itself * self.count + itself])
        self.codes = np.unique(codes)
        self.starts = np.searchsorted(self.codes, np.arange(self.count + 1) * self.count)

    def of(self, key: int) -> list[int]:
        """The keys that belong to a query's."""
        found: list[int] = (self.codes[self.starts[key] : self.starts[key + 1]] % self.count).tolist()
        return found

    def true_negatives(self, pairs: Rows, negatives: Rows, seed: int) -> Rows:
        """``negatives`` [n, h] of the ``pairs``, where those that belong to the query give way to others at random."""
        kept = negatives.copy()
        asked = np.repeat(self.keys[0][pairs[:, 0]], negatives.shape[1])
        flat, places = kept.reshape(-1), np.arange(kept.size)
        for turn in range(_TRIES):
            codes = asked[places] * self.count + self.keys[1][flat[places]]
            near = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
            places = places[self.codes[near] == codes]
            flat[places] = pick(seed, turn, places, np.full(len(places), len(self.keys[1])))
        return kept

    def entangled(self, queries: Rows, touched: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each of ``queries`` may clash with another: it brings what belongs to that, or the other way round.

        ``touched`` [n, 2] are (place in ``queries``, key) of every candidate that may come with it.
        """
        own = self.keys[0][queries]
        sizes = np.diff(self.starts)[own]
        places = np.repeat(np.arange(len(own)), sizes)
        within = np.arange(len(places)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        belonging = self.codes[np.repeat(self.starts[own], sizes) + within] % self.count
        belongs = np.zeros(self.count, bool)
        belongs[belonging] = True
        both = np.concatenate([belonging * len(own) + places, touched[:, 1] * len(own) + touched[:, 0]])
        keys, places = np.divmod(np.unique(both), len(own))
        contested = belongs & (np.bincount(keys, minlength=self.count) > 1)
        return np.bincount(places[contested[keys]], minlength=len(own)) > 0
