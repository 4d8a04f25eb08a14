"""Call every public function with arguments of any type, dtype, shape and layout."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import traceback
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from attacks.api_table import SLOW, Context, table
from attacks.api_values import values
from attacks.outcome import Outcome
from matryo.errors import MatryoError

PROMISE = "A public function called with anything returns or raises a one-line MatryoError, and then changed nothing."
BOUNDED, SOAK = 600, 20_000
_SECONDS, _WARNINGS = 30, 20


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Replace one or two arguments of valid calls; changed arguments, bare errors, warnings and hangs are failures."""
    here, outcome = Path.cwd(), Outcome(0)
    (folder / "here").mkdir(parents=True)
    os.chdir(folder / "here")  # a text may be taken as a path
    context = Context(folder / "there")
    entries = table(context)
    any_value = values()
    names = [name for name in sorted(entries) for _ in range(1 if name in SLOW else 20)]

    @seeded(seed)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def attempt(data: st.DataObject) -> None:
        nonlocal entries
        name = data.draw(st.sampled_from(names))
        call, arguments = entries[name]()
        some = st.lists(st.sampled_from(sorted(arguments)), min_size=1, max_size=2, unique=True)
        chosen = data.draw(some) if arguments else []
        replaced = {key: data.draw(any_value) for key in chosen}
        outcome.attempts += 1
        before = context.commits
        failure = broken(call, arguments | replaced)
        changed = context.commits != before
        if failure and failure.startswith("refused"):
            failure = f"the index changed, yet it {failure}" if changed else ""
        if failure:
            outcome.failures.append(
                f"{name}({', '.join(f'{key}={text(value)}' for key, value in replaced.items())}): {failure}"
            )
        if changed or context.index.closed:
            context.renew()
            entries = table(context)

    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            attempt()
        finally:
            os.chdir(here)
    return outcome


def broken(call: Any, arguments: dict[str, Any]) -> str:
    """How a call broke the promise; "refused: …" if it raised an error of matryo, empty if it returned."""
    copies = {key: contents(value) for key, value in arguments.items()}
    with warnings.catch_warnings(record=True) as caught, limited(_SECONDS):
        warnings.simplefilter("always")
        try:
            result = call(**arguments)
            if isinstance(result, Iterator):
                list(islice(result, 3))
            end = ""
        except MatryoError as error:
            end = f"refused: {error}" if len(str(error).splitlines()) == 1 else f"an error of several lines: {error!r}"
        except BaseException as error:
            place = [part for part in traceback.extract_tb(error.__traceback__) if "/matryo/" in part.filename][-1:]
            where = f" at {place[0].filename.rpartition('/matryo/')[2]}:{place[0].lineno}" if place else ""
            end = f"{type(error).__name__}: {error!s:.150}{where}"
    if len(caught) > _WARNINGS:
        end = f"{len(caught)} warnings"
    touched = [key for key, value in arguments.items() if contents(value) != copies[key]]
    return f"{', '.join(touched)} changed" if touched else end


def contents(value: Any) -> Any:
    """The bytes of an array, to compare."""
    plain = isinstance(value, np.ndarray) and value.dtype != object
    return (value.shape, value.dtype.str, np.asarray(value).tobytes()) if plain else None


def text(value: Any) -> str:
    """A value in one line, with the layout of an array."""
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value.dtype} {value.shape}"
    with contextlib.suppress(Exception):
        return f"{type(value).__name__} {value!r:.60}".replace("\n", " ")
    return type(value).__name__


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in a call that takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
