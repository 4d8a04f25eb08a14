"""Damage to every file of every kind of guide: flipped bits and bytes, overwritten numbers, cuts, and lost files."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Index, Plan
from matryo.errors import MatryoError
from matryo.retrieve.guides.guide import VERIFIED_BYTES
from matryo.retrieve.guides.partition import partition
from matryo.retrieve.guides.sketch import sketch
from matryo.retrieve.store import Store

from .outcome import Outcome, forked

PROMISE = (
    "A damaged guide crashes no search. verify() names the damage, and build() repairs it: the hits are then right."
)
BOUNDED = 60
SOAK = 3_000
COUNT, DIMS = 1001, [8, 16]   # the last tile of a partition has empty places


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Damage one file per attempt, in a copy of one of three indexes."""
    rng, outcome = np.random.default_rng(seed), Outcome(0)
    made = [_make(folder / metric, metric) for metric in ("cosine", "ip", "l2")]
    for attempt in range(count):
        path, answers = made[attempt % len(made)]
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        files = sorted(file for file in (copy / "guides").rglob("*") if file.is_file())
        file = files[rng.integers(len(files))]
        done = damage(file, rng)
        about = f"{path.name}, {file.relative_to(copy)}, {done}"
        end = forked(_follow, copy, answers, attempt % 8 == 0, rng.random() < 0.75)
        outcome.attempts += 1
        if end.kind != "returned" or end.value:
            outcome.failures.append(f"{about}: {end.kind} {end.text or end.value}")
    return outcome


def damage(file: Path, rng: np.random.Generator) -> str:
    """Damage a file in a random way, and return what was done."""
    content = bytearray(file.read_bytes())
    at = int(rng.integers(len(content)))
    kind = ["bit", "byte", "number", "cut", "longer", "lost"][rng.choice(6, p=[0.4, 0.2, 0.28, 0.04, 0.04, 0.04])]
    if kind == "bit":
        content[at] ^= 1 << int(rng.integers(8))
    elif kind == "byte":
        content[at] ^= int(rng.integers(1, 256))
    elif kind == "number":   # −1, NaN, the largest, zero, small: what an index must not be
        at -= at % 4
        numbers = np.array([0xFFFFFFFF, 0x7FC00000, 0x7FFFFFFF, 0, 0x3F800000], np.uint32)
        number = rng.choice(numbers).tobytes()[: len(content) - at]
        if content[at : at + 4] == number:
            number = bytes([number[0] ^ 1]) + number[1:]
        content[at : at + 4] = number
    elif kind == "cut":
        del content[at:]
    elif kind == "longer":
        content += b"\0"
    if kind == "lost":
        file.unlink()
    else:
        file.write_bytes(content)
    return f"{kind} at {at}"


def plans() -> list[Plan | None]:
    """Searches that follow every guide."""
    stages = Plan.of([(8, 1000, "int8"), (16, 1000)])
    some: list[Plan | None] = [
        None, Plan(stages.stages, probe=1.0), Plan(stages.stages, probe=0.5),
        Plan(Plan.of([(8, 50, "int8"), (16, 5, "int8"), (16, 5)]).stages, probe=0.9),
        Plan(Plan.of([(8, 60, "int8"), (16, 5)]).stages, probe=0.05),
    ]  # fmt: skip
    return [*some, Plan.adaptive(8, 16, keep=50, ef=60)] if importlib.util.find_spec("faiss") else some


def queries() -> np.ndarray:
    """The vectors of queries and rows."""
    return np.random.default_rng(0).standard_normal((COUNT, DIMS[-1])).astype(np.float32)


def _make(path: Path, metric: Any) -> tuple[Path, list[list[int]]]:
    with Index.create(path, DIMS, metric=metric) as index:
        index.add(queries())
        Store.compact(index)
        index.build(sketch=True, partition=8, graph=8 if importlib.util.find_spec("faiss") else None)
        return path, _answers(index)   # also compiles, before any fork


def _answers(index: Index) -> list[list[int]]:
    return [index.search(queries()[:6], 9, plan=plan).ids.ravel().tolist() for plan in plans()]


def _follow(path: Path, answers: list[list[int]], repair: bool, large: bool) -> str | None:
    """Search, verify and repair a damaged index, all of whose arrays may count as large; return what is wrong."""
    for module in (sketch, partition):
        module.VERIFIED_BYTES = 0 if large else VERIFIED_BYTES
    with Index.open(path) as index:
        for plan in plans():
            for some in (queries()[:1], queries()[:6]):
                try:
                    index.search(some, 900, plan=plan)
                except MatryoError as error:
                    if "index.build()" not in str(error):
                        return f"no cure: {error}"
        try:
            index.verify()
        except MatryoError as error:
            if "index.build()" not in str(error):
                return f"no cure: {error}"
        else:
            return "verify() found nothing"
    if repair:
        with Index.open(path, writable=True) as index:
            index.build()
            index.verify()
            if _answers(index) != answers:
                return "other hits after build()"
    return None
