"""Distributed training: the rank and device of this process, and communication with the others (``torchrun``)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import distributed

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@dataclass(frozen=True)
class Group:
    """This process among those of a distributed training."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean of ``value`` over all processes."""
        if self.world > 1:
            value = value.clone()
            distributed.all_reduce(value)
            value /= self.world
        return value

    def wait(self) -> None:
        """Wait until every process has reached this point."""
        if self.world > 1:
            distributed.barrier()


class Agreement:
    """Tells all processes at the same step whether any of them wants to stop, so that none waits for one that left.

    With several processes the answer is one step late, so that the CPU does not wait for the current step of the GPU.
    """

    def __init__(self, group: Group) -> None:
        self.group, on_gpu = group, group.device.type == "cuda"
        self.sent = torch.zeros((), device=group.device)
        self.received = torch.zeros((), pin_memory=on_gpu)
        self.copied = torch.cuda.Event() if on_gpu else None

    def __call__(self, yes: bool) -> bool:
        """Called once per step with this process's wish; returns whether all stop now."""
        if self.group.world == 1:
            return yes
        if self.copied is not None:
            self.copied.synchronize()
        agreed = bool(self.received)
        distributed.all_reduce(self.sent.fill_(float(yes)))
        self.received.copy_(self.sent, non_blocking=True)
        if self.copied is not None:
            self.copied.record()
        return agreed


@contextlib.contextmanager
def process_group(device: str) -> Iterator[Group]:
    """The process group that torchrun started, or this process alone, for the duration of the block."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Group(0, 1, choose_device(device))
        return
    chosen = choose_device(device, int(os.environ["LOCAL_RANK"]))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # Long, because the others wait while the first one trains a tokenizer or tests; torchrun detects dead processes.
    distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=timedelta(hours=12))
    try:
        yield Group(int(os.environ["RANK"]), world, chosen)
    finally:
        distributed.destroy_process_group()


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The torch device of ``name``; ``auto`` is this process's GPU if there is one, else the CPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", local_rank)
    if name == "auto":
        return torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError("the device cannot be used", got=f"{name!r}: {reason}", cure="use cpu or auto") from error
    return device
