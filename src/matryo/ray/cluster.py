"""A Ray cluster that runs jobs on actors: dead actors are replaced, and their jobs run again elsewhere."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from matryo.arguments import as_integer, as_number
from matryo.errors import InputError, MatryoError, MissingExtra

__all__ = ["Cluster"]

_ATTEMPTS = 5   # of a job whose workers die
_LOOK = 1.0   # seconds between looks at the cluster


@dataclass
class Cluster:
    """Where jobs run: ``address`` is that of a Ray cluster, "auto", or "local" for one on this machine.

    A worker is an actor with ``cpus`` and ``gpus``. By default there are as many as the cluster has room for.
    """

    address: str = "local"
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    _depth: int = field(default=0, init=False)
    _started: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.workers is not None:
            as_integer(self.workers, "workers", 1)
        as_number(self.cpus, "cpus", 0.01, 1024, cure="pass cpus=1")
        as_number(self.gpus, "gpus", 0, 64, cure="pass gpus=1")

    def __enter__(self) -> Cluster:
        ray = _ray()
        self._depth += 1
        if not ray.is_initialized():
            local = self.address == "local"
            where: dict[str, Any] = {"include_dashboard": False} if local else {"address": self.address}
            if local and self.workers is not None:
                where["num_cpus"] = max(1, round(self.workers * self.cpus))
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **where)
            except (ConnectionError, ValueError, RuntimeError) as error:
                cure = "start one: ray start --head; or use local"
                raise InputError("a Ray cluster must answer at this address", got=self.address, cure=cure) from error
            self._started = True
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._started and not self._depth:
            _ray().shutdown()
            self._started = False

    def room(self) -> int:
        """The number of workers to start."""
        if self.workers is not None:
            return self.workers
        have = _ray().cluster_resources()
        room = have.get("CPU", 0) / self.cpus
        if self.gpus:
            room = min(room, have.get("GPU", 0) / self.gpus)
        if room < 1:
            got = f"{have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs"
            rule = f"a worker needs {self.cpus:g} CPUs and {self.gpus:g} GPUs"
            raise InputError(rule, got=got, cure="lower cpus or gpus, or add machines")
        return int(room)

    def share(self, value: Any) -> Any:
        """Put a value where all workers read it; pass what this returns as an argument of jobs."""
        return _ray().put(value)

    def run(
        self, worker: type, arguments: Sequence[Any], jobs: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number of the job, result) as jobs end; each is a call of ``worker(*arguments).run(*job)``.

        Errors of matryo in a job are raised here. A job whose worker died runs again on another one.
        """
        if not jobs:
            return
        pool = _Pool(_ray().remote(worker).options(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0), arguments)
        try:
            yield from pool.run(jobs, min(self.room(), len(jobs)))
        finally:
            pool.close()


class _Pool:
    """Actors, and the jobs that they run."""

    def __init__(self, make: Any, arguments: Sequence[Any]) -> None:
        self._make, self._arguments, self._ray = make, arguments, _ray()
        self._running: dict[Any, tuple[Any, int | None]] = {}   # the actor and its job; None while the actor starts
        self._failures = 0

    def run(self, jobs: Sequence[tuple[Any, ...]], workers: int) -> Iterator[tuple[int, Any]]:
        waiting = deque(range(len(jobs)))
        attempts = [0] * len(jobs)
        idle: list[Any] = []
        for _ in range(workers):
            self._start()
        left = len(jobs)
        while left:
            while waiting and idle:
                number, actor = waiting.popleft(), idle.pop()
                attempts[number] += 1
                self._running[actor.run.remote(*jobs[number])] = actor, number
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_LOOK)
            for ref in done:
                actor, ended = self._running.pop(ref)
                lost, result = self._result(ref)
                if lost:
                    self._start()
                    if ended is None:
                        self._count_failure()
                    elif attempts[ended] >= _ATTEMPTS:
                        rule = f"a job must end within {_ATTEMPTS} attempts"
                        cure = "give workers more memory: fewer rows per part, or fewer workers per machine"
                        raise InputError(rule, got="workers that died", cure=cure)
                    else:
                        waiting.appendleft(ended)
                else:
                    idle.append(actor)
                    if ended is not None:
                        left -= 1
                        yield ended, result

    def close(self) -> None:
        """End the actors."""
        for actor, _ in self._running.values():
            self._ray.kill(actor)

    def _start(self) -> None:
        actor = self._make.remote(*self._arguments)
        self._running[actor.__ray_ready__.remote()] = actor, None

    def _count_failure(self) -> None:
        self._failures += 1
        if self._failures > 100:
            cure = "see the logs of Ray: /tmp/ray/session_latest/logs"
            raise InputError("workers must start", got=f"{self._failures} that died", cure=cure)

    def _result(self, ref: Any) -> tuple[bool, Any]:
        """Whether the worker died, and else the result."""
        errors = self._ray.exceptions
        try:
            return False, self._ray.get(ref)
        except (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError, errors.WorkerCrashedError) as error:
            if "error raised in its creation task" in str(error):
                got = str(error).strip().splitlines()[-1]
                cure = "check that all machines see the same files and have the same packages"
                raise InputError("a worker could not start", got=got, cure=cure) from None
            return True, None
        except errors.RayTaskError as error:
            cause = error.as_instanceof_cause()
            if isinstance(error.cause, MatryoError):
                raise error.cause from None
            raise cause from None


def _ray() -> Any:
    with MissingExtra.unless_installed("ray", "ray"):
        import ray
    return ray


