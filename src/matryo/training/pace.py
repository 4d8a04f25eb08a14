"""The current speed of a training, and the share of the time that it waits for its data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matryo.training.batches.reading import Waiting
    from matryo.training.recipe.fields import Recipe

MUCH = 0.1   # the share of waiting that is worth a line
_SETTLED = 10.0   # seconds of training before it: the first batches and steps are slower


class Speed(NamedTuple):
    """Steps per second and the share of the time spent waiting for data, since the last report."""

    steps: float
    waiting: float


class Pace:
    """Measures from report to report, because a mean since the start would hide the current speed."""

    def __init__(self, waiting: Waiting, done: int) -> None:
        self.waiting, self.warned, self.trained = waiting, False, 0.0
        self.restart(done)

    def restart(self, done: int) -> None:
        """Forget the time since the last report, as after a test."""
        self.done, self.began, self.waited = done, time.monotonic(), self.waiting.seconds

    def report(self, done: int) -> Speed:
        """The speed since the last report or restart, ``done`` steps after the start of training."""
        seconds = max(time.monotonic() - self.began, 1e-9)
        speed = Speed((done - self.done) / seconds, min(1.0, (self.waiting.seconds - self.waited) / seconds))
        self.trained += seconds
        self.restart(done)
        return speed

    def advice(self, speed: Speed, recipe: Recipe, items: str) -> str:
        """A line with the cure, once, if the training waits much; else empty."""
        if self.warned or speed.waiting <= MUCH or self.trained < _SETTLED:
            return ""
        self.warned = True
        cure = "a faster tokenizer or more processors would help"
        if items == "images":
            side = 2 * max(recipe.data.size, recipe.data.size_end, recipe.data.test_size)
            cure = f"store smaller images once with `matryo pack --side {side}`, or use more processors"
        return f"training waits for {items} {speed.waiting:.0%} of the time: {cure} (docs: training, speed)"
