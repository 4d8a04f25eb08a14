"""Read batches of image crops in threads, ahead of the step, and measure how long the device waited for them.

Decoding, cropping and resizing release the interpreter lock, so threads suffice; they share the split and its open
files. A batch is a pure function of its request, however many threads read it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from matryo.data.images.crops import crop_into
from matryo.data.images.decode import processors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from torch import Tensor

    from matryo.data import ImageSplit
    from matryo.data.images.crops import Box

_AHEAD = 2   # batches that are read while one is trained on, or more if they are too small to occupy all threads
_TASK = 8   # most images per task
_POLL = 0.001   # seconds between two looks at the device while waiting for a batch


class Crops(NamedTuple):
    """A batch to read: the image at each of ``indices`` with its box, resized to ``size`` × ``size`` pixels."""

    indices: Sequence[int]
    size: int
    box_of: Callable[[int, int, int], Box]
    """The box of the image at a position in the batch, of (height, width)."""


class Waiting:
    """Counts the seconds that the device had nothing to do because its next batch had not been read."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0

    def until(self, futures: Iterable[Future[Any]]) -> None:
        """Wait until all ``futures`` are done."""
        unread = {future for future in futures if not future.done()}
        if not unread:
            return
        if self.device.type == "cuda":   # the device may still compute the steps that were launched
            launched = torch.cuda.Event()
            launched.record()
            while not launched.query():
                unread = wait(unread, timeout=_POLL).not_done
                if not unread:
                    return
        began = time.monotonic()
        wait(unread)
        self.seconds += time.monotonic() - began


def threads_for(split: ImageSplit, most: int) -> int:
    """How many threads read a split: at most ``most`` and this process's share of the processors of its machine."""
    share = max(1, processors() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    small = split.shape is not None and split.shape[0] * split.shape[1] <= _SMALL
    return min(most, share, _FEW if small else share)


_SMALL, _FEW = 64 * 64, 2   # of images of so few pixels, most of the time is spent holding the interpreter lock


def read_ahead(
    split: ImageSplit, batches: Iterable[Crops], threads: int, waiting: Waiting
) -> Iterator[Tensor]:
    """Yield the pixels of each of ``batches`` in order, uint8 [batch, size, size, 3]; pinned memory for a GPU.

    With 0 threads, a batch is read when it is asked for.
    """
    pinned = waiting.device.type == "cuda"
    if threads == 0:
        for batch in batches:
            pixels = _room(batch, pinned)
            _read(split, batch, pixels.numpy(), 0, len(batch.indices))
            yield pixels
        return
    queue: deque[tuple[Tensor, list[Future[None]]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="matryo-reader")
    try:
        for batch in batches:
            queue.append(_start(pool, split, batch, threads, pinned))
            if len(queue) > max(_AHEAD, -(-2 * threads // max(1, len(batch.indices)))):
                yield _finished(queue.popleft(), waiting)
        while queue:
            yield _finished(queue.popleft(), waiting)
    finally:   # also if the training stops within an epoch
        pool.shutdown(cancel_futures=True)


def copied(values: Tensor, device: torch.device) -> Tensor:
    """``values`` on the device; the CPU does not wait for the copy, which needs pinned memory."""
    if device.type == "cuda" and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def _start(
    pool: ThreadPoolExecutor, split: ImageSplit, batch: Crops, threads: int, pinned: bool
) -> tuple[Tensor, list[Future[None]]]:
    """Hand the images of a batch to the threads."""
    pixels, count = _room(batch, pinned), len(batch.indices)
    step = min(_TASK, max(1, count // (2 * threads)))
    out = pixels.numpy()
    tasks = [pool.submit(_read, split, batch, out, low, min(low + step, count)) for low in range(0, count, step)]
    return pixels, tasks


def _finished(started: tuple[Tensor, list[Future[None]]], waiting: Waiting) -> Tensor:
    pixels, tasks = started
    waiting.until(tasks)
    for task in tasks:
        task.result()   # raises the error of the first image that cannot be read
    return pixels


def _room(batch: Crops, pinned: bool) -> Tensor:
    # torch keeps pinned memory for the next batch, and lends it again only after the copy to the device.
    return torch.empty(len(batch.indices), batch.size, batch.size, 3, dtype=torch.uint8, pin_memory=pinned)


def _read(split: ImageSplit, batch: Crops, out: Any, first: int, last: int) -> None:
    """Read the images at positions ``first`` … ``last`` − 1 of a batch."""
    for position in range(first, last):
        crop_into(
            split, int(batch.indices[position]),
            lambda height, width, position=position: batch.box_of(position, height, width), out[position],
        )  # fmt: skip
