"""Flip a bit of an index, then make calls that copy its rows."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from attacks.outcome import Outcome, ended
from matryo import Index
from matryo.retrieve.sources import open_source
from matryo.retrieve.store import Limits

PROMISE = "No call copies damage: an index that passes verification holds what was added to it, bit for bit."
BOUNDED, SOAK = 30, 2000

LIMITS = Limits(pending_bytes=10 * 32)
Held = dict[str, tuple[list[float], dict[str, Any]]]


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Flip one bit in each of ``count`` copies of an index; guides can be built again, so they are not attacked."""
    chance, outcome = random.Random(seed), Outcome(0)
    held = _create(folder / "whole")
    files = sorted(file.relative_to(folder / "whole") for file in (folder / "whole").rglob("*") if file.is_file())
    for attempt in range(count):
        path, file = folder / "index", chance.choice(files)
        shutil.copytree(folder / "whole", path)
        content = bytearray((path / file).read_bytes())
        at, bit = chance.randrange(len(content)), chance.randrange(8)
        content[at] ^= 1 << bit
        (path / file).write_bytes(content)
        outcome.attempts += 1
        if failure := _attempt(path, dict(held), chance):
            outcome.failures.append(f"attempt {attempt}, seed {seed}, bit {bit} of byte {at} of {file.name}: {failure}")
        shutil.rmtree(path)
        shutil.rmtree(folder / "copy", ignore_errors=True)
    return outcome


def _create(path: Path) -> Held:
    """Seven segments, tombstones and recent rows; one more segment makes a merge."""
    random = np.random.default_rng(0)
    with Index.create(path, [2, 8], int8_up_to=2, limits=LIMITS) as index:
        for batch in range(7):
            ids = [f"doc-{batch}-{row}" for row in range(10)]
            index.add(random.standard_normal((10, 8)), ids, [{"n": row} for row in range(10)])
        index.delete(["doc-0-3", "doc-5-1"])
        index.add(random.standard_normal((3, 8)), ["a", "b", "c"])
        return _contents(index)


def _contents(index: Index) -> Held:
    ids = index.ids.tolist()
    vectors, payloads = index.get(ids)
    return {id: (vector.tolist(), payload) for id, vector, payload in zip(ids, vectors, payloads, strict=True)}


def _attempt(path: Path, held: Held, chance: random.Random) -> str:
    """Make the calls; return the reason if the index, or its copy, passes verification with other contents."""
    new = {f"new-{number}": ([float(number)] * 8, {}) for number in range(10)}

    def call(name: str) -> None:
        with Index.open(path, writable=True, limits=LIMITS) as index:
            if name == "compact":
                index.compact()
            elif name == "build":
                index.build(sketch=True)
            else:
                index.add([vector for vector, _ in new.values()], list(new))
                held.update(new)

    def copy() -> None:
        with Index.create(path.with_name("copy"), [2, 8]) as index:
            index.add_batches(open_source(str(path)).batches())

    def check(path: Path) -> str:
        with Index.open(path) as index:
            index.verify()
            found = _contents(index)
        wrong = [id for id in {**found, **held} if found.get(id) != held.get(id)]
        return f"verified, but wrong rows: {', '.join(wrong[:3])}" if wrong else ""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # a merge that was refused
        calls = [("copy", copy), *((name, lambda name=name: call(name)) for name in ("compact", "build", "merge"))]
        for name, work in chance.sample(calls, 2):
            end = ended(work)
            if not end.clean:
                return f"{name}: {end.text}"
            if name == "copy" and end.kind == "returned":
                end = ended(check, path.with_name("copy"))
                if end.kind != "returned" or end.value:
                    return f"copy: {end.text or end.value}"
        end = ended(check, path)
    return end.text if not end.clean else end.value or ""
