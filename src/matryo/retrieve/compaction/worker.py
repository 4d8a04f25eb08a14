"""The child process of a compaction: it fills the scratch index, and reports its progress as lines of JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.retrieve.compaction.pace import end_with, keeping_share
from matryo.retrieve.compaction.task import Task
from matryo.retrieve.index import Index
from matryo.retrieve.store.opening import create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matryo.retrieve.store.segments.pieces import Piece

_COPYING = 0.5   # the part of the work, if there are guides


def main(text: str) -> None:
    """Run a task, given as JSON text."""
    task = Task.from_json(text)
    remove = partial(remove_scratch, task.scratch)
    end_with(task.parent, remove)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)   # nothing else may print among the reports

    def report(**facts: Any) -> None:
        print(json.dumps(facts), file=out, flush=True)

    try:
        with keeping_share(task.share), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make(task, lambda progress: report(progress=progress))
        report(done=True)
    except BaseException as error:
        report(error=str(error) or type(error).__name__, kind=type(error).__name__)
        remove()
        raise


def remove_scratch(folder: str) -> None:
    """Remove the scratch index, also while another thread writes to it."""
    aside = f"{folder}-removed"
    with suppress(OSError):
        os.rename(folder, aside)   # noqa: PTH104 - what the thread writes later finds no folder, and fails
    shutil.rmtree(aside, ignore_errors=True)


def make(task: Task, report: Callable[[float], None]) -> None:
    """Copy the live rows to a new scratch index, and build its guides; ``report`` takes the part that is done."""
    with Index.open(task.folder) as index:
        wanted = index.wanted()
        with Index(create(Path(task.scratch), index.about), task.limits) as scratch:
            scratch._fill(_reported(index, task, report, _COPYING if wanted else 1.0), wanted)
            if wanted:
                scratch.build()


def _reported(index: Index, task: Task, report: Callable[[float], None], part: float) -> Iterator[Piece]:
    total = sum(segment.live for segment in index.snapshot().segments if segment.name in task.names)
    count = 0
    for piece in index._live_rows(task.names):
        yield piece
        count += len(piece.rows)
        report(part * min(1.0, count / max(1, total)))   # rows may be deleted meanwhile


if __name__ == "__main__":
    main(sys.argv[1])
