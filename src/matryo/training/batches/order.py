"""Stateless randomness: the order of an epoch, the share of each process, and random draws by hashing.

Everything is a pure function of its keys, so an interruption loses no generator state and every process computes the
same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import DataError

if TYPE_CHECKING:
    from matryo.arrays import Doubles, Integers
    from matryo.training.distributed import Group

    Bits = np.ndarray[Any, np.dtype[np.uint64]]

GOLDEN, MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)   # the constants of splitmix64


def epoch_order(seed: int, epoch: int, count: int) -> Integers:
    """The order in which an epoch visits ``count`` items, equal in every process."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(count)


def mix(x: Bits) -> Bits:
    """The splitmix64 finaliser: every input bit changes about half of the output bits."""
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX[1])
    return x ^ (x >> np.uint64(31))


def pick(seed: int, epoch: int, items: Integers, choices: Integers) -> Integers:
    """One integer in [0, choices) per item: a hash of seed, epoch and item."""
    return (hashed(seed, epoch, items) % choices.astype(np.uint64)).astype(np.int64)


def chances(seed: int, epoch: int, items: Integers) -> Doubles:
    """One number in [0, 1) per item: a hash of seed, epoch and item."""
    return (hashed(seed, epoch, items) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hashed(seed: int, epoch: int, items: Integers) -> Bits:
    """64 random bits per item: a hash of seed, epoch and item."""
    return mix(items.astype(np.uint64) ^ mix(np.array([(seed << 32) ^ epoch], np.uint64)))


@dataclass(frozen=True)
class Slices:
    """The items of a shuffled epoch that this process sees at each step."""

    count: int
    seed: int
    batch: int
    group: Group

    @property
    def together(self) -> int:
        """Items per step, over all processes."""
        return self.batch * self.group.world

    @property
    def steps(self) -> int:
        """Full batches per epoch."""
        return self.count // self.together

    def epoch(self, epoch: int) -> Integers:
        """The items of this process, [steps, batch]."""
        rows: Integers = self.own(epoch_order(self.seed, epoch, self.count))
        return rows

    def own(self, order: Any) -> Any:
        """This process's share of ``order``, [steps, batch, …]."""
        order = order[: self.steps * self.together]
        return order.reshape(self.steps, self.group.world, self.batch, *order.shape[1:])[:, self.group.rank]

    def check(self, noun: str, least: int = 1) -> None:
        """Raise unless the items fill one batch; ``least`` is the smallest batch that the error may suggest."""
        if self.count < self.together:
            most = self.count // self.group.world
            fewer = f"use --loop.batch {most} or less" if most >= least else "add items to it"
            raise DataError(
                "the training split must fill one batch",
                got=f"{self.count} {noun}, a global batch of {self.together}",
                cure=fewer,
            )
