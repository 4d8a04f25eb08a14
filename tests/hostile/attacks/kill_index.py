"""Kill -9 a writer of an index at random times."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections import defaultdict
from pathlib import Path

from attacks.model import LIMITS, Held, Index, Step, Steps, create, look
from attacks.outcome import Outcome

PROMISE = "Every acknowledged change of an index survives kill -9, and each call happened as a whole or not at all."
BOUNDED, SOAK = 15, 1000


class Writer:
    """A child process that opens or creates an index and makes the given calls; it acknowledges each by a byte."""

    def __init__(self, path: Path, steps: list[Step]) -> None:
        self._reads, writes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                index = Index.open(path, writable=True, limits=LIMITS) if Index.exists(path) else create(path)
                os.write(writes, b".")
                for step in steps:
                    step.apply(index)
                    os.write(writes, b".")
                time.sleep(60)
            finally:
                os._exit(1)
        os.close(writes)

    def wait(self, calls: int) -> int:
        """Wait for so many acknowledgements; fewer if the writer has ended."""
        count = 0
        while count < calls and os.read(self._reads, 1):
            count += 1
        return count

    def kill(self) -> tuple[int, int]:
        """Kill it; return its exit code and how many calls it had acknowledged that were not waited for."""
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        rest = len(os.read(self._reads, 100))
        os.close(self._reads)
        return os.waitstatus_to_exitcode(status), rest


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill ``count`` writers; every tenth creates its index."""
    chance = random.Random(seed)
    outcome, steps = Outcome(0), Steps(chance)
    path, held = folder / "index", Held()
    create(path).close()
    times = defaultdict(lambda: [0.01])
    cut = 0
    for attempt in range(count):
        if attempt % 10 == 9:
            path, held = folder / f"index {attempt}", {}
        calls, after = [], held
        for _ in range(chance.randint(0, 4) if attempt % 10 != 9 else 0):   # with none it is killed while it opens
            calls.append(steps.draw(after))
            after = calls[-1].after(after)
        writer = Writer(path, calls)
        begin = time.monotonic()
        waited = writer.wait(len(calls))   # the opening, and all calls but the last
        taken = (time.monotonic() - begin) / max(1, waited)
        name = calls[-1].name if calls else "open"
        time.sleep(chance.random() * 1.5 * statistics.median(times[name]))
        code, rest = writer.kill()
        outcome.attempts += 1
        times[name].append(taken) if waited else None
        before = held
        for call in calls[:-1]:
            before = call.after(before)
        cut += bool(calls) and not rest
        allowed = [after] if rest or not calls else [before, after]
        failure = "" if code == -signal.SIGKILL and waited == len(calls) else f"the writer ended with {code}"

        if allowed == [{}] and not Index.exists(path):
            create(path).close()   # killed while it was created: it can be created again
        problem, held = look(path, *allowed)
        if failure := failure or problem:
            outcome.failures.append(f"attempt {attempt}, seed {seed}, killed in {name}: {failure}")
            path, held = folder / f"index after {attempt}", {}
            create(path).close()
    if cut < count // 20:
        outcome.failures.append(f"only {cut} of {count} kills fell within a call: nothing was proved")
    return outcome
