"""The process of one index: it builds or opens the index, tunes it, and measures when it is told to."""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from matryo import Index
from matryo.files import parse_json
from support.retrieval_peers import Settings, size
from support.unseen_peers import Search, Variant, variants
from support.unseen_task import K, Task
from support.unseen_tuning import Tuner, ask, timed

OURS = ("matryo", "matryo exact")


@dataclass(frozen=True)
class Job:
    """What the process needs to know."""

    task: Task
    title: str
    cache: Path
    peers: Path | None
    """A folder of installed packages, which is searched after our own."""
    limit: int
    """Seconds of CPU time for a build."""


@dataclass(frozen=True)
class Tuned:
    """A search that reaches a recall on the tuning queries, as far as one can know from them."""

    settings: Settings
    search: Search
    figures: dict[str, Any] = field(default_factory=dict)


class Ready(Protocol):
    """An index that is built."""

    about: dict[str, Any]

    def tune(self, target: float) -> Tuned | None:
        """None if the index cannot reach ``target``."""


class Ours:
    """An index with its defaults; only the recall is given."""

    def __init__(self, job: Job) -> None:
        self.exact, self.queries = job.title == "matryo exact", job.task.queries("tuning")
        self.folder = tempfile.TemporaryDirectory()
        vectors, begin, cpu = np.array(job.task.raw), time.perf_counter(), time.process_time()
        self.index = Index.create(Path(self.folder.name) / "index", job.task.about["nesting"], metric=job.task.metric)
        self.index.add(vectors)
        self.index.build()
        self.about = {
            "build_seconds": time.perf_counter() - begin, "build_cpu_seconds": time.process_time() - cpu,
            "index_bytes": size(Path(self.folder.name)), "version": f"matryo {metadata.version('matryo')}",
        }  # fmt: skip

    def tune(self, target: float) -> Tuned:
        """Plan."""
        index = self.index
        if self.exact:
            return Tuned({}, lambda query: index.search(query[None], k=K, exact=True).ids[0])
        begin = time.perf_counter()
        choice = index.plan(recall=target, queries=self.queries, progress=False)
        seconds = time.perf_counter() - begin
        settings: Settings = {} if choice.plan is None else replace(choice.plan, promise=None).to_dict()
        return Tuned(settings, lambda query: index.search(query[None], k=K, plan=choice).ids[0],
                     {"plan_seconds": seconds})  # fmt: skip


class Peer:
    """An index of another library, kept in a folder."""

    def __init__(self, job: Job) -> None:
        database = job.task.database
        variant = next(one for one in variants(database) if one.title == job.title)
        folder = job.cache / job.task.name / kept_name(variant)
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=folder.parent))
            (part / "index").mkdir()
            resource.setrlimit(resource.RLIMIT_CPU, (round(time.process_time()) + job.limit, resource.RLIM_INFINITY))
            begin, cpu = time.perf_counter(), time.process_time()
            variant.build(database, part / "index", **variant.settings)
            seconds = time.perf_counter() - begin, time.process_time() - cpu
            resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            (part / "seconds.json").write_text(str(list(seconds)), encoding="utf-8")
            part.rename(folder)
        opened = variant.open(database, folder / "index", **variant.settings, **variant.view)
        wall, cpu = parse_json((folder / "seconds.json").read_text(encoding="utf-8"))
        self.tuner = Tuner(job.task, opened)
        self.about = {"build_seconds": wall, "build_cpu_seconds": cpu, "index_bytes": opened.nbytes,
                      "version": f"{variant.package} {metadata.version(variant.package)}"}  # fmt: skip

    def tune(self, target: float) -> Tuned | None:
        """The fastest settings of the ladder."""
        begin, found = time.perf_counter(), self.tuner.fastest(target)
        if found is None:
            return None
        settings, recall = found
        return Tuned(settings, self.tuner.opened.search(settings),
                     {"tuning_recall@10": recall, "tune_seconds": time.perf_counter() - begin})  # fmt: skip


def kept_name(variant: Variant) -> str:
    """The name of the folder of a build."""
    return "-".join([variant.engine, *map(str, variant.settings.values())]).replace(" ", "-").replace(",", "-")


def serve(pipe: Connection, job: Job, targets: list[float]) -> None:
    """Build, tune for every target, measure the recall of the test queries; then time turns until told to stop."""
    if job.peers:
        sys.path.append(str(job.peers))
        importlib.invalidate_caches()
    ready: Ready = Ours(job) if job.title in OURS else Peer(job)
    tests, found, recalls = job.task.queries("test"), dict[float, Tuned](), dict[str, float]()
    pipe.send(ready.about)
    for target in targets:
        tuned = ready.tune(target)
        if tuned is None:
            pipe.send(None)
            continue
        found[target] = tuned
        if (key := str(tuned.settings)) not in recalls:
            recalls[key] = job.task.recall("test", ask(tuned.search, tests))
        wall, cpu = timed(tuned.search, tests[:100])
        pipe.send({"settings": tuned.settings, "recall@10": recalls[key], "first_seconds": wall, "first_cpu": cpu,
                   **tuned.figures})  # fmt: skip
    while (order := pipe.recv()) is not None:
        target, count = order
        search = renewed(ready, found[target])
        timed(search, tests[-50:])   # wakes caches
        pipe.send(timed(search, tests[:count]))


def renewed(ready: Ready, tuned: Tuned) -> Search:
    """Set the settings again: those of another target may be set."""
    return ready.tuner.opened.search(tuned.settings) if isinstance(ready, Peer) else tuned.search


class BuildError(Exception):
    """An index that could not be built: the reason, and whether another try is pointless."""


class Worker:
    """The process, as seen from outside."""

    def __init__(self, job: Job, targets: list[float]) -> None:
        context = multiprocessing.get_context("spawn")
        self.title = job.title
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, job, targets), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.about: dict[str, Any] = self.pipe.recv()
        except EOFError as error:
            self.process.join()
            slow = self.process.exitcode == -signal.SIGXCPU
            reason = f"its build took over {job.limit} s of CPU time" if slow else "it failed with the error above"
            raise BuildError(reason, slow) from error
        self.figures: dict[float, dict[str, Any]] = {}
        self.turns: dict[float, list[tuple[float, float]]] = {}
        for target in targets:
            if (figures := self.pipe.recv()) is not None:
                self.figures[target], self.turns[target] = figures, []

    def turn(self, target: float, seconds: float, most: int) -> None:
        """Time so many queries as take about ``seconds``."""
        each = max(self.figures[target]["first_cpu"] / 100, 1e-6)
        count = int(np.clip(seconds / each, min(50, most), most))
        self.pipe.send((target, count))
        wall, cpu = self.pipe.recv()
        self.turns[target].append((wall / count, cpu / count))

    def stop(self) -> None:
        """End the process."""
        self.pipe.send(None)
        self.process.join(10)


def clean(cache: Path) -> None:
    """Remove builds that were interrupted."""
    for path in cache.glob("*/tmp*"):
        shutil.rmtree(path)
