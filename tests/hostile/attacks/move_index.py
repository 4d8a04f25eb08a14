"""Change the working directory, and rename the folder of an index that is in use."""

from __future__ import annotations

import os
import random
from pathlib import Path

from attacks.model import LIMITS, Held, Index, Steps, create, look
from attacks.outcome import Outcome, ended

PROMISE = "If the working directory changes or the folder is renamed, no acknowledged row is lost or written elsewhere."
BOUNDED, SOAK = 15, 1000
MOVES = ("chdir", "chdir", "rename", "rename the parent", "stay")


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Move ``count`` times, and change the index after each."""
    chance, home = random.Random(seed), Path.cwd()
    outcome, steps, held = Outcome(0), Steps(chance), Held()
    places = [folder / "a", folder / "b"]
    for place in places:
        place.mkdir()
    try:
        os.chdir(places[0])
        index, real = create(Path("index")), places[0] / "index"
        for attempt in range(count):
            move, step = chance.choice(MOVES), steps.draw(held)
            if move == "chdir":
                os.chdir(chance.choice(places))
            elif move == "rename":
                real = real.rename(real.with_name(f"index {attempt}"))
            elif move == "rename the parent":
                places[0] = places[0].rename(folder / f"moved {attempt}")
                real = places[0] / real.name
            end = ended(step.apply, index)
            if end.kind == "returned":
                held = step.after(held)
            refused = end.kind == "refused" and "rename" in move   # the advice is to open it again
            failure = "" if refused else end.text or look(index, held)[0]
            failure = failure or look(real, held)[0]
            entries = {entry for parent in (folder, *places) for entry in parent.iterdir()}
            if stray := entries - {real, *places}:
                failure = failure or f"created {sorted(str(entry.relative_to(folder)) for entry in stray)}"
            outcome.attempts += 1
            if failure:
                outcome.failures.append(f"attempt {attempt}, seed {seed}, {move}, {step.name}: {failure}")
                break   # from here on, everything would fail
            if refused or chance.random() < 0.2:
                ended(index.close)
                os.chdir(chance.choice(places))
                index = Index.open(os.path.relpath(real), writable=True, limits=LIMITS)
    finally:
        os.chdir(home)
    return outcome
