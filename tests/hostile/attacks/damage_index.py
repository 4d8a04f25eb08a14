"""Damage the files of an index in every way."""

from __future__ import annotations

import random
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from attacks.damage import damage, restored
from attacks.model import LIMITS, Held, Index, Step, contents, create, vectors_of
from attacks.outcome import Outcome, ended, forked
from matryo.retrieve import Plan

PROMISE = "A damaged index never crashes; verify finds every damage that changes an answer; compact hides none."
BOUNDED, SOAK = 15, 5000
CALLS = (("add", 100, 50), ("add", 200, 45), ("delete", 110, 9), ("upsert", 120, 6), ("add", 300, 3))
QUERIES = vectors_of([f"id {number}" for number in range(7_000, 7_003)], 1)


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Damage ``count`` copies of two indexes, one of them as a killed writer leaves it, and use each in a fork."""
    chance, outcome = random.Random(seed), Outcome(0)
    live, closed = folder / "live", folder / "closed"
    states, baseline = make(live)
    shutil.copytree(live, closed)
    Index.open(closed, writable=True, limits=LIMITS).close()   # moves the log into the file
    while outcome.attempts < count:
        base = chance.choice((live, closed))
        work = restored(base, folder / "work")
        changed = damage(work, chance)
        if changed is None:
            continue
        path, said = changed
        # Damage ends SQLite's log early, as a torn write does: the commits before it remain.
        allowed = states if path.name.endswith(("-wal", "-shm")) else states[-1:]
        compacts = chance.random() < 0.3
        end = forked(use, work, allowed, baseline, compacts)
        outcome.attempts += 1
        failure = end.value if end.kind == "returned" else f"{end.kind}: {end.text}"
        if failure:
            outcome.failures.append(f"attempt {outcome.attempts}, seed {seed}, {base.name}, {said}: {failure}")
    return outcome


def make(path: Path) -> tuple[list[Held], Any]:
    """Make an index at ``path`` and return what it held after each commit, and its answers.

    It is copied while its writer has it open, so that its last commits are in SQLite's log, as after a kill.
    """
    states = [Held()]
    with create(path.with_name("at work")) as index:
        for name, first, number in CALLS:
            step = Step(name, [f"id {id}" for id in range(first, first + number)], len(states))
            step.apply(index)
            states.append(step.after(states[-1]))
            if name == "delete":
                index.build(sketch=True, partition=4)
        baseline = answers(index)
        shutil.copytree(index.path, path)
        # The kernels are compiled here, before the forks.
        index.compact()
        problem, _ = contents(index, states[-1])
        assert not problem, problem
        assert same(answers(index), baseline)
    return states, baseline


def answers(index: Index) -> list[tuple[np.ndarray, np.ndarray]]:
    """The answers to queries of every kind."""
    return [
        index.search(QUERIES, 5),
        index.search(QUERIES, 5, plan=Plan.adaptive(4, 8, keep=100, k=5, precision="int8", probe=1.0)),   # all rows
        index.search(QUERIES, 5, where={"version": {"$gte": 2}}),
    ]


def same(some: Any, others: Any) -> bool:
    """Whether two lists of answers are equal up to rounding."""
    return all(
        np.array_equal(one.ids, other.ids) and np.allclose(one.scores, other.scores, atol=1e-5)
        for one, other in zip(some, others, strict=True)
    )


def use(path: Path, allowed: list[Held], baseline: Any, compacts: bool) -> str:
    """Open and use a damaged index; return the broken promise, or ""."""
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    opened = ended(Index.open, path)
    if opened.kind != "returned":
        return opened.text if opened.kind == "bare" else ""
    index: Index = opened.value
    for call in (lambda: index.ids, lambda: index.get(sorted(allowed[-1])), lambda: answers(index), index.describe):
        if (end := ended(call)).kind == "bare":
            return f"without verify: {end.text}"
    if failure := wrong_but_verified(index, allowed, baseline):
        return failure
    index.close()
    if not compacts:
        return ""
    opened = ended(lambda: Index.open(path, writable=True, limits=LIMITS))
    if opened.kind != "returned":
        return opened.text if opened.kind == "bare" else ""
    for call in (opened.value.compact, lambda: opened.value.add(vectors_of(["id 9"], 1), ["id 9"])):
        if (end := ended(call)).kind == "bare":
            return f"while writing: {end.text}"
    ended(lambda: opened.value.delete(["id 9"]))
    failure = wrong_but_verified(opened.value, allowed, baseline)
    return f"laundered: {failure}" if failure else ""


def wrong_but_verified(index: Index, allowed: list[Held], baseline: Any) -> str:
    """A wrong answer of an index that verify finds intact, or ""."""
    verified = ended(index.verify)
    if verified.kind != "returned":
        return verified.text if verified.kind == "bare" else ""
    read = ended(contents, index, *allowed)
    if read.kind != "returned":
        return f"verified, but cannot be read: {read.text}"
    problem, held = read.value
    if problem:
        return f"verified, but {problem}"
    found = ended(answers, index)
    if held == allowed[-1] and not (found.kind == "returned" and same(found.value, baseline)):
        return f"verified, but searches answer {found.value or found.text}"
    return ""
