"""The time of training steps: as the device sees it, without waiting for each."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import torch

__all__ = ["Clock", "summary", "wait"]


class Clock:
    """The time between ticks, as the device sees it: no step waits for the one before."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.ticks: list[Any] = []

    def tick(self) -> None:
        """Now."""
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.ticks.append(event)
        else:
            self.ticks.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        """Between each two."""
        if self.cuda:
            torch.cuda.synchronize()
            return [float(one.elapsed_time(other)) for one, other in pairwise(self.ticks)]
        return [1000 * (other - one) for one, other in pairwise(self.ticks)]


def summary(values: list[float]) -> dict[str, float]:
    """p20, p50 and p80 of milliseconds."""
    p20, _, _, p80 = statistics.quantiles(values, n=5)
    return {"p20": round(p20, 3), "p50": round(statistics.median(values), 3), "p80": round(p80, 3)}


def wait(device: torch.device) -> None:
    """Until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
