"""Interrupt the calls of a writer with SIGINT at random times."""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import time
from collections import defaultdict
from pathlib import Path

from attacks.model import Held, Index, Steps, create, look
from attacks.outcome import Outcome

PROMISE = "A call that Ctrl-C interrupts did everything or nothing, and the same handle can be used afterwards."
BOUNDED, SOAK = 40, 1000


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Interrupt ``count`` calls of writers; every tenth writer is replaced by a new one."""
    chance = random.Random(seed)
    outcome, steps, held = Outcome(0), Steps(chance), Held()
    times, cut = defaultdict(lambda: [0.005]), 0
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    index = create(folder / "index")
    try:
        for attempt in range(count):
            if attempt % 10 == 9:
                index.close()
                index = Index.open(index.path, writable=True, limits=index._limits)
            step = steps.draw(held)
            begin, done = time.monotonic(), False
            # A third is hardly ever interrupted, or only the quickest calls would be timed.
            delay = statistics.median(times[step.name]) * chance.choice((chance.random(), 1.3 * chance.random(), 9))
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
                try:
                    step.apply(index)
                    done = True
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            if done:
                times[step.name].append(time.monotonic() - begin)
            cut += not done
            outcome.attempts += 1
            after = step.after(held)
            failure, held = look(index, *([after] if done else [held, after]))
            if failure:
                outcome.failures.append(f"attempt {attempt}, seed {seed}, in {step.name}: {failure}")
                with contextlib.suppress(Exception):
                    index.close()
                index, held = create(folder / f"index after {attempt}"), {}
    finally:
        signal.signal(signal.SIGALRM, previous)
    if cut < count // 10:
        outcome.failures.append(f"only {cut} of {count} interrupts fell within a call: nothing was proved")
    return outcome
