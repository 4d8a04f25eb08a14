"""One process or many: who am I, where do I compute, and the mean over everyone. ``torchrun`` starts many."""

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

__all__ = ["Agreement", "Group", "choose_device", "process_group"]


@dataclass(frozen=True)
class Group:
    """This process among those that train together."""

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
        """Until every process is here."""
        if self.world > 1:
            distributed.barrier()


class Agreement:
    """Whether any process has said yes, told to all of them at the same step, so that none waits for one that left.

    Several processes hear it a step later: a GPU is then waited for no longer than the step before.
    """

    def __init__(self, group: Group) -> None:
        self.group, on_gpu = group, group.device.type == "cuda"
        self.said = torch.zeros((), device=group.device)
        self.heard = torch.zeros((), pin_memory=on_gpu)
        self.copied = torch.cuda.Event() if on_gpu else None

    def __call__(self, yes: bool) -> bool:
        """Say yes or no, once a step; gives what was agreed on."""
        if self.group.world == 1:
            return yes
        if self.copied is not None:
            self.copied.synchronize()
        agreed = bool(self.heard)
        distributed.all_reduce(self.said.fill_(float(yes)))
        self.heard.copy_(self.said, non_blocking=True)
        if self.copied is not None:
            self.copied.record()
        return agreed


@contextlib.contextmanager
def process_group(device: str) -> Iterator[Group]:
    """The group that torchrun started (or this process alone), for as long as the block lasts."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Group(0, 1, choose_device(device))
        return
    chosen = choose_device(device, int(os.environ["LOCAL_RANK"]))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # The others wait while the first one learns a tokenizer or measures; torchrun notices who died.
    distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=timedelta(hours=12))
    try:
        yield Group(int(os.environ["RANK"]), world, chosen)
    finally:
        distributed.destroy_process_group()


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """``auto`` is this process's GPU if there is one, else the CPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", local_rank)
    if name == "auto":
        return torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError("that device cannot be used", got=f"{name!r}: {reason}", cure="use cpu or auto") from error
    return device
