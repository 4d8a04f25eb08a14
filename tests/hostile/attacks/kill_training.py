"""Kill -9 a training at random times, resume it, and compare its weights with those of an uninterrupted one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

from attacks.outcome import Outcome, forked
from attacks.tiny_run import model_digest, train
from matryo.training.run.paths import RunFolder

PROMISE = "A training killed at any moment resumes to the same weights, bit for bit, and its run verifies."
BOUNDED, SOAK = 2, 300


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill ``count`` trainings, a third of them again while they resume."""
    chance, outcome = random.Random(seed), Outcome(0)
    train(folder / "whole")   # also loads what a first training loads, so that the children start at once
    wanted = model_digest(folder / "whole")
    begin = time.monotonic()
    forked(train, folder / "timed")
    seconds = time.monotonic() - begin
    while outcome.attempts < count:
        work, moments = folder / "work", []
        for _ in range(1 + (chance.random() < 1 / 3)):
            moments.append(chance.uniform(0, 1.1 * seconds))
            outcome.attempts += _killed(work, moments[-1])   # not one that ended before
        left = sorted(path.name for path in work.glob("*")) if work.is_dir() else []
        end = forked(_finish, work)
        if end.kind != "returned" or end.value != wanted:
            after = ", ".join(f"{moment:.3f}" for moment in moments)
            said = end.text or "other weights"
            outcome.failures.append(f"killed after {after} of {seconds:.3f} s, leaving {left}: {said}")
        shutil.rmtree(work, ignore_errors=True)
    return outcome


def _killed(out: Path, moment: float) -> bool:
    """Train in a child process and kill it after ``moment`` seconds; returns False if it had ended before."""
    child = os.fork()
    if child == 0:
        try:
            train(out)
        finally:
            os._exit(0)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _finish(out: Path) -> str:
    train(out)
    assert RunFolder(out).verify()
    strays = [path.name for path in out.glob(".*")]
    assert not strays, strays
    return model_digest(out)
