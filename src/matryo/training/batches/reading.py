"""Read batches in threads, ahead of the step, and measure how long the device waited for them.

Decoding, cropping, resizing and tokenizing release the interpreter lock, so threads suffice; they share the split and
its open files. A batch is a pure function of its request, however many threads read it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from matryo.data.images.crops import crop_into
from matryo.data.images.decode import processors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from matryo.arrays import Integers
    from matryo.data import ImageSplit
    from matryo.data.images.crops import Box

_T = TypeVar("_T")
_R = TypeVar("_R")
Started = tuple[list[Future[Any]], Callable[[], _R]]
"""The tasks of an item, and the function that returns its result when they are done."""

_AHEAD = 2   # batches that are read while one is trained on, or more if they are too small to occupy all threads
_TASK = 8   # most images per task
_SMALL, _FEW = 64 * 64, 2   # images of so few pixels hold the interpreter lock for most of the time: more threads wait
_POLL = 0.0005   # seconds between two looks at the device while waiting for a batch


class Crops(NamedTuple):
    """A batch to read: the image at each of ``indices`` with its box, resized to ``size`` × ``size`` pixels."""

    indices: Sequence[int] | Integers
    size: int
    box_of: Callable[[int, int, int], Box]
    """The box of the image at a position in the batch, of (height, width)."""


class Waiting:
    """Counts the seconds that the device had nothing to do because its next batch had not been read."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0

    def until(self, tasks: Sequence[Future[Any]]) -> None:
        """Wait until all ``tasks`` are done."""
        unread = deque(tasks)
        if self.device.type == "cuda":   # the device may still compute the steps that were launched
            launched = torch.cuda.Event()
            launched.record()
            while _drop_done(unread) and not launched.query():
                time.sleep(_POLL)
        if _drop_done(unread):
            began = time.monotonic()
            wait(unread)
            self.seconds += time.monotonic() - began


def _drop_done(tasks: deque[Future[Any]]) -> bool:
    """Remove the tasks in front that are done; returns whether others are left."""
    while tasks and tasks[0].done():
        tasks.popleft()
    return bool(tasks)


def threads_for(split: ImageSplit, most: int) -> int:
    """How many threads read a split: at most ``most`` and this process's share of the processors of its machine."""
    share = max(1, processors() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    small = split.shape is not None and split.shape[0] * split.shape[1] <= _SMALL
    return min(most, share, _FEW if small else share)


def read_ahead(split: ImageSplit, batches: Iterable[Crops], threads: int, waiting: Waiting) -> Iterator[Tensor]:
    """Yield the pixels of each of ``batches`` in order, uint8 [batch, size, size, 3]; pinned memory for a GPU.

    With 0 threads, a batch is read at the moment it is needed.
    """
    pinned = waiting.device.type == "cuda"

    def start(pool: Executor, batch: Crops) -> Started[Tensor]:
        pixels, count = _room(batch, pinned), len(batch.indices)
        out, step = pixels.numpy(), min(_TASK, max(1, count // (2 * max(1, threads))))
        lows = range(0, count, step)
        tasks = [pool.submit(_read, split, batch, out, low, min(low + step, count)) for low in lows]
        return tasks, lambda: pixels

    # Enough of small batches to occupy all threads.
    return _in_order(batches, start, threads, lambda batch: -(-2 * threads // max(1, len(batch.indices))), waiting)


def prepare_ahead(work: Callable[[_T], _R], items: Iterable[_T], waiting: Waiting) -> Iterator[_R]:
    """Yield ``work(item)`` in order, computed by one thread ahead of the step; ``work`` may use threads of its own."""

    def start(pool: Executor, item: _T) -> Started[_R]:
        task = pool.submit(work, item)
        return [task], task.result

    return _in_order(items, start, 1, lambda _: 0, waiting)


def _in_order(
    items: Iterable[_T], start: Callable[[Executor, _T], Started[_R]], threads: int, ahead: Callable[[_T], int],
    waiting: Waiting,
) -> Iterator[_R]:   # fmt: skip
    """Start each of ``items`` and yield its result, with at least 2 or ``ahead(item)`` more that are under way."""
    queue: deque[Started[_R]] = deque()
    with _pool(threads) as pool:
        try:
            for item in items:
                queue.append(start(pool, item))
                if len(queue) > (max(_AHEAD, ahead(item)) if threads else 0):
                    yield _finished(queue.popleft(), waiting)
            while queue:
                yield _finished(queue.popleft(), waiting)
        finally:   # also if the training stops within an epoch
            pool.shutdown(cancel_futures=True)


def _pool(threads: int) -> Executor:
    return ThreadPoolExecutor(threads, thread_name_prefix="matryo-reader") if threads else _Here()


class _Here(Executor):
    """Computes in the calling thread."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Compute now."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _finished(started: Started[_R], waiting: Waiting) -> _R:
    tasks, result = started
    waiting.until(tasks)
    for task in tasks:
        task.result()   # raises the error of the first image that cannot be read
    return result()


def copied(values: Tensor, device: torch.device) -> Tensor:
    """``values`` on the device; the CPU does not wait for the copy, which needs pinned memory."""
    if device.type == "cuda" and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def _room(batch: Crops, pinned: bool) -> Tensor:
    # torch keeps pinned memory for the next batch, and lends it again only after the copy to the device.
    return torch.empty(len(batch.indices), batch.size, batch.size, 3, dtype=torch.uint8, pin_memory=pinned)


def _read(split: ImageSplit, batch: Crops, out: Any, first: int, last: int) -> None:
    """Read the images at positions ``first`` … ``last`` − 1 of a batch."""
    for position in range(first, last):
        crop_into(split, int(batch.indices[position]), partial(batch.box_of, position), out[position])
