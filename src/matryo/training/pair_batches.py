"""Batches of pairs: each query once an epoch, with one of its positives, and no other positive of it beside.

In a batch every candidate is a negative of all queries but its own. A candidate that belongs to two of them would be
pushed away from one, so such pairs are kept apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.errors import DataError
from matryo.training.order import Slices, epoch_order, pick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from matryo.data.dataset import PairSplit
    from matryo.training.batches import Inputs
    from matryo.training.distributed import Group
    from matryo.training.order import Rows
    from matryo.training.recipe import Recipe

__all__ = ["PairBatches", "Positives"]

_AHEAD = 4   # batches that may wait for a place: pairs that are nearly all alike cannot be kept apart


class PairBatches:
    """Pairs as (queries, candidates): the candidate of each query in its place, and behind them all hard negatives."""

    def __init__(
        self, split: PairSplit, queries: Inputs, candidates: Inputs, recipe: Recipe, group: Group
    ) -> None:
        kept = split.grades > 0   # others were judged, and do not belong together
        self.pairs = split.pairs[kept]
        self.positives = Positives(self.pairs, one_split=split.queries is split.candidates)
        self.negatives = split.negatives[kept] if recipe.objective.negatives else split.negatives[kept, :0]
        self.queries, self.candidates = queries, candidates
        self.slices = Slices(len(self.positives), recipe.loop.seed, recipe.loop.batch, group)
        self.slices.check("queries with a positive")
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


class Positives:
    """The pairs of each query, and the order in which epochs visit them."""

    def __init__(self, pairs: Rows, *, one_split: bool = False) -> None:
        if not len(pairs):
            raise DataError("training on pairs needs some", got="none", cure="check the split")
        self.order = np.argsort(pairs[:, 0], kind="stable")
        self.queries, self.starts, self.counts = np.unique(
            pairs[self.order, 0], return_index=True, return_counts=True
        )
        self.candidates = pairs[:, 1]
        self.one_split = one_split   # then an item is a positive of itself, whatever its pairs
        once = len(np.unique(self.candidates)) == len(pairs) == len(self.queries)
        self.apart = once and not one_split

    def __len__(self) -> int:
        return len(self.queries)

    def epoch(self, seed: int, epoch: int, batch: int) -> Rows:
        """A pair of each query, in the order of the epoch; those that would clash in a batch are kept apart."""
        drawn = self.order[self.starts + pick(seed, epoch, self.queries, self.counts)]
        order = epoch_order(seed, epoch, len(self))
        chosen: Rows = drawn[order if self.apart else self._kept_apart(order, drawn, batch)]
        return chosen

    def _kept_apart(self, order: Rows, drawn: Rows, batch: int) -> Rows:
        """``order``, where a query that does not suit its batch waits for a later one."""
        found: list[int] = []
        waiting: list[int] = []
        upcoming = iter(order.tolist())
        while len(found) < len(order):
            taken: set[int] = set()     # candidates of this batch
            barred: set[int] = set()    # all that belong to its queries
            room = min(batch, len(order) - len(found))
            left_over: list[int] = []
            for query in self._candidates_for(waiting, upcoming, left_over, batch):
                own = self._positives(query)
                candidate = int(self.candidates[drawn[query]])
                if candidate in barred or not taken.isdisjoint(own):
                    left_over.append(query)
                    continue
                found.append(query)
                taken.add(candidate)
                barred.update(own)
                room -= 1
                if not room:
                    break
            found += left_over[:room]   # nobody else is left: better here than never
            waiting = left_over[room:] + waiting
        return np.array(found, np.int64)

    def _candidates_for(
        self, waiting: list[int], upcoming: Iterator[int], left_over: list[int], batch: int
    ) -> Iterator[int]:
        """Those that wait come first, then new ones, until too many wait."""
        while waiting:
            yield waiting.pop(0)
        for query in upcoming:
            yield query
            if len(left_over) >= _AHEAD * batch:
                return

    def _positives(self, query: int) -> list[int]:
        start = self.starts[query]
        found: list[int] = self.candidates[self.order[start : start + self.counts[query]]].tolist()
        return [*found, int(self.queries[query])] if self.one_split else found
