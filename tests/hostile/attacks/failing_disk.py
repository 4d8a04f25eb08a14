"""Let single system calls of a writer and of a reader fail."""

from __future__ import annotations

import random
from pathlib import Path

from attacks import faults
from attacks.faults import require as require
from attacks.model import LIMITS, Held, Index, Steps, contents, create, look
from attacks.outcome import Outcome, ended

PROMISE = "If the disk fails to read, write, sync, rename, map or open a file, the call raises and has done nothing."
BOUNDED, SOAK = 25, 2000


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make ``count`` calls in which one system call fails, or all from one on."""
    outcome: Outcome = faults.on_failing_disk(__name__, "attack", count, seed, folder, folder=folder)
    return outcome


def attack(count: int, seed: int, folder: Path) -> Outcome:
    """Run with the failing disk loaded."""
    chance = random.Random(seed)
    outcome, steps, held, struck = Outcome(0), Steps(chance), Held(), 0
    index = create(folder / "index")
    for attempt in range(count):
        step = steps.draw(held)
        call = chance.choice([*faults.CALLS])
        error = chance.choice([*faults.ERRORS] if call == "write" else ["EIO", "ENOSPC"])
        countdown, lasting = chance.choice((1, 2, 3, chance.randint(1, 30))), chance.random() < 0.5
        reads = chance.random() < 0.2
        with_new = chance.random() < 0.3   # a new handle has nothing in memory
        if with_new:
            index.close()
            index = Index.open(index.path, writable=True, limits=LIMITS)
        faults.arm(index.path, call, countdown, error, lasting=lasting)
        end = ended(contents, index, held) if reads else ended(step.apply, index)
        failed = faults.disarm()
        struck += bool(failed)
        after = step.after(held)
        done = not reads and end.kind == "returned"
        # SQLite itself reports an EIO of a read as damage.
        damaged = "damaged" in end.text and not (call == "read" and error == "EIO")
        failure = f"raised {end.text}" if end.kind == "bare" or damaged else ""
        if reads and end.kind == "returned":
            failure = end.value[0]
        problem, now = look(index, after if done else held)
        failure = failure or problem or look(index.path, after if done else held)[0]
        held = now
        outcome.attempts += 1
        if failure:
            name = "read" if reads else step.name
            how = f"{call} {countdown}{' and later' if lasting else ''} {error}, {failed} failed"
            outcome.failures.append(f"attempt {attempt}, seed {seed}, {name}, {how}: {failure}")
            ended(index.close)
            index, held = create(folder / f"index after {attempt}"), {}
    if struck < count // 5:
        outcome.failures.append(f"only {struck} of {count} faults were met: nothing was proved")
    return outcome
