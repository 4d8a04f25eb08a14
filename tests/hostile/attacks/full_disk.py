"""Fill the disk while an index is written, and free it again."""

from __future__ import annotations

import random
from pathlib import Path

from attacks import faults
from attacks.faults import require as require
from attacks.model import LIMITS, Held, Index, Steps, contents, create, look
from attacks.outcome import Outcome, ended

PROMISE = "On a full disk a call raises and has done nothing, reading works, and writing works once space is freed."
BOUNDED, SOAK = 15, 1000


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Fill the disk ``count`` times."""
    outcome: Outcome = faults.on_failing_disk(__name__, "attack", count, seed, folder, folder=folder)
    return outcome


def attack(count: int, seed: int, folder: Path) -> Outcome:
    """Run with the failing disk loaded."""
    chance = random.Random(seed)
    outcome, steps, held, full = Outcome(0), Steps(chance), Held(), 0
    index = create(folder / "index")
    for attempt in range(count):
        step = steps.draw(held)
        space = int(chance.random() ** 3 * 60_000)
        faults.fill_after(folder / "index", space)   # also every later index of this attack
        end = ended(step.apply, index)
        if end.kind == "returned":
            held = step.after(held)
        reading = ended(contents, index, held)
        fresh = ended(lambda path=index.path, held=held: contents(Index.open(path), held))
        full += bool(faults.disarm())
        failure = f"raised {end.text}" if end.kind == "bare" or "damaged" in end.text else ""
        for name, read in (("its handle", reading), ("a new reader", fresh)):
            if not failure and (read.kind != "returned" or read.value[0]):
                failure = f"on the full disk {name} answers {read.text or read.value[0]}"
        failure = failure or look(index, held)[0] or look(index.path, held)[0]
        outcome.attempts += 1
        if chance.random() < 0.1:
            ended(index.close)
            index = Index.open(index.path, writable=True, limits=LIMITS)
        if failure:
            outcome.failures.append(f"attempt {attempt}, seed {seed}, {step.name}, {space} bytes free: {failure}")
            ended(index.close)
            index, held = create(folder / f"index after {attempt}"), {}
    if full < count // 5:
        outcome.failures.append(f"the disk was full only {full} of {count} times: nothing was proved")
    return outcome
