"""Batches across requests: one or several threads do the work, and what waits meanwhile forms the next batch.

Nothing waits for a batch to fill. A batch takes as much as should be done within ``step`` seconds, at the speed seen so
far, so a short request never waits behind the whole of a long one: requests take turns. A request that would have to
wait longer than ``wait`` seconds is refused at once; so is one whose turn comes much later than was expected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matryo.serve.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    Work = Callable[[Hashable, list[Any]], Any]
    """Takes the kind of a batch and its items, and returns one result per item."""

__all__ = ["Batcher"]

_QUANTUM = 4   # a batch is shared by about this many requests before one of them gets a second turn
_LATE = 1.5   # times `wait`: a request that has waited longer is refused, so that those behind it need not be
_FADE = 0.2   # the weight of the latest batch in the measured speed


@dataclass(eq=False)
class _Job:
    """The items of one request."""

    kind: Hashable
    items: Any
    costs: Sequence[float]
    future: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop
    since: float
    next: int = 0
    done: int = 0
    results: list[Any] = field(default_factory=list)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.results = [None] * len(self.items)

    @property
    def ended(self) -> bool:
        return self.error is not None or self.done == len(self.items) or self.future.cancelled()

    def settle(self) -> None:
        """Hand over the results; in the thread of the loop."""
        if not self.future.done():
            if self.error is not None:
                self.future.set_exception(self.error)
            else:
                self.future.set_result(self.results)


_Part = tuple[_Job, int, int]
"""The items of a request from one place to another."""


def _settle_all(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()


class Batcher:
    """Threads that do ``work`` for the items of many requests, ``lanes`` batches at a time."""

    def __init__(
        self, work: Work, *, step: float, wait: float, least: float, most: float,
        seen: Callable[[float, float], None], name: str = "batcher", lanes: int = 1,
    ) -> None:  # fmt: skip
        self._work, self._step, self._wait, self._least, self._most, self._seen = work, step, wait, least, most, seen
        self._lanes, self._busy, self._beside = lanes, 0, float(lanes)
        self._jobs: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._running: dict[int, tuple[float, float]] = {}   # by thread: when its batch began, and the cost of that
        self.waiting = 0.0
        """The cost of what is queued or in progress."""
        self.speed = 0.0
        """Cost per second of one thread; 0 before the first batch."""
        self._threads = [threading.Thread(target=self._run, args=(lane,), name=f"matryo-{name}", daemon=True)
                         for lane in range(lanes)]  # fmt: skip
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def beside(self) -> int:
        """How many batches are in progress at a time, lately: each of them should use this part of the cores."""
        return max(1, round(self._beside + 0.25))   # a batch too many on the cores costs more than an idle core

    def admit(self) -> None:
        """Raise if another request would wait too long; a long one is served when nothing else waits."""
        ahead = self._ahead()
        if ahead > self._wait:
            raise self._busy_for(ahead)

    async def run(self, items: Any, costs: Sequence[float], kind: Hashable = None) -> list[Any]:
        """The results of ``items``, in order; only items of one ``kind`` share a batch."""
        if not len(items):
            return []
        loop = asyncio.get_running_loop()
        job = _Job(kind, items, costs, loop.create_future(), loop, time.perf_counter())
        with self._ready:
            if self._closed:
                raise ApiError(503, "the server is shutting down: try again later", code="shutting_down", retry=1)
            self.admit()
            self._jobs.append(job)
            self.waiting += sum(costs)
            self._ready.notify()
        return await job.future

    def close(self) -> None:
        """Finish what is queued, and end the threads."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, lane: int) -> None:
        while True:
            with self._ready:
                while not self._jobs and not self._closed:
                    self._ready.wait()
                if not self._jobs:
                    return
                kind, parts, cost, late = self._take()
                self._busy += 1
                self._beside += ((self._lanes if self._jobs else self._busy) - self._beside) * _FADE
                if self._jobs:
                    self._ready.notify()
                start = time.perf_counter()
                self._running[lane] = start, cost
            self._do(kind, parts)
            seconds = time.perf_counter() - start
            with self._ready:
                self._busy -= 1
                del self._running[lane]
                self.waiting = max(0.0, self.waiting - cost)
                if parts:
                    speed = cost / max(seconds, 1e-6)
                    self.speed += (speed - self.speed) * (_FADE if self.speed else 1.0)
            self._settle([*late, *(job for job, _, _ in parts)])
            if parts:
                self._seen(cost, seconds)

    def _ahead(self) -> float:
        """The seconds until all that is queued or in progress would be done, at the speed seen so far."""
        if not self.speed:
            return 0.0
        now = time.perf_counter()
        done = sum(min(cost, (now - start) * self.speed) for start, cost in tuple(self._running.values()))
        return max(0.0, self.waiting - done) / (self.speed * self._lanes)

    def _busy_for(self, seconds: float) -> ApiError:
        message = f"the server is busy: the queue would take {seconds:.1f} seconds, more than its {self._wait:g}"
        return ApiError(429, message, code="busy", retry=seconds - self._wait / 2)

    def _take(self) -> tuple[Hashable, list[_Part], float, list[_Job]]:
        """The parts of the next batch: requests of the kind of the first one take turns until the batch is full.

        Also returns the requests that are refused, because their turn comes too late.
        """
        budget = min(self.speed * self._step, self._most)
        if (idle := self._lanes - self._busy) > 1:   # the others take their share
            queued = sum(sum(job.costs[job.next :]) for job in self._jobs)
            budget = min(budget, queued / idle)
        budget = max(budget, self._least)
        kind, spent = self._jobs[0].kind, 0.0
        parts: list[_Part] = []
        late: list[_Job] = []
        later: deque[_Job] = deque()   # of another kind, or with items left
        latest = time.perf_counter() - _LATE * self._wait
        while self._jobs and (spent < budget or not parts):
            job = self._jobs.popleft()
            if job.future.cancelled():
                self.waiting -= sum(job.costs[job.next :])
                continue
            if job.since < latest and not job.next:
                job.error = self._busy_for(_LATE * self._wait)
                self.waiting -= sum(job.costs)
                late.append(job)
                continue
            if job.kind != kind:
                later.append(job)
                continue
            first, own = job.next, 0.0
            share = budget - spent if not self._jobs else budget / _QUANTUM
            while job.next < len(job.items) and (own < share or job.next == first) and spent < budget + self._least:
                own += job.costs[job.next]
                spent += job.costs[job.next]
                job.next += 1
            parts.append((job, first, job.next))
            if job.next < len(job.items):
                later.append(job)
        self._jobs = deque([*self._jobs, *later])
        return kind, parts, spent, late

    def _do(self, kind: Hashable, parts: list[_Part]) -> None:
        """Do the work; if it fails, do it for each request alone, so that only the one at fault fails."""
        if not parts:
            return
        items = [item for job, first, end in parts for item in job.items[first:end]]
        try:
            results = self._work(kind, items)
        except Exception as error:
            if len(parts) == 1:
                parts[0][0].error = error
            else:
                for part in parts:
                    self._do(kind, [part])
            return
        done = 0
        for job, first, end in parts:
            job.results[first:end] = results[done : done + end - first]
            with self._ready:
                job.done += end - first
            done += end - first

    def _settle(self, jobs: list[_Job]) -> None:
        """Wake the loops of the requests that are complete; one call per loop."""
        ended: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        for job in jobs:
            if job.ended:
                ended.setdefault(job.loop, []).append(job)
                with self._ready:
                    if job.error is not None and job in self._jobs:   # its other items are not done
                        self._jobs.remove(job)
                        self.waiting = max(0.0, self.waiting - sum(job.costs[job.next :]))
        for loop, own in ended.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle_all, own)
