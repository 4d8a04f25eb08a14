"""Batches of pairs: every epoch visits each query once, with one of its positives.

In a batch, every candidate is a negative of all queries but its own. A candidate that belongs to two queries of the
batch would be a false negative of one of them, and so would a hard negative of one query that belongs to another. Such
pairs are placed in different batches.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.errors import DataError
from matryo.training.batches.false_negatives import Positives, keys_of
from matryo.training.batches.order import Slices, chances, epoch_order, pick

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from matryo.arrays import Doubles, Integers
    from matryo.data.dataset import PairSplit
    from matryo.training.batches.open import Inputs
    from matryo.training.batches.reading import Waiting
    from matryo.training.distributed import Group
    from matryo.training.recipe.fields import Recipe

_AHEAD = 4   # batches of pairs that are searched to fill one batch; pairs that are nearly all equal cannot be separated


class PairBatches:
    """Batches of (queries, candidates): candidate i is the positive of query i, and all hard negatives follow."""

    def __init__(
        self, split: PairSplit, queries: Inputs, candidates: Inputs, recipe: Recipe, group: Group, waiting: Waiting
    ) -> None:
        kept = split.grades > 0   # pairs of grade 0 were judged not to belong together
        self.pairs = split.pairs[kept]
        if not len(self.pairs):
            raise DataError("training on pairs needs at least one pair", got="none", cure="check the split")
        positives = Positives(self.pairs, keys_of(split))
        negatives = split.negatives[kept] if recipe.objective.negatives else split.negatives[kept, :0]
        self.negatives = positives.true_negatives(self.pairs, negatives, recipe.loop.seed)
        self.order = PairOrder(self.pairs, self.negatives, positives)
        self.queries, self.candidates = queries, candidates
        self.slices = Slices(len(self.order), recipe.loop.seed, recipe.loop.batch, group)
        self.slices.check("queries with a positive", least=2)
        if split.by_label:
            _check_labels(len(np.unique(split.queries.labels[self.pairs[:, 0]])), self.slices)
        self.steps, self.group, self.waiting = self.slices.steps, group, waiting

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
        """Inputs, and as target the index of each query's candidate, which is its own."""
        chosen = self.order.epoch(self.slices.seed, epoch, self.slices.together)
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
            "a batch of pairs by label holds each label at most once",
            got=f"{count} labels, a global batch of {slices.together}",
            cure=f"use --loop.batch {max(1, count // slices.group.world)} or less, or --objective.kind classify",
        )


class PairOrder:
    """The pairs of each query, and the order in which an epoch visits them."""

    def __init__(self, pairs: Integers, negatives: Integers, positives: Positives) -> None:
        self.order = np.argsort(pairs[:, 0], kind="stable")
        self.queries, self.starts, self.counts = np.unique(
            pairs[self.order, 0], return_index=True, return_counts=True
        )
        self.positives = positives
        query_keys, candidate_keys = positives.keys
        self.keys = query_keys[self.queries]
        self.brought = candidate_keys[np.concatenate([pairs[:, 1:], negatives], 1)]   # [n, 1 + h]: keys of each pair
        positions = np.repeat(np.searchsorted(self.queries, pairs[:, 0]), self.brought.shape[1])
        self.conflicting = positives.conflicting(self.queries, np.stack([positions, self.brought.reshape(-1)], 1))

    def __len__(self) -> int:
        return len(self.queries)

    def epoch(self, seed: int, epoch: int, batch: int) -> Integers:
        """One pair per query, in the order of the epoch; pairs that conflict are in different batches."""
        drawn = self.order[self.starts + pick(seed, epoch, self.queries, self.counts)]
        order = epoch_order(seed, epoch, len(self))
        if self.conflicting.any():
            order = _spread(order, self.brought[drawn[order], 0], chances(seed, epoch, order))
            order = self._separated(order, drawn, batch)
        chosen: Integers = drawn[order]
        return chosen

    def _separated(self, order: Integers, drawn: Integers, batch: int) -> Integers:
        """``order`` changed so that a query that conflicts with its batch is moved to a later one.

        If no remaining query fits into a batch, queries that were used before fill it, and the remaining ones wait for
        another epoch. If those do not fit either, the batch has a conflict.
        """
        rows, ahead = order.tolist(), _AHEAD * batch
        fresh, again = iter(rows), cycle(rows)
        waiting: deque[int] = deque()
        chosen: list[int] = []
        while len(chosen) < len(rows):
            current = _Batch(self, drawn, min(batch, len(rows) - len(chosen)))
            left_over = current.fill(chain(_popped(waiting, ahead), islice(fresh, ahead)))
            if current.room:
                current.fill(islice(again, ahead))
                room = current.room
                current.queries |= dict.fromkeys(left_over[:room])
                left_over = left_over[room:]
            waiting.extendleft(reversed(left_over))
            chosen += current.queries
        return np.array(chosen, np.int64)


class _Batch:
    """A batch being filled: its queries, the keys of its candidates, and all keys that belong to its queries."""

    def __init__(self, order: PairOrder, drawn: Integers, size: int) -> None:
        self.order, self.drawn, self.size = order, drawn, size
        self.queries: dict[int, None] = {}
        self.taken: set[int] = set()
        self.barred: set[int] = set()

    @property
    def room(self) -> int:
        """The number of queries that still fit."""
        return self.size - len(self.queries)

    def fill(self, offered: Iterable[int]) -> list[int]:
        """Take queries that do not conflict until the batch is full; returns the offered ones that do."""
        left_over = []
        for query in offered:
            if not self._take(query):
                left_over.append(query)
            if not self.room:
                break
        return left_over

    def _take(self, query: int) -> bool:
        """Add ``query``, unless it is in the batch or conflicts with it."""
        if query in self.queries:
            return False
        if self.order.conflicting[query]:
            own = self.order.positives.of(self.order.keys[query])
            brought = self.order.brought[self.drawn[query]].tolist()
            if not (self.barred.isdisjoint(brought) and self.taken.isdisjoint(own)):
                return False
            self.taken.update(brought)
            self.barred.update(own)
        self.queries[query] = None
        return True


def _popped(waiting: deque[int], most: int) -> Iterator[int]:
    for _ in range(min(most, len(waiting))):
        yield waiting.popleft()


def _spread(order: Integers, keys: Integers, chance: Doubles) -> Integers:
    """``order`` with the items of one key spread evenly over the epoch; else frequent keys would fill its end."""
    by_key = np.argsort(keys, kind="stable")
    counts = np.unique(keys, return_counts=True)[1]
    turn = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = np.empty(len(keys))
    place[by_key] = (turn + chance[by_key]) / np.repeat(counts, counts)
    spread: Integers = order[np.argsort(place, kind="stable")]
    return spread
