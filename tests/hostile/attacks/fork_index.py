"""Fork a process that has an index open, and let parent and child use it."""

from __future__ import annotations

import random
from pathlib import Path

from attacks.model import LIMITS, Held, Index, Steps, contents, create, look
from attacks.outcome import Outcome, ended, forked

PROMISE = "After fork only the parent writes: a child that writes is refused, and one that reads answers correctly."
BOUNDED, SOAK = 12, 500
DEEDS = ("write", "close", "open", "read by the writer", "read by the reader", "leave")


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Fork ``count`` children that read, write, close or open the index of their parent."""
    chance = random.Random(seed)
    outcome, steps, held = Outcome(0), Steps(chance), Held()
    index = create(folder / "index")
    reader = Index.open(index.path)
    for attempt in range(count):
        deed, step = chance.choice(DEEDS), steps.draw(held)
        end = forked(child, deed, index, reader, steps, held)
        failure = end.value if end.kind == "returned" else f"the child: {end.kind} {end.text}"
        call = ended(step.apply, index)
        held = step.after(held)
        failure = failure or call.text or look(index, held)[0] or look(reader, held)[0] or look(index.path, held)[0]
        outcome.attempts += 1
        if failure:
            outcome.failures.append(f"attempt {attempt}, seed {seed}, {deed}: {failure}")
            index, held = create(folder / f"index after {attempt}"), {}
            reader = Index.open(index.path)
    return outcome


def child(deed: str, index: Index, reader: Index, steps: Steps, held: Held) -> str:
    """Use the handles of the parent; return the broken promise, or ""."""
    if deed == "write":
        return "a child wrote" if ended(steps.draw(held).apply, index).kind != "refused" else ""
    if deed == "open":   # the parent is the only writer
        second = ended(lambda: Index.open(index.path, writable=True, limits=LIMITS).close())
        return "a second writer was let in" if second.kind != "refused" else look(index.path, held)[0]
    if deed == "close":
        index.close()
    if not deed.startswith("read"):
        return ""
    end = ended(contents, reader if "reader" in deed else index, held)
    if end.kind == "returned":
        return end.value[0]
    return "" if end.kind == "refused" else end.text   # an error of ours says what to do
