"""Run jobs in processes that share an object in memory, several at a time: trainings on one GPU share their images."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

__all__ = ["run_jobs"]

_SHARED: list[Any] = []   # for the processes that are forked


def run_jobs(
    work: Callable[[Any, Any], str], jobs: Sequence[Any], shared: Any, *, processes: int, minutes: float
) -> Iterator[str]:
    """The lines that ``work(job, shared)`` returns, as the jobs end; exits with an error if any failed.

    Nothing may have used a GPU before, because a forked process cannot use it then. No job starts after ``minutes``.
    """
    begin = time.monotonic()
    _SHARED[:] = [shared]
    failed = 0
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        waiting = [pool.submit(_run, work, job, begin + 60 * minutes, processes) for job in jobs]
        for done in as_completed(waiting):
            failed += done.result().startswith("failed")
            yield f"{time.monotonic() - begin:4.0f} s  {done.result()}"
    if failed:
        raise SystemExit(f"{failed} of {len(jobs)} jobs failed")


def _run(work: Callable[[Any, Any], str], job: Any, end: float, processes: int) -> str:
    import torch

    if time.monotonic() > end:
        return f"skipped, as time is over: {job}"
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    try:
        return work(job, _SHARED[0])
    except Exception:
        return f"failed: {job}\n{traceback.format_exc()[-2500:]}"
