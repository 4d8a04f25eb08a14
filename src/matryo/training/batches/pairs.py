"""Batches of pairs: each query once an epoch, with one of its positives, and nothing beside that belongs to it too.

In a batch every candidate is a negative of all queries but its own. One that belongs to two of them, or the hard
negative of one that belongs to another, would be pushed away from where it belongs; such pairs are kept apart.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.errors import DataError
from matryo.training.batches.false_negatives import Belonging, keys_of
from matryo.training.batches.order import Slices, chances, epoch_order, pick

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from matryo.data.dataset import PairSplit
    from matryo.training.batches.open import Inputs
    from matryo.training.batches.order import Rows
    from matryo.training.distributed import Group
    from matryo.training.recipe.fields import Recipe

__all__ = ["PairBatches", "Positives"]

_AHEAD = 4   # batches that may wait for a place: pairs that are nearly all alike cannot be kept apart


class PairBatches:
    """Pairs as (queries, candidates): the candidate of each query in its place, and behind them all hard negatives."""

    def __init__(
        self, split: PairSplit, queries: Inputs, candidates: Inputs, recipe: Recipe, group: Group
    ) -> None:
        kept = split.grades > 0   # others were judged, and do not belong together
        self.pairs = split.pairs[kept]
        if not len(self.pairs):
            raise DataError("training on pairs needs some", got="none", cure="check the split")
        belonging = Belonging(self.pairs, keys_of(split))
        negatives = split.negatives[kept] if recipe.objective.negatives else split.negatives[kept, :0]
        self.negatives = belonging.true_negatives(self.pairs, negatives, recipe.loop.seed)
        self.positives = Positives(self.pairs, self.negatives, belonging)
        self.queries, self.candidates = queries, candidates
        self.slices = Slices(len(self.positives), recipe.loop.seed, recipe.loop.batch, group)
        self.slices.check("queries with a positive", least=2)
        if split.by_label:
            _check_labels(len(np.unique(split.queries.labels[self.pairs[:, 0]])), self.slices)
        self.steps, self.group = self.slices.steps, group

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
        """Inputs, and which candidate belongs to which query: the one in the same place."""
        chosen = self.positives.epoch(self.slices.seed, epoch, self.slices.together)
        rows = self.slices.own(chosen)[start:]
        queries, own = np.ascontiguousarray(np.moveaxis(self.pairs[rows], 2, 0))
        candidates = np.concatenate([own, self.negatives[rows].reshape(len(rows), -1)], 1)
        target = torch.arange(self.slices.batch, device=self.group.device)
        both = zip(self.queries.stream(epoch, queries), self.candidates.stream(epoch, candidates), strict=True)
        for inputs in both:
            yield inputs, target


def _check_labels(count: int, slices: Slices) -> None:
    if slices.together > count:
        raise DataError(
            "a batch of pairs by label holds each label once at most",
            got=f"{count} labels, a global batch of {slices.together}",
            cure=f"use --loop.batch {max(1, count // slices.group.world)} or less, or --objective.kind classify",
        )


class Positives:
    """The pairs of each query, and the order in which epochs visit them."""

    def __init__(self, pairs: Rows, negatives: Rows, belonging: Belonging) -> None:
        self.order = np.argsort(pairs[:, 0], kind="stable")
        self.queries, self.starts, self.counts = np.unique(
            pairs[self.order, 0], return_index=True, return_counts=True
        )
        self.belonging = belonging
        asked, known = belonging.keys
        self.asked = asked[self.queries]
        self.brought = known[np.concatenate([pairs[:, 1:], negatives], 1)]   # [n, 1 + h]: what comes with each pair
        places = np.repeat(np.searchsorted(self.queries, pairs[:, 0]), self.brought.shape[1])
        self.entangled = belonging.entangled(self.queries, np.stack([places, self.brought.reshape(-1)], 1))

    def __len__(self) -> int:
        return len(self.queries)

    def epoch(self, seed: int, epoch: int, batch: int) -> Rows:
        """A pair of each query, in the order of the epoch; those that would clash in a batch are kept apart."""
        drawn = self.order[self.starts + pick(seed, epoch, self.queries, self.counts)]
        order = epoch_order(seed, epoch, len(self))
        if self.entangled.any():
            order = _spread(order, self.brought[drawn[order], 0], chances(seed, epoch, order))
            order = self._kept_apart(order, drawn, batch)
        chosen: Rows = drawn[order]
        return chosen

    def _kept_apart(self, order: Rows, drawn: Rows, batch: int) -> Rows:
        """``order``, where a query that does not suit its batch waits for a later one.

        Where all that are left suit no batch, others come a second time, and these wait for another epoch. Where nobody
        suits, they clash: better here than never.
        """
        rows, ahead = order.tolist(), _AHEAD * batch
        fresh, again = iter(rows), cycle(rows)
        waiting: deque[int] = deque()
        found: list[int] = []
        while len(found) < len(rows):
            here = _Batch(self, drawn, min(batch, len(rows) - len(found)))
            left_over = here.fill(chain(_popped(waiting, ahead), islice(fresh, ahead)))
            if here.room:
                here.fill(islice(again, ahead))
                room = here.room
                here.queries |= dict.fromkeys(left_over[:room])
                left_over = left_over[room:]
            waiting.extendleft(reversed(left_over))
            found += here.queries
        return np.array(found, np.int64)


class _Batch:
    """A batch under way: its queries, the keys of its candidates, and all keys that belong to its queries."""

    def __init__(self, known: Positives, drawn: Rows, size: int) -> None:
        self.known, self.drawn, self.size = known, drawn, size
        self.queries: dict[int, None] = {}
        self.taken: set[int] = set()
        self.barred: set[int] = set()

    @property
    def room(self) -> int:
        """How many more it takes."""
        return self.size - len(self.queries)

    def fill(self, offered: Iterable[int]) -> list[int]:
        """Take whoever suits of those ``offered``, until it is full; gives those that do not."""
        left_over = []
        for query in offered:
            if not self._takes(query):
                left_over.append(query)
            if not self.room:
                break
        return left_over

    def _takes(self, query: int) -> bool:
        if query in self.queries:
            return False
        if self.known.entangled[query]:
            own = self.known.belonging.of(self.known.asked[query])
            brought = self.known.brought[self.drawn[query]].tolist()
            if not (self.barred.isdisjoint(brought) and self.taken.isdisjoint(own)):
                return False
            self.taken.update(brought)
            self.barred.update(own)
        self.queries[query] = None
        return True


def _popped(waiting: deque[int], most: int) -> Iterator[int]:
    for _ in range(min(most, len(waiting))):
        yield waiting.popleft()


def _spread(order: Rows, keys: Rows, chance: np.ndarray[Any, np.dtype[np.float64]]) -> Rows:
    """``order``, with those of one key evenly over the epoch: else the last batches would be of common keys alone."""
    by_key = np.argsort(keys, kind="stable")
    counts = np.unique(keys, return_counts=True)[1]
    turn = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = np.empty(len(keys))
    place[by_key] = (turn + chance[by_key]) / np.repeat(counts, counts)
    spread: Rows = order[np.argsort(place, kind="stable")]
    return spread
