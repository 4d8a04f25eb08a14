"""Use an index while the process may open few more files."""

from __future__ import annotations

import random
import resource
from pathlib import Path

from attacks.model import LIMITS, Held, Index, Step, Steps, contents, create, filled, look
from attacks.outcome import End, Outcome, ended, forked

PROMISE = "If too many files are open, a call raises an error that says so, has done nothing, and works again later."
BOUNDED, SOAK = 12, 1000


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make ``count`` calls with 0 to 40 free file descriptors, each in a fork, and look at what is left."""
    chance = random.Random(seed)
    outcome, steps, held = Outcome(0), Steps(chance), Held()
    look(folder / "warm", filled(folder / "warm", chance, partition=4))   # imports need files too
    path = folder / "index"
    create(path).close()
    for attempt in range(count):
        step = steps.draw(held) if chance.random() < 0.7 else None
        free = chance.randint(0, 40)
        end = forked(short_of_files, path, step, free, held)
        failure = f"{end.kind}: {end.text}"
        if end.kind == "returned":
            call, failure = end.value
            if call.kind == "bare" or "damaged" in call.text:
                failure = f"raised {call.text}"
            elif step is not None and call.kind == "returned":
                held = step.after(held)
        outcome.attempts += 1
        if failure:
            name = step.name if step else "read"
            outcome.failures.append(f"attempt {attempt}, seed {seed}, {name}, {free} free: {failure}")
            path, held = folder / f"index after {attempt}", {}
            create(path).close()
    return outcome


def short_of_files(path: Path, step: Step | None, free: int, held: Held) -> tuple[End, str]:
    """Make one call, or read everything; return its end, and the broken promise after the limit is lifted."""
    index = Index.open(path, writable=step is not None, limits=LIMITS)
    used = len([*Path("/proc/self/fd").iterdir()]) - 1   # one is the listing itself
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, hard))
    end = ended(contents, index, held) if step is None else ended(step.apply, index)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wrong = end.value[0] if step is None and end.kind == "returned" else ""
    now = step.after(held) if step is not None and end.kind == "returned" else held
    return end, wrong or look(index, now)[0]
